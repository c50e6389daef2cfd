"""Steps: some tokens of some sequences computed together; all steps of one shape use one graph."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import ggplug as gg
from ggplug import ops
from ggplug.errors import ParameterError
from ggplug.graph import Graph
from ggplug.scheduler import Feed, Scheduler
from ggplug.tensor import Tensor
from ggplug.types import Type
from ggplug_models.layers.attention import by_sequence, joined, mixed_as_one, mixed_views
from ggplug_models.layers.collecting import Axes, axes_of_tokens, collected
from ggplug_models.layers.names import name_nodes
from ggplug_models.layers.patches import GraphChange, patched, scale_now
from ggplug_models.state.cells import SOURCE, Cells, CompressedCells
from ggplug_models.state.memory import KeysValues, Memory

Ints = npt.NDArray[np.int64]
Ints32 = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

VECTORS = "h_nextn"
"""The name by which a step's collected values have the vectors that :mod:`.heads` read, of all its tokens."""


class Outputs(enum.Enum):
    """The tokens for which a step returns results: none, the last of each sequence, or all."""

    NONE = 0
    LAST = 1
    ALL = 2


Asked = Outputs
"""The former name of :class:`Outputs`."""


class Shape(NamedTuple):
    """The parameters that are equal in all steps with the same graph.

    A step has ``n`` tokens of each of ``n_seq`` sequences, from the sequence ``first`` on.  ``spans``: number of cells
    that are read, by window.  ``hidden``: whether the result is the normalised vectors of the last block, not logits.
    ``n_last``: of how many tokens of each sequence LAST returns results: of one, except in :meth:`longer`.
    """

    first: int
    n_seq: int
    n: int
    spans: tuple[tuple[int, int], ...]
    outputs: Outputs
    hidden: bool = False
    n_last: int = 1

    @property
    def longer(self) -> Shape:
        """The same with more tokens, and more results: what follows their numbers has another extent in its graph,
        which is not computed."""
        outputs = self.outputs if self.n > 1 else Outputs.ALL  # one token is the last
        return self._replace(n=self.n + 2, n_last=self.n + 1, outputs=outputs)


@dataclass(frozen=True)
class Tokens:
    """The tokens of a step: ids and positions, [n_seq, n], and the length of each sequence after the step.

    Padding tokens, at the end of sequences with fewer than ``n`` tokens, have the position -1.
    """

    ids: Ints
    positions: Ints
    lengths: Ints
    vectors: Floats | None = None
    """What :mod:`.heads` read of each token, [n_seq * n, n_in]."""
    scales: Mapping[GraphChange, float | None] = field(default_factory=dict)
    """The changes of the step's graph, with their scales."""

    @property
    def last(self) -> npt.NDArray[np.int32]:
        """The row of the step with the last token of each sequence; for a sequence without tokens, its first row."""
        n_seq, n = self.positions.shape
        present = (self.positions >= 0).sum(axis=1)
        rows: npt.NDArray[np.int32] = (np.arange(n_seq) * n + np.maximum(present - 1, 0)).astype(np.int32)
        return rows


Values = Callable[[Tokens], npt.ArrayLike]


