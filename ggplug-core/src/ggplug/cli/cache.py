"""``ggplug cache``: compiled kernels on disk, of every backend that keeps some."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import click
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

from ggplug.cli.output import (
    Command,
    byte_count,
    console,
    echo,
    json_option,
    print_error,
    print_json,
    print_table,
    printable,
    progress,
)
from ggplug.errors import DeviceNotFoundError, GGPlugError, ParameterError
from ggplug.registry import REGISTRY
from ggplug.registry.extras import KernelCache
from ggplug.registry.isolation import FaultError, HangError, within
from ggplug.registry.records import reason_of

T = TypeVar("T")

backend_option = click.option(
    "--backend", metavar="NAME", help="Only the kernels of this backend (default: of all backends)."
)


@click.group()
def cache() -> None:
    """Show, clear or prebuild compiled kernels.

    Kernels are compiled when they are first needed, and kept on disk. You can use all of these commands at any time,
    also while other processes compute.
    """


@cache.command(cls=Command)
@backend_option
@json_option
def show(backend: str | None, as_json: bool) -> int:
    """List compiled kernels.

    Files that are damaged, or that cannot be used, are listed with the reason.
    """
    answers = _Answers(backend)
    listed = answers.of(lambda kernels: list(map(_entry, kernels.entries())))
    found = [{"backend": name, **entry} for name, entries in listed for entry in entries]
    if as_json:
        print_json(found)
        return answers.code
    out = console()
    if found:
        rows = [
            (
                each["backend"],
                each["name"],
                f"unusable: {each['problem']}" if each["problem"] else each["target"] or "",
                byte_count(each["bytes"]),
                _when(each["used"]),
            )
            for each in found
        ]
        print_table(["backend", "kernel", "target", "bytes", "last used"], rows, right=["bytes"])
        out.print()
    count, useless = len(found), sum(each["problem"] is not None for each in found)
    out.print(
        f"{count} kernels, {byte_count(sum(e['bytes'] for e in found))}"
        + (f"; {useless} of them unusable" if useless else "")
    )
    return answers.code


@cache.command(cls=Command)
@backend_option
@json_option
def clear(backend: str | None, as_json: bool) -> int:
    """Delete compiled kernels.

    They are compiled again when they are needed.
    """
    answers = _Answers(backend)
    counts = dict(answers.of(lambda kernels: int(kernels.clear())))
    if as_json:
        print_json([{"backend": name, "deleted": count} for name, count in counts.items()])
        return answers.code
    for name, count in counts.items():
        echo(f"{name}: deleted {count} kernels")
    return answers.code


@cache.command(cls=Command)
@backend_option
@json_option
def prebuild(backend: str | None, as_json: bool) -> int:
    """Compile the kernels that models are likely to need.

    The first run of a model is then faster.
    """
    backend_name, kernel = TextColumn("{task.fields[backend]}"), TextColumn("{task.description}")
    columns = (backend_name, BarColumn(), MofNCompleteColumn(), kernel)
    answers = _Answers(backend, patience=0)
    with progress(*columns) as bar:
        task = bar.add_task("", total=None, backend="")

        def report(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=printable(name), backend=answers.current)

        counts = dict(answers.of(lambda kernels: int(kernels.prebuild(report))))
    if as_json:
        print_json([{"backend": name, "compiled": count} for name, count in counts.items()])
        return answers.code
    for name, count in counts.items():
        echo(f"{name}: compiled {count} kernels")
    return answers.code


class _Answers:
    """Calls the kernel caches of backends; prints on standard error which backends fail or hang.

    ``patience``: seconds that each may take (default GGPLUG_LOAD_TIMEOUT; 0: no limit).  ``current``: the backend
    whose answer is awaited.  ``code``: the exit code that this makes.
    """

    def __init__(self, backend: str | None, patience: float | None = None) -> None:
        self.backend = backend
        self.patience = REGISTRY.settings.timeout if patience is None else patience
        self.current = ""
        self.code = 0

    def of(self, question: Callable[[KernelCache], T]) -> Iterator[tuple[str, T]]:
        """Names of backends, and what ``question`` returns for their caches.

        Raises ParameterError if the command names a backend that keeps no kernels.
        """
        named = self.backend is not None
        for registration in [REGISTRY.registration(self.backend)] if self.backend else REGISTRY.registrations():
            self.current = registration.name
            try:
                kernels = within(self.patience, self.current, partial(registration.get, "cache"))
                if kernels is not None:
                    yield self.current, within(self.patience, self.current, partial(question, kernels))
                elif named:
                    raise ParameterError(f"the backend {self.current} keeps no compiled kernels on disk")
            except HangError as error:
                self._failed(str(error))
            except FaultError as error:
                if named and isinstance(error.cause, GGPlugError):
                    raise error.cause from None
                if not isinstance(error.cause, DeviceNotFoundError):
                    self._failed(reason_of(error.cause))

    def _failed(self, reason: str) -> None:
        print_error(f"the cache of the backend {self.current}: {reason}")
        self.code = 1


def _entry(entry: Any) -> dict[str, Any]:
    """An entry in the types that JSON has, whatever the backend's own are."""
    used, path, target = (getattr(entry, key, None) for key in ("used", "path", "target"))
    problem = getattr(entry, "problem", None)
    return {
        "name": str(entry.name),
        "target": None if target is None else str(target),
        "bytes": int(getattr(entry, "bytes", 0) or 0),
        "used": None if used is None else float(used),
        "path": None if path is None else str(path),
        "problem": None if problem is None else str(problem),
    }


def _when(seconds: float | None) -> str:
    try:
        return time.strftime("%Y-%m-%d", time.localtime(seconds)) if seconds else ""
    except (OverflowError, ValueError, OSError):  # a file's time can be anything
        return "?"
