"""All that a device computes, ops and groups, between two stores into its sources: each has to be computed in order."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import islice

import numpy as np

from ggplug.backend import Backend, Device, forms_groups, groups_of
from ggplug.errors import GGPlugError
from ggplug.nodes.groups import UNGROUPED, Groups
from ggplug.ops.base import OPS, Op
from ggplug.tensor import Tensor
from ggplug.types import BF16, F16
from ggplug_testing.cases import Case, Leafs, cases_of
from ggplug_testing.cases.chains import whole_chains
from ggplug_testing.contracts.clause import NotOffered, expect
from ggplug_testing.contracts.given import Given, clause
from ggplug_testing.contracts.holding import MOMENT, held, require_pending
from ggplug_testing.contracts.sample import Bound
from ggplug_testing.judging.comparison import Comparison, compare
from ggplug_testing.judging.oracle import read_values
from ggplug_testing.running.groups import names_of_kernels
from ggplug_testing.running.placement import Bytes

_TRIED = 4
"""How many cases of each kind are tried, until one can be used."""

_LOOKED_AT = 128
"""How many cases of an op are made, at equal distances, to learn their kinds: making all takes half a second."""


class Race(Bound):
    """A computation that is submitted between a store of its sources and a store of zeros into them.

    ``groups``: the nodes that are computed together.
    """

    def __init__(self, stream: Backend, case: Case, groups: Groups = UNGROUPED) -> None:
        self.case, leafs = case, Leafs(case.seed)
        super().__init__(stream, case.graph(leafs), groups)
        self.values = {leaf: raw for leaf, raw in leafs.values.items() if leaf in self.graph and raw.size}
        self.zeros = {leaf: np.zeros_like(raw) for leaf, raw in self.values.items()}
        self.out = np.empty(self.result.nbytes, np.uint8)

    def depends_on_time(self) -> bool:
        """Whether the result depends on when it was computed; sources are zeros afterwards, and there is no result.

        ``right``: the result's bytes if that is computed in order; ``wrong``: if it is computed too early or late.
        """
        self.right, self.wrong = (self._computed_from(values) for values in (self.values, self.zeros))
        if self.result.root.op is not None:
            self.clear(self.result.root)
        return not self.agree(self.wrong, self.right)

    def _computed_from(self, values: dict[Tensor, Bytes]) -> Bytes:
        self.write_all(values)
        self.compute()
        return self.out.copy()

    def compute(self) -> None:
        """Computes from the sources as they are, and fetches the result, now."""
        self._give_computation()
        self.stream.synchronize()

    def give(self) -> None:
        """Gives the stream a store of the sources, the computation, a fetch of its result, and a store of zeros."""
        self._store(self.values)
        self._give_computation()
        self._store(self.zeros)

    def _give_computation(self) -> None:
        self.plan.compute()
        self.fetch(self.out)

    def _store(self, values: dict[Tensor, Bytes]) -> None:
        for leaf, raw in values.items():
            buffer, offset, _ = self.region(leaf)
            self.stream.set_async(buffer, offset, raw)

    def found(self) -> Comparison:
        """Whether the result that was fetched is the one that is computed in order."""
        return self.agree(self.out, self.right)

    def agree(self, one: Bytes, other: Bytes) -> Comparison:
        """Whether two results are the same."""
        return compare(read_values(self.result, one), read_values(self.result, other), 1e-6)


def races_of(stream: Backend) -> Iterator[Race]:
    """A race of each op for each kind of element type of its first source, and of each kernel for groups.

    Leaves out what the device declines, and cases in which it fails: the tests of the op report these.
    """
    device = stream.device
    for op in OPS.values():
        for cases in () if op.is_view else _by_types(op).values():  # type: ignore[arg-type]
            served = (_race(stream, case) for case in islice(filter(partial(_computes, device), cases), _TRIED))
            yield from islice(filter(None, served), 1)
    raced: set[str] = set()
    for case in whole_chains() if forms_groups(device) else ():
        groups, kernels = _groups(device, case)
        race = _race(stream, case, groups) if kernels - raced else None
        if race is not None:
            raced |= kernels
            yield race


@cache
def _by_types(op: type[Op]) -> dict[str, list[Case]]:
    """Cases of an op by the kind of element type that the first source has."""
    found: dict[str, list[Case]] = {}
    cases = [*cases_of(op)]
    for case in cases[:: -(-len(cases) // _LOOKED_AT) or 1]:
        try:
            made = case.make(Leafs(case.seed))
        except GGPlugError:
            continue
        node = made if isinstance(made, Tensor) else [*made][-1]
        type = next((source.type for source in node.src if source is not None), node.type)
        kind = "blocks" if type.is_quantized else "halves" if type in (F16, BF16) else "others"
        found.setdefault(kind, []).append(case)
    return found


def _computes(device: Device, case: Case) -> bool:
    """Whether a device computes a case, and there is something to compute."""
    graph = case.graph(Leafs(case.seed))
    return bool(graph.nodes and graph.outputs[-1].nbytes and all(map(device.supports_op, graph.nodes)))


def _groups(device: Device, case: Case) -> tuple[Groups, set[str]]:
    """The groups that a device forms of a case, and the names of the kernels that compute them; none if it declines."""
    graph = case.graph(Leafs(case.seed))
    if not all(map(device.supports_op, graph.nodes)):
        return UNGROUPED, set()
    groups = groups_of(device, graph)
    return groups, set(names_of_kernels(device, graph, groups))


def _race(stream: Backend, case: Case, groups: Groups = UNGROUPED) -> Race | None:
    """A race of a case, or None if the device fails in it, or if the result does not depend on when it was computed."""
    try:
        race = Race(stream, case, groups)
    except Exception:
        return None
    try:
        depends = race.depends_on_time()
    except Exception:
        depends = False
    if not depends:
        race.free()
    return race if depends else None


AT_ONCE = 16
"""Computations that wait in a held stream, each with its stores: CUDA's streams hold about a thousand commands."""


@clause
def every_op_of_a_held_stream_keeps_its_order(given: Given) -> None:
    """A stream computes (``compute``) any op and group after what was submitted before it, and before what is
    submitted afterwards."""
    require_pending(given.device)
    stream = given.stream()
    races = [given.use(race) for race in races_of(stream)]
    if not races:
        raise NotOffered(f"{given.device.name} computes no op whose result depends on when it was computed")

    def give(some: Sequence[Race]) -> float:
        """Seconds that it took to submit them."""
        start = time.perf_counter()
        for race in some:
            race.give()
        return time.perf_counter() - start

    for first in range(0, len(races), AT_ONCE):
        some = races[first : first + AT_ONCE]
        giving = give(some)
        stream.synchronize()
        with held(stream, max(giving, MOMENT)):
            give(some)
        stream.synchronize()
    found = {race.case: race.found() for race in races}
    wrong = [case for case, each in found.items() if not each]
    names = ", ".join(map(str, wrong[:5])) + (f" and {len(wrong) - 5} others" if len(wrong) > 5 else "")
    expect(not wrong, f"{names} not computed in order: {found[wrong[0]].reason if wrong else ''}")