class Step:
    """The graph for all steps of a shape, with its inputs.

    A model's blocks add their nodes, :meth:`finish` makes the graph, and :meth:`fill` sets the inputs for each step.
    ``memory``: the tensors of the session.  ``cells``: its cells, by window.  ``n_ctx``: its context length.
    """

    def __init__(self, shape: Shape, memory: Memory, cells: Mapping[int, Cells], n_ctx: int) -> None:
        self.shape = shape
        self.n_ctx = n_ctx
        self.memory = memory
        self.spans = dict(shape.spans)
        self.n_tokens = shape.n_seq * shape.n
        self._cells = cells
        self._inputs: dict[str, tuple[Tensor, Values]] = {}
        self._parts: dict[str, tuple[Tensor, Values]] = {}
        compressed = sum(isinstance(each, CompressedCells) for each in cells.values())
        self._most_parts = 3 + len(cells) + 2 * compressed
        self._writes: list[Tensor] = []
        self._stored: dict[int, list[Tensor]] = {}
        self._states: list[Tensor] = []
        self._attended: dict[int, Tensor] = {}
        self._cached: dict[int, tuple[Tensor, Tensor]] = {}
        self.shared: dict[str, Tensor] = {}
        """Nodes that later blocks read, by name."""
        self.result: Tensor | None = None
        self._scales: dict[tuple[GraphChange, float], Tensor] = {}
        self.collected: dict[str, Tensor] = {}
        """The nodes whose values are asked for, by name."""
        self.axes: Axes | None = None
        """The axes of tokens of :attr:`collected`, of one sequence, once they are known."""
        self.graph: Graph | None = None
        self._feed: Feed | None = None
        self.reads_lost_cells = False
        """Whether masked cells are multiplied by 0 instead of being left out, so that they must hold finite numbers."""

    # -- inputs ------------------------------------------------------------------------------------

    def input(self, name: str, type: Type, ne: Sequence[int], values: Values) -> Tensor:
        """The input ``name`` of the graph, made at the first call; ``values`` computes it from the tokens of a step."""
        if name not in self._inputs:
            self._inputs[name] = gg.new_tensor(type, ne, name).set_input(), values
        return self._inputs[name][0]

    def whole_numbers(self, name: str, count: int, values: Values) -> Tensor:
        """As :meth:`input`, for I32 [count] with at most one element for each token: a view of one common input.

        Setting an input takes time in every step, so integers have one input together.
        """
        if name not in self._parts:
            shape = self._most_parts, self.n_tokens
            numbers = self.input("numbers", gg.I32, shape[::-1], partial(_numbers, self._parts, shape))
            offset = len(self._parts) * numbers.nb[1]
            assert len(self._parts) < self._most_parts
            self._parts[name] = gg.view(numbers, count, offset=offset, name=name), values
        return self._parts[name][0]

    @property
    def tokens(self) -> Tensor:
        """The token ids, I32 [T], sequence after sequence."""
        return self.whole_numbers("tokens", self.n_tokens, lambda tokens: tokens.ids.reshape(-1))

    @property
    def positions(self) -> Tensor:
        """The positions, I32 [T]."""
        return self.whole_numbers(
            "positions", self.n_tokens, lambda tokens: np.maximum(tokens.positions, 0).reshape(-1)
        )

    def vectors(self, n: int) -> Tensor:
        """The vectors that the caller gives with the tokens: F32 [n, T]."""
        return self.input("vectors", gg.F32, (n, self.n_tokens), partial(_vectors, n))

    def of_positions(self, name: str, values: Callable[[Ints], npt.NDArray[np.floating[Any]]]) -> Tensor:
        """An input F32 [1, 1, T] that ``values`` computes from the positions."""

        def of(tokens: Tokens) -> npt.ArrayLike:
            return values(np.maximum(tokens.positions, 0).reshape(-1)).reshape(-1, 1, 1)

        return self.input(name, gg.F32, (1, 1, self.n_tokens), of)

    def of_pairs(self, values: Callable[[Ints], npt.NDArray[np.integer[Any]]]) -> Tensor:
        """An input I32 [span, n, n_seq] that ``values`` computes from how far the cells of full attention, which are
        read, lie behind each token."""
        cells = np.arange(self.spans[0])

        def of(tokens: Tokens) -> npt.ArrayLike:
            return values(cells - np.maximum(tokens.positions, 0)[..., np.newaxis])

        return self.input("pairs", gg.I32, (self.spans[0], self.shape.n, self.shape.n_seq), of)

    def scale(self, of: GraphChange, times: float) -> Tensor:
        """See :class:`.Scales`."""
        key = of, times
        if key not in self._scales:
            name = f"scale {len(self._scales)}"
            self._scales[key] = self.input(name, gg.F32, (1,), lambda tokens: scale_now(tokens.scales, of, times))
        return self._scales[key]

    def _rows(self, window: int) -> Tensor:
        first, cells = self.shape.first, self._cells[window]
        count = self.shape.n_seq * cells.n_rows(self.shape.n)
        return self.whole_numbers(f"rows {window}", count, lambda tokens: cells.rows(first, tokens.positions))

    def mask(self, window: int, *, distances: bool = False, finite: bool = False) -> Tensor:
        """The mask of the cells of a window; ``distances``: with :meth:`.Cells.distances`.

        ``finite``: hidden cells have the least number of F16, so that the softmax of padding tokens, which see no cell,
        is not NaN.
        """
        shape, cells, span = self.shape, self._cells[window], self.spans[window]

        def of(tokens: Tokens) -> npt.ArrayLike:
            seen = cells.mask(shape.first, tokens.positions, tokens.lengths, span)
            if finite:
                seen = np.maximum(seen, np.finfo(np.float16).min)
            return seen + cells.distances(tokens.positions, span) if distances else seen

        name = f"distances {window}" if distances else f"mask {window}"
        return self.input(name, gg.F16, (span, shape.n, 1, shape.n_seq), of)

    # -- what blocks ask for -----------------------------------------------------------------------

    def outputs(self, x: Tensor) -> Tensor:
        """The columns of ``x`` [n, T] for which the step returns results."""
        if self.shape.outputs is Outputs.LAST and self.shape.n > 1 and x.ne[1] == self.n_tokens:
            count = self.shape.n_seq * self.shape.n_last
            return gg.get_rows(x, self.whole_numbers("output rows", count, lambda tokens: tokens.last))
        return x

    def attend(
        self,
        number: int,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        *,
        scale: float,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
        max_bias: float = 0.0,
        d_v: int = 0,
        of: int = 0,
        bias: Tensor | None = None,
        mask: Tensor | None = None,
        further: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Stores keys and values of block ``number`` in the KV cache, and computes attention: [d_v n_head, T].

        q: [d_k, n_head, T], k: [d_k, n_head_kv, T], v: [d_v, n_head_kv, T].  If ``v`` is None, the values are the first
        ``d_v`` elements of the keys.  If ``k`` is None, the block reads those of the earlier block ``of``.
        ``max_bias``: of ALiBi, for blocks without a window (arXiv:2108.12409).  ``bias``: F32 [span, n, n_head, n_seq],
        which is added to the logits.  ``mask``: in the place of :meth:`mask` of the block's window.  ``further``: keys
        that are also values, [d_k, m, n_head_kv, n_seq], and their mask, F16 [m, n, 1, n_seq], behind those of the
        cache.  A block may be made twice, to compute more of its columns; its attention is then
        the same node.
        """
        if number in self._attended:
            return self._attended[number]
        kind = self.memory.kinds[of if k is None else number]
        assert isinstance(kind, KeysValues)
        if k is not None:
            held = self.stored(number, *(joined(new) for new in (k, v) if new is not None))
            self._cached[number] = (
                self.read(number, held[0], *k.ne[:2]),
                self.read(number, held[-1], d_v if v is None else v.ne[0], k.ne[1]),
            )
        keys, values = self._cached[of if k is None else number]
        if bias is None:
            mask = self.mask(kind.window, distances=max_bias > 0) if mask is None else mask
            if further is not None:
                keys, mask = gg.concat(keys, further[0], dim=1), gg.concat(mask, further[1], dim=0)
                values = keys
            y = mixed_as_one(q, keys, values, mask, scale=scale, softcap=softcap, sinks=sinks, max_bias=max_bias)
        else:
            self.reads_lost_cells = True
            parts = by_sequence(q, self.shape.n_seq), keys, values
            y = mixed_views(*parts, self.mask(kind.window, finite=True), scale=scale, bias=bias)
        self._attended[number] = y
        return y

    def attend_source(self, number: int, q: Tensor, n_head_kv: int, d_v: int, *, scale: float) -> Tensor:
        """Attention to the keys and values of a source text, which ``number`` of the memory's blocks holds:
        [d_v n_head, T].

        q: [d_k, n_head, T].
        """
        if number not in self._attended:
            keys, values = self.memory.blocks[number]
            k, v = self.read(number, keys, q.ne[0], n_head_kv), self.read(number, values, d_v, n_head_kv)
            self._attended[number] = mixed_as_one(q, k, v, self.mask(SOURCE), scale=scale)
        return self._attended[number]

    def stored(self, number: int, *columns: Tensor) -> list[Tensor]:
        """The tensors of the memory's block ``number``, [elements, cells], after columns [elements, any] were stored.

        Those that were stored at the first call count: a block may be made twice.
        """
        if number not in self._stored:
            rows = self._rows(self._window(number))
            self._stored[number] = [
                gg.set_rows(tensor, new, rows, name=f"blk.{number}.cache_{part}")
                for part, tensor, new in zip("kv", self.memory.blocks[number], columns, strict=False)
            ]
            self._writes += self._stored[number]
        return self._stored[number]

    def completed(self, recent: int, keys: int, before: int) -> tuple[Tensor, Tensor, Tensor]:
        """What the keys that stand for several positions each are computed from, K of them in this step.

        ``recent``: the memory's block that holds what is needed of the last positions; ``keys``: the one of the keys.
        ``before``: number of positions of the key before that count, too.  The rows of ``recent``, I32
        [before + ratio, K]; with ``before`` the halves of rows: the first ones of the positions before, the second ones
        of the key's own.  The first position of each key, I32 [K].  And F32 [1, before + ratio, K]: -inf for what is
        before position 0, else 0.
        """
        first, ring, cells = self.shape.first, self._cells[self._window(recent)], self._cells[self._window(keys)]
        assert isinstance(cells, CompressedCells)
        ratio, count = cells.ratio, self.shape.n_seq * cells.n_rows(self.shape.n)
        among = np.arange(before + ratio) < before

        def begin(tokens: Tokens) -> npt.ArrayLike:
            return np.maximum(cells.completed(tokens.positions), 0).reshape(-1) * ratio

        def sources(tokens: Tokens) -> npt.ArrayLike:
            rows = cells.sources(ring, first, tokens.positions, before).reshape(count, -1)
            return 2 * rows + ~among if before else rows

        def absent(tokens: Tokens) -> npt.ArrayLike:
            is_first = cells.completed(tokens.positions).reshape(-1, 1, 1) <= 0
            return np.where(is_first & among[:, np.newaxis], -np.inf, 0)

        of = f"{before}+{ratio}"
        rows = self.input(f"sources {of}", gg.I32, (before + ratio, count), sources)
        hidden = self.input(f"absent {of}", gg.F32, (1, before + ratio, count), absent)
        return rows, self.whole_numbers(f"begin {ratio}", count, begin), hidden

    def places(self, ratio: int) -> Tensor:
        """The positions modulo ``ratio``, I32 [T]."""
        return self.whole_numbers(
            f"places {ratio}", self.n_tokens, lambda tokens: np.maximum(tokens.positions, 0).reshape(-1) % ratio
        )

    def _window(self, number: int) -> int:
        kind = self.memory.kinds[number]
        assert isinstance(kind, KeysValues)
        return kind.window

    def read(self, number: int, held: Tensor, d: int, n_head: int) -> Tensor:
        """The first ``d`` elements of each head in the cells that this step reads: a view [d, span, n_head, n_seq].

        ``held``: a tensor of the memory's block ``number``.
        """
        window, row = self._window(number), held.nb[1]
        part = self._cells[window].count * row
        head = row // n_head
        cells = gg.view(
            held,
            d,
            n_head,
            self.spans[window],
            self.shape.n_seq,
            nb=(head, row, part),
            offset=self.shape.first * part,
        )
        return gg.permute(cells, 0, 2, 1, 3)

    def state(self, number: int) -> list[Tensor]:
        """The parts of the state of block ``number`` before this step: views [elements, n_seq]."""
        shape = self.shape
        return [
            gg.view(part, part.ne[0], shape.n_seq, nb=(part.nb[1],), offset=shape.first * part.nb[1])
            for part in self.memory.blocks[number]
        ]

    def remember(self, number: int, *parts: Tensor) -> None:
        """Stores the parts of the state of block ``number`` after this step.

        Each part has the elements of all sequences, in any shape.
        """
        self._states += [
            gg.cpy(new, held, name=f"blk.{number}.state.{part}")
            for part, (new, held) in enumerate(zip(parts, self.state(number), strict=True))
        ]

    # -- the graph ---------------------------------------------------------------------------------

    def finish(
        self,
        x: Tensor,
        result: Tensor | None,
        name: str,
        *,
        patches: Sequence[GraphChange] = (),
        collect: Sequence[str] = (),
        vectors: Tensor | None = None,
    ) -> None:
        """Makes the graph that computes the result, if there is one, and updates the KV cache and the states.

        x: the output of the last block.  States are written as :func:`stored_early` says.  ``patches``:
        change values of nodes.  ``collect``: patterns of names of nodes whose values :attr:`collected` gives.
        ``vectors``: the node whose values it gives as :data:`VECTORS`.
        """
        outputs = [*self._writes, *self._states]
        if result is not None:
            outputs.insert(0, result)
        elif self._states:
            outputs.insert(0, x)
        if vectors is not None:
            outputs.append(vectors)
        if patches:
            outputs = patched(outputs, [each.scaled(self) for each in patches])
        self.result = result if result is None else outputs[0].set_output()
        self.graph = stored_early(Graph(*outputs, name=name), outputs)
        name_nodes(self.graph)
        self.collected = collected(self.graph, [each for each in collect if each != VECTORS or vectors is None])
        if vectors is not None:
            self.collected[VECTORS] = outputs[-1].set_output()
        # A graph without a result lacks the nodes after the last write, and the inputs that only these read.
        self._inputs = {name: each for name, each in self._inputs.items() if each[0] in self.graph.index}

    def axes_with(self, longer: Callable[[Shape], Step]) -> Axes:
        """The axes of tokens of :attr:`collected`; ``longer`` makes the step for :attr:`.Shape.longer`."""
        if self.axes is None:
            shape = self.shape.longer
            graph = longer(shape).graph
            assert graph is not None
            self.axes = axes_of_tokens(self.collected, graph, {1: shape.n_last, self.shape.n: shape.n})
        return self.axes

    def values(self, tokens: Tokens) -> list[npt.NDArray[Any]]:
        """The values of all inputs for the tokens of a step."""
        found = []
        for tensor, values in self._inputs.values():
            computed = np.asarray(values(tokens), tensor.type.dtype)
            found.append(computed if computed.shape == tensor.shape else np.broadcast_to(computed, tensor.shape))
        return found

    def fill(self, tokens: Tokens) -> None:
        """Sets all inputs.  The graph must be allocated."""
        for (tensor, _), values in zip(self._inputs.values(), self.values(tokens), strict=True):
            tensor.set_bytes(values)

    def compute(self, scheduler: Scheduler, tokens: Tokens) -> list[npt.NDArray[Any]]:
        """Computes the step; returns the result, if there is one, and the collected values in their order."""
        return self.compute_with(scheduler, self.values(tokens))

    def compute_with(self, scheduler: Scheduler, values: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """As :meth:`compute`, with the :attr:`values` of the tokens; always by the same scheduler."""
        feed = self._feed
        if feed is None:
            assert self.graph is not None
            outputs = [*([] if self.result is None else [self.result]), *self.collected.values()]
            inputs = [tensor for tensor, _ in self._inputs.values()]
            feed = self._feed = Feed(scheduler, self.graph, inputs, outputs)
        return feed(values)


def stored_early(graph: Graph, outputs: Sequence[Tensor]) -> Graph:
    """The graph with each new state stored as soon as no node reads the old one any more.

    The state that was computed is then still in a cache, and its memory serves the next block.  ``outputs``: of these,
    copies into tensors of a session's memory are the new states.
    """
    states = dict.fromkeys(each for each in outputs if isinstance(each.op, ops.Cpy))
    if not states:
        return graph
    read_until = {each.root: 0 for each in states}
    for node in graph.nodes:
        if node not in states and node.op is not None and not node.op.is_view:
            read_until |= {s.root: graph.index[node] for s in node.src if s is not None and s.root in read_until}
    due: dict[int, list[Tensor]] = {}
    for state in states:
        views = _with_views(state)
        needed = [graph.index[each] for view in views for each in view.src if each is not None and each not in views]
        due.setdefault(max(read_until[state.root], *needed), []).extend(reversed(views))
    ordered: dict[Tensor, None] = {}
    for position, tensor in enumerate(graph.tensors):
        if tensor not in states:
            ordered.setdefault(tensor)
        for each in due.get(position, ()):
            ordered.setdefault(each)
    return Graph.listed(list(ordered), graph.outputs, graph.name)


def _with_views(node: Tensor) -> list[Tensor]:
    """A node, and the views that it reads, each before what it is a view of."""
    found = [node]
    for each in found:
        found += [source for source in each.src if source is not None and source.op is not None and source.op.is_view]
    return found


def _vectors(n: int, tokens: Tokens) -> Floats:
    found = tokens.vectors
    if found is None or found.shape[1] != n:
        got = "none" if found is None else f"{found.shape[1]}"
        raise ParameterError(
            f"a head reads a vector of {n} elements with each token, got {got}",
            got=got,
            wanted=n,
            remedy="call decode(batch, vectors=...)",
        )
    return found


def _numbers(parts: Mapping[str, tuple[Tensor, Values]], shape: tuple[int, int], tokens: Tokens) -> Ints32:
    """The values of the common input of integers for the tokens of a step: a row for each part.

    It is not a method, because a step whose input refers to the step would be a reference cycle, and keep the weights
    in memory until the garbage collector runs.
    """
    numbers = np.zeros(shape, np.int32)
    for row, (tensor, values) in zip(numbers, parts.values(), strict=False):
        row[: tensor.ne[0]] = values(tokens)
    return numbers
