"""A clause of the interface's contract: a function that a device passes, fails, or has nothing to do with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar, NamedTuple

import numpy as np

from ggplug.backend import Buffer, BufferType, Device
from ggplug.memory.layout import aligned
from ggplug.ops.base import Array
from ggplug.tensor import Tensor
from ggplug_testing.contracts.bases import bases_of
from ggplug_testing.overrides import exercised
from ggplug_testing.reporting.causes import of_exception
from ggplug_testing.reporting.report import Finding, Verdict
from ggplug_testing.reporting.watching import EVERYTHING, Watch
from ggplug_testing.running.placement import Bytes


class ContractError(AssertionError):
    """A device broke a clause.  ``builds_on``: ops that it would not have broken it with, were they right."""

    def __init__(self, message: str, builds_on: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.builds_on = builds_on


class Unchecked(Exception):
    """A clause was neither kept nor broken."""

    verdict: ClassVar[Verdict]


class NotOffered(Unchecked):
    """The clause is about something that the device does not offer."""

    verdict = "declined"


class NotApplicable(Unchecked):
    """The clause is about something that cannot happen on the device."""

    verdict = "not applicable"


class NotProven(Unchecked):
    """There is no way to find out whether the device keeps the clause."""

    verdict = "not proven"


class NotYetProven(NotProven):
    """What was to be seen was over too early; another attempt, with more of it, may show it."""


OVERRIDES = 3
"""How many of the author's methods are named with a clause that is broken."""

ATTEMPTS = 4
"""How often a clause is checked until it is proven or not."""


class Clause(NamedTuple):
    """``name`` in words; ``check(device)`` raises ContractError, NotOffered, NotApplicable or NotProven."""

    name: str
    check: Callable[[Device], None]

    @property
    def meaning(self) -> str:
        """What the contract says, from the check's docstring."""
        return " ".join((self.check.__doc__ or "").split())


CONTRACT = "contract"
"""The subject of findings about clauses."""

CLAUSES: list[Clause] = []
"""The whole contract, in order."""


def run_clauses(device: Device, chosen: Iterable[Clause], watch: Watch = EVERYTHING) -> list[Finding]:
    """Those of these clauses that ``watch`` wants."""
    findings = []
    for each in chosen:
        if watch.wants(CONTRACT, each.name):
            watch.begins(CONTRACT, each.name)
            findings.append(run_clause(device, each))
            watch.ended(findings[-1])
            if watch.enough():
                break
    return findings


def run_clause(device: Device, chosen: Clause) -> Finding:
    """One clause; never raises for what the device does."""
    finding, ops = _outcome(device, chosen)
    return (
        finding._replace(builds_on=(*bases_of(chosen.name, chosen.check.__module__), *ops)) if finding.bad else finding
    )


def _outcome(device: Device, chosen: Clause) -> tuple[Finding, tuple[str, ...]]:
    """What becomes of a clause, and the ops that it has computed wrong values with."""
    try:
        for left in reversed(range(ATTEMPTS)):
            try:
                chosen.check(device)
                break
            except NotYetProven:
                if not left:
                    raise
    except Unchecked as reason:
        return Finding(CONTRACT, chosen.name, reason.verdict, str(reason)), ()
    except ContractError as error:
        reason_given = f"{error}; the contract: {chosen.meaning}"
        if error.__cause__ is None:
            broken = Finding(CONTRACT, chosen.name, "failed", reason_given, float("inf"))
            return _with_overrides(broken, device, chosen), error.builds_on
        # Something else was raised than the clause wants; where it says more than the clause does.
        failure = of_exception(error.__cause__, device)._replace(verdict="failed")
    except Exception as error:
        failure = of_exception(error, device)
        reason_given = f"{failure.reason}; the contract: {chosen.meaning}"
    else:
        return Finding(CONTRACT, chosen.name, "passed"), ()
    finding = failure._replace(reason=reason_given).finding(CONTRACT, chosen.name)
    return (_with_overrides(finding, device, chosen) if failure.in_core else finding), ()


def _with_overrides(finding: Finding, device: Device, chosen: Clause) -> Finding:
    """With the author's methods that a broken clause exercises, where no traceback has a line of theirs."""
    found = [str(each) for each in exercised(chosen.check, chosen.meaning, device)[:OVERRIDES]]
    if not found:
        return finding
    others = [f"and {', and '.join(found[1:])}"] if found[1:] else []
    if finding.where:
        return finding._replace(trace=(*finding.trace, f"exercised {found[0]}", *others))
    return finding._replace(where=f"exercised {found[0]}", trace=(*finding.trace, *others))


def expect(condition: object, message: str, builds_on: tuple[str, ...] = ()) -> None:
    """Raises ContractError unless ``condition`` holds; ``builds_on``: ops whose wrong values may be why."""
    if not condition:
        raise ContractError(message, builds_on)


@contextmanager
def expect_raises(kind: type[BaseException], what: str) -> Iterator[None]:
    """Raises ContractError unless the block raises ``kind``."""
    try:
        yield
    except kind:
        return
    except Exception as error:
        raise ContractError(f"{what} must raise {kind.__name__}, raised {type(error).__name__}: {error}") from error
    raise ContractError(f"{what} must raise {kind.__name__}, raised nothing")


def expect_all_raise(
    kind: type[BaseException], attempts: Mapping[str, Callable[[], object]], unchanged: Callable[[str], None]
) -> None:
    """Raises ContractError unless every attempt raises ``kind``; after each ``unchanged(what)`` looks at the rest."""
    for what, attempt in attempts.items():
        with expect_raises(kind, what):
            attempt()
        unchanged(what)


def pattern(size: int, seed: int = 0) -> Bytes:
    """Random bytes."""
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def alloc_for(kind: BufferType, tensor: Tensor, count: int = 1) -> Buffer:
    """A buffer that ``count`` tensors like this one fit in, :func:`step_between` bytes apart."""
    return kind.alloc((count - 1) * step_between(kind, tensor) + kind.alloc_size(tensor))


def step_between(kind: BufferType, tensor: Tensor) -> int:
    """How many bytes after a tensor the next one of the same size may begin, in memory of a type."""
    return aligned(kind.alloc_size(tensor), kind.alignment)


def affordable(device: Device, size: int, count: int = 1) -> int:
    """``size`` bytes, or less where that is more than a buffer can have, or ``count`` buffers more than is free.

    Half of what is free is left for everything else.
    """
    free = device.memory().free
    limits = (device.buffer_type.max_size, free and free // (2 * count))
    return min(size, *filter(None, limits))


def read(buffer: Buffer, offset: int = 0, size: int | None = None) -> Bytes:
    """Bytes of a buffer."""
    out = np.empty(buffer.size - offset if size is None else size, np.uint8)
    buffer.get(offset, out)
    return out


def expect_equal(got: Array, want: Array, what: str) -> None:
    """Raises ContractError with the first difference."""
    if not np.array_equal(got, want):
        where = int(np.flatnonzero(got.reshape(-1) != want.reshape(-1))[0])
        raise ContractError(f"{what}: at {where} got {got.reshape(-1)[where]}, want {want.reshape(-1)[where]}")


def expect_bytes(got: Buffer | Bytes, seed: int | None, what: str) -> None:
    """Raises ContractError unless these bytes, or those of a buffer, are those of ``seed``; with None zeros."""
    found = read(got) if isinstance(got, Buffer) else got
    expect_equal(found, np.zeros(found.size, np.uint8) if seed is None else pattern(found.size, seed), what)
