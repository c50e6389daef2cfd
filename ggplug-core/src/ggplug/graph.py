"""Graphs: the order in which nodes are computed, and the signature by which two graphs are equal.

A graph lists tensors and never changes them.  So the same tensors can be in several graphs, and one graph can be
placed, split and pipelined in several ways at once.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from operator import attrgetter, is_, itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ggplug.display import pictures
from ggplug.errors import BufferUseError, GraphError, TensorStateError
from ggplug.system import lazy
from ggplug.tensor import Tensor
from ggplug.values.buffers import Buffer, BufferType
from ggplug.values.revisions import Revision

if TYPE_CHECKING:
    from pathlib import Path

    from ggplug.tensor import Computed, Listing

T = TypeVar("T")

Layouts: TypeAlias = "tuple[tuple[int, BufferType], ...]"
"""Positions of the tensors that lie in memory with a layout of its own, each with the type of that memory."""

_listing = threading.RLock()
"""Held while a tensor's list of graphs is replaced: two threads may build graphs over the same tensors."""
_TRIES = 10
_buffer = attrgetter("buffer")
_flags = attrgetter("flags")
_buffer_type = attrgetter("buffer_type")


class RunPlaces(Protocol):
    """The places of a run, as a graph uses them; implemented by :class:`ggplug.memory.Allocation`."""

    @property
    def slots(self) -> npt.NDArray[np.int64]: ...
    @property
    def unplaced(self) -> Sequence[int]: ...
    def place(self, graph: Graph, position: int) -> tuple[Buffer, int]: ...


if TYPE_CHECKING:  # only annotations name it

    class Run(Computed["Graph"], Protocol):
        """The record of a computation or allocation of a graph; implemented by :class:`ggplug.memory.Run`."""

        @property
        def allocation(self) -> RunPlaces: ...


class Signature:
    """What must be equal for two graphs to share plans, splits and allocations.

    Per tensor: op with parameters, type, extents, strides, sources by position, view root and offset, flags, and the
    buffer type of a persistent tensor.  ``shared`` lists the persistent tensors that share bytes with an earlier one:
    ``(position, position of the tensor that begins first, bytes between the two beginnings)``.
    Only builtins and identities are compared, so a comparison costs a constant number of Python calls.
    """

    __slots__ = ("_hash", "buffer_types", "entries", "flags", "shared")

    def __init__(
        self,
        entries: tuple[Any, ...],
        flags: tuple[int, ...],
        buffer_types: tuple[Any, ...],
        shared: tuple[tuple[int, int, int], ...],
    ) -> None:
        self.entries = entries
        self.flags = flags
        self.buffer_types = buffer_types
        self.shared = shared
        self._hash = hash((entries, flags))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Signature)
            and self._hash == other._hash
            and self.flags == other.flags
            and self.buffer_types == other.buffer_types
            and self.shared == other.shared
            and self.entries == other.entries
        )


def _shared(tensors: Sequence[Tensor], buffer_types: tuple[Any, ...]) -> tuple[tuple[int, int, int], ...]:
    """Which persistent tensors share bytes: callers place them, and may do that on purpose."""
    places = []
    for position, tensor in compress(enumerate(tensors), buffer_types):
        buffer = tensor.buffer
        if buffer is not None and tensor.nbytes:
            host = buffer.address
            start = tensor.offset + (host or 0)
            places.append((id(buffer) if host is None else 0, start, start + tensor.nbytes, position))
    places.sort()
    found: list[tuple[int, int, int]] = []
    first, end = (-1, 0, 0, 0), 0
    for place in places:
        memory, start, stop, position = place
        if memory == first[0] and start < end:
            if not found or found[-1][1] != first[3]:
                found.append((first[3], first[3], 0))
            found.append((position, first[3], start - first[1]))
            end = max(end, stop)
        else:
            first, end = place, stop
    return tuple(found)


class _Held:
    """A reference to a graph that, unlike a weak one, keeps it alive."""

    __slots__ = ("_graph",)

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def __call__(self) -> Graph:
        return self._graph


class Graph:
    """Nodes in the order of computation, with the leafs that they read.

    ``Graph(a, b)`` adds the outputs ``a`` and ``b`` and all that they are computed from (ggml_build_forward_expand):
    every source comes before its users, sources from left to right.  The nodes of an earlier :meth:`expand` come first,
    so expand a write before a read that must follow it.

    ``tensors``: all tensors in order of discovery; ``nodes``: those with an op; ``leafs``: the others;
    ``index``: position of a tensor in ``tensors``.  ``outputs``: the tensors that were expanded.

    The same as positions in ``tensors``: ``order`` has the position of each node; ``sources`` has for each tensor the
    positions of its sources (-1 for absent ones); ``roots`` has for each tensor the position of its root (its own if it
    is no view).

    A graph that :meth:`backward` makes has ``gradients`` and ``accumulators``, by the tensors whose gradients they are.
    """

    gradients: Mapping[Tensor, Tensor] = MappingProxyType({})
    accumulators: Mapping[Tensor, Tensor] = MappingProxyType({})

    def __init__(self, *outputs: Tensor, name: str = "") -> None:
        self.name = name
        self.tensors: list[Tensor] = []
        self.nodes: list[Tensor] = []
        self.leafs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.index: dict[Tensor, int] = {}
        self.order: list[int] = []
        self.sources: list[tuple[int, ...]] = []
        self.roots: list[int] = []
        self.positions: list[int] | None = None
        """Of a part: positions of its tensors in the whole graph's ``tensors``."""
        self.run: Run | None = None
        """The record of the last computation or allocation.  Each makes a new object, so that threads that compute or
        read the graph at the same time see either the old or the new one."""
        self.revision = Revision()
        """Its number increases when a tensor of the graph is marked or gets another place, or when a buffer of them is
        freed; see :meth:`watch`.  Parts have the revision of the whole graph."""
        # Tensors that were persistent when they were added, and their roots; replaced together, for other threads.
        self._unlisted: tuple[list[Tensor], list[Tensor]] = [], []
        self._entries: list[tuple[Any, ...]] = []
        self._leaf_order: list[int] | None = None
        self._signature: tuple[int, Signature] | None = None
        self._structure: tuple[Any, ...] | None = None
        self._reference: weakref.ref[Listing] = weakref.ref(self)
        for tensor in outputs:
            self.expand(tensor)

    @classmethod
    def part(
        cls, nodes: Sequence[Tensor], name: str = "", *, whole: Graph | None = None, apart: Collection[Tensor] = ()
    ) -> Graph:
        """A graph of these nodes only, in this order; every source that is none of them becomes a leaf.

        The scheduler's splits are such parts of the ``whole`` graph.  With ``whole``, the part has the ``positions`` of
        its tensors there, :meth:`over` makes the same part of an equal graph, and results are located through the
        whole graph.  ``apart``: tensors that the part's allocation places at copies; they are leafs and share bytes
        with no other tensor, even if they are views.
        """
        graph = cls(name=name)
        if whole is not None:
            graph.positions, graph.revision = [], whole.revision
        for node in nodes:
            if node.op is None or node in graph.index:
                raise GraphError(f"{node!r} is a leaf of the part, or comes after its users", tensor=node)
            for source in node.src:
                if source is not None and source not in graph.index:
                    if source in apart:
                        graph._remember(source, None, (), len(graph.tensors))
                        graph.leafs.append(source)
                    else:
                        graph._add_leaf(source)
            graph._add(node)
        if whole is not None:
            graph.positions = [whole.index[tensor] for tensor in graph.tensors]
        return graph

    @classmethod
    def listed(cls, tensors: Sequence[Tensor], outputs: Sequence[Tensor] = (), name: str = "") -> Self:
        """A graph of exactly these tensors, in this order; those with an op are its nodes.

        ``outputs``: which of them :attr:`outputs` has.  Raises GraphError if a tensor comes before one of its sources
        or its root, or twice, or if an output is not in the list.
        """
        graph = cls(name=name)
        for tensor in tensors:
            needed = (tensor.root, *tensor.src) if tensor.is_view else tensor.src
            if tensor in graph.index or any(each is not None and each not in graph.index for each in needed):
                raise GraphError(f"{tensor!r} is listed twice, or before a source or its root", tensor=tensor)
            (graph._add_leaf if tensor.op is None else graph._add)(tensor)
        for output in outputs:
            if output not in graph.index:
                raise GraphError(f"the output {output!r} is not in the list", tensor=output)
            graph.outputs.append(output)
        return graph

    def over(self, whole: Graph) -> Graph:
        """The part of ``whole`` with the same positions as this part has in its own graph.

        ``whole`` must be equal to that graph.  Makes no Python call per tensor.  Raises GraphError if this graph is no
        part of another one, or ``whole`` has too few tensors.
        """
        if self.positions is None or (self.positions and max(self.positions) >= len(whole.tensors)):
            raise GraphError(f"{self!r} is no part of {whole!r}")
        part = Graph(name=self.name)
        part.revision = whole.revision
        part.positions, part.order, part.sources, part.roots = self.positions, self.order, self.sources, self.roots
        part.tensors = list(map(whole.tensors.__getitem__, self.positions))
        part.nodes = list(map(part.tensors.__getitem__, self.order))
        if self._leaf_order is None:
            self._leaf_order = sorted(set(range(len(self.tensors))).difference(self.order))
        part._leaf_order = self._leaf_order
        part.leafs = list(map(part.tensors.__getitem__, self._leaf_order))
        part.index = dict(zip(part.tensors, range(len(part.tensors)), strict=True))
        part._entries = self._entries
        part._structure = self.structure
        return part

    def expand(self, *outputs: Tensor) -> Graph:
        """Adds ``outputs`` and the tensors that they are computed from, and returns the graph.

        Raises GraphError for a part of another graph, and for arguments that are no tensors.  If it raises, the graph
        stays as it was.
        """
        if self.positions is not None:
            raise GraphError(f"{self!r} is a part of another graph: expand the whole one")
        known = len(self.tensors), len(self.nodes), len(self.leafs), len(self.outputs)
        try:
            self._expand(outputs)
        except BaseException:
            self._shrink(*known)
            raise
        return self

    def _shrink(self, tensors: int, nodes: int, leafs: int, outputs: int) -> None:
        """Restores earlier numbers of tensors, nodes, leafs and outputs by removing the last ones."""
        del self.tensors[tensors:], self.roots[tensors:], self.sources[tensors:], self._entries[tensors:]
        del self.nodes[nodes:], self.order[nodes:], self.leafs[leafs:], self.outputs[outputs:]
        self.index = {tensor: position for position, tensor in enumerate(self.tensors)}
        kept = [(tensor, root) for tensor, root in zip(*self._unlisted, strict=False) if tensor in self.index]
        self._unlisted = [tensor for tensor, _ in kept], [root for _, root in kept]
        self._signature = self._structure = None
        self.revision.advance()

    def _expand(self, outputs: Sequence[Tensor]) -> None:
        known = len(self.tensors)
        for output in outputs:
            if not isinstance(output, Tensor):
                raise GraphError(f"a graph is expanded from tensors, got {type(output).__name__}", got=output)
            self.outputs.append(output)
            if output in self.index:
                continue
            # Depth first with an explicit stack: models are deeper than Python's recursion limit.
            stack: list[tuple[Tensor, int]] = [(output, 0)]
            while stack:
                tensor, position = stack.pop()
                src = tensor.src
                while position < len(src):
                    source = src[position]
                    position += 1
                    if source is not None and source not in self.index:
                        stack.append((tensor, position))
                        stack.append((source, 0))
                        break
                else:
                    if tensor not in self.index:
                        if tensor.op is None:
                            self._add_leaf(tensor)
                        else:
                            self._add(tensor)
        if len(self.tensors) != known:
            self.revision.advance()

    def expand_one_of(self, outputs: Sequence[Tensor], chosen: int) -> Tensor:
        """Adds what is needed to compute ``outputs[chosen]``, and returns that tensor (ggml_build_forward_select).

        The other outputs are left out.  ggml adds them without computing them, to lay out memory only once; here
        schedulers keep a layout for each of the resulting graphs.  Raises GraphError if there is no such output.
        """
        if not 0 <= chosen < len(outputs):
            raise GraphError(f"expand_one_of: there is no output {chosen}, only {len(outputs)} outputs", got=chosen)
        self.expand(outputs[chosen])
        return outputs[chosen]

    def _add(self, node: Tensor) -> None:
        index = self.index
        root = node.view_src
        if root is not None and root not in index:
            self._add_leaf(root)
        self.order.append(len(self.tensors))
        self._remember(
            node,
            node.op.key,  # type: ignore[union-attr]
            tuple([-1 if s is None else index[s] for s in node.src]),
            len(self.tensors) if root is None else index[root],
        )
        self.nodes.append(node)

    def _add_leaf(self, leaf: Tensor) -> None:
        root = leaf.view_src
        if root is not None and root not in self.index:
            self._add_leaf(root)
        self._remember(leaf, None, (), len(self.tensors) if root is None else self.index[root])
        self.leafs.append(leaf)

    def _remember(self, tensor: Tensor, op: tuple[Any, ...] | None, src: tuple[int, ...], root: int) -> None:
        self.index[tensor] = len(self.tensors)
        self.tensors.append(tensor)
        self.roots.append(root)
        self.sources.append(src)
        self._entries.append((op, tensor.type.id, tensor.ne, tensor.nb, src, root, tensor.view_offset))
        self._signature = self._structure = None
        if self.positions is not None:
            return  # results are located through the whole graph
        owner = tensor.root
        if owner.buffer is None:
            self._list(tensor)
        else:
            self._unlisted[0].append(tensor)
            self._unlisted[1].append(owner)

    def _list(self, tensor: Tensor) -> None:
        """Adds the graph to the list that an intermediate keeps of its graphs."""
        with _listing:
            others = tensor._graphs
            if others is None:
                tensor._graphs = [self._reference]
            elif len(others) & len(others) - 1:
                others.append(self._reference)
            else:  # freed graphs are removed at powers of two only: a tensor may be in thousands
                tensor._graphs = [r for r in others if r() is not None] + [self._reference]

    # -- staleness ---------------------------------------------------------------------------------

    def watch(self) -> int:
        """The number of the graph's revision, which from now on increases with every change that makes plans stale.

        Such changes are: a flag or the place of a tensor, a freed buffer, or the usage of a buffer.  Keep the number
        with what is made of the tensors after this call: that is valid while ``revision.now`` equals the number.
        Makes no Python call per tensor, and reads no tensor if nothing changed since the last call.
        """
        revision = self.revision
        while True:
            now = revision.now
            if revision.watched == now:
                return now
            before = list(map(_buffer, self.tensors))
            for buffer in set(before):
                if buffer is not None:
                    buffer.watchers.add(revision)
            if None in map(_buffer, self._unlisted[1]):
                self._list_again()
            # Another thread may have placed a tensor in a buffer that does not know the graph yet.
            if before == list(map(_buffer, self.tensors)):
                if self.positions is None:  # a part watches the buffers of its own tensors only
                    revision.watched = now
                return now

    def _list_again(self) -> None:
        """Adds the graph again to tensors that lost their place and are intermediates now."""
        pairs = list(zip(*self._unlisted, strict=True))
        for tensor, root in pairs:
            if root.buffer is None:
                self._list(tensor)
        kept = [(tensor, root) for tensor, root in pairs if self._reference not in (tensor._graphs or ())]
        self._unlisted = [tensor for tensor, _ in kept], [root for _, root in kept]

    # -- equality ----------------------------------------------------------------------------------

    @property
    def structure(self) -> tuple[Any, ...]:
        """What a :class:`Signature` says per tensor, without flags and places.

        The same object until the graph is expanded; parts of equal graphs have the same object too.
        """
        if self._structure is None:
            self._structure = tuple(self._entries)
        return self._structure

    def check_structure(self, structure: tuple[Any, ...], what: str) -> tuple[Any, ...]:
        """Raises GraphError unless the graph has this structure; ``what``, for the message, was made for it.

        Returns the graph's own structure: callers keep it, so that the next comparison is one of identities.
        """
        own = self.structure
        if own is not structure and own != structure:
            raise GraphError(f"{what} was made for another graph, which is not equal to {self!r}")
        return own

    def layouts(self) -> Layouts:
        """Positions of the tensors, views included, that now lie in memory with a layout of its own, with its type.

        Kernels depend on it (:func:`~ggplug.nodes.groups.signature_of` has the buffer type of every source's root), so
        a plan can be bound only to graphs with equal layouts.  Makes no Python call per tensor.
        """
        kinds = list(map(_buffer_type, self.tensors))
        own = {kind for kind in set(kinds) if kind is not None and kind.has_own_layout}
        if not own:
            return ()
        kinds = list(map(kinds.__getitem__, self.roots))
        chosen = list(map(own.__contains__, kinds))
        return tuple(zip(compress(range(len(kinds)), chosen), compress(kinds, chosen), strict=True))

    def check_layouts(self, layouts: Layouts, what: str) -> None:
        """Raises BufferUseError unless the graph has these :meth:`layouts`; ``what``, for the message, needs them."""
        own = self.layouts()
        if own == layouts:
            return
        position, kind = min(set(own) ^ set(layouts), key=itemgetter(0))
        tensor = self.tensors[position]
        now = dict(own).get(position)
        raise BufferUseError(
            f"{what} is for {tensor!r} in {'the layout of ' + kind.name if now is not kind else 'its plain layout'}",
            tensor=tensor,
            got=now,
            wanted=dict(layouts).get(position),
            remedy="make a new plan",
        )

    def signature(self) -> Signature:
        """The graph's structure as it is now, with flags, buffer types and shared bytes of its tensors."""
        last = self._signature
        if last is not None and last[0] == self.revision.now:
            return last[1]
        # The number is read first, and kept together with the result: other threads may change or read it meanwhile.
        now = self.watch()
        flags = tuple(map(_flags, self.tensors))
        buffer_types = tuple(map(_buffer_type, self.tensors))
        found = Signature(self.structure, flags, buffer_types, _shared(self.tensors, buffer_types))
        if last is not None and last[1] == found:
            found = last[1]
        self._signature = now, found
        return found

    def steadily(self, action: Callable[[], T]) -> T:
        """The result of ``action()``, during which no other thread changed the places of the graph's tensors.

        If another thread changed them, the action is repeated and its error is dropped.  Raises TensorStateError if
        that happens many times.
        """
        for _ in range(_TRIES):
            buffers = list(map(_buffer, self.tensors))
            flags = list(map(_flags, self.tensors))
            self._signature = None  # another thread may have changed a place and not increased the revision yet
            try:
                found = action()
            except Exception:
                if self._as_before(buffers, flags):
                    raise
            else:
                if self._as_before(buffers, flags):
                    return found
        raise TensorStateError(f"another thread keeps placing or marking tensors of {self!r} during this call")

    def _as_before(self, buffers: list[Any], flags: list[int]) -> bool:
        return flags == list(map(_flags, self.tensors)) and all(map(is_, buffers, map(_buffer, self.tensors)))

    # -- results -----------------------------------------------------------------------------------

    def locate(self, tensor: Tensor) -> tuple[Buffer, int]:
        """``(buffer, offset)`` of a tensor of this graph after its last run.

        Raises TensorStateError if it has no bytes, or if they were reused.
        """
        run = self.run
        if run is None or tensor not in self.index:
            raise TensorStateError(f"{tensor!r} was not computed: compute a graph that contains it", tensor=tensor)
        return run.locate(self, self.index[tensor])

    def live_with(self, *tensors: Tensor) -> None:
        """Keeps the graph alive as long as these tensors of it exist, so that they can be read during that time.

        Otherwise a graph exists as long as its user, or the scheduler that computed it last, refers to it.
        """
        held = _Held(self)
        for tensor in tensors:
            with _listing:
                others = [r for r in tensor._graphs or () if not isinstance(r, _Held) and r() is not None]
                tensor._graphs = [*others, held]  # type: ignore[list-item]

    # -- inspection --------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.nodes)

    def __contains__(self, tensor: object) -> bool:
        return tensor in self.index

    def node(self, position: int) -> Tensor:
        """The node at ``position``; negative ones count from the end (ggml_graph_node)."""
        try:
            return self.nodes[position]
        except IndexError:
            raise GraphError(f"{self!r} has no node {position}: it has {len(self.nodes)}") from None

    def __getitem__(self, name: str) -> Tensor:
        """The first tensor of that name (ggml_graph_get_tensor).  Raises GraphError."""
        found = self.get(name)
        if found is None:
            raise GraphError(f"no tensor {name!r} in {self!r}")
        return found

    def get(self, name: str) -> Tensor | None:
        """The first tensor of that name, or None."""
        return next((t for t in self.tensors if t.name == name), None)

    def users(self) -> dict[Tensor, list[Tensor]]:
        """For each tensor, the nodes that have it as a source, in order."""
        users: dict[Tensor, list[Tensor]] = {tensor: [] for tensor in self.tensors}
        for node in self.nodes:
            for source in dict.fromkeys(node.src):
                if source is not None:
                    users[source].append(node)
        return users

    def clear(self) -> None:
        """Removes all tensors from the graph (ggml_graph_clear), and leaves them unchanged."""
        for tensor in self.tensors:
            with _listing:
                if tensor._graphs is not None:
                    tensor._graphs = [r for r in tensor._graphs if r() is not self]
        self.tensors, self.nodes, self.leafs, self.outputs, self.index = [], [], [], [], {}
        self.order, self.sources, self.roots, self.positions, self._entries = [], [], [], None, []
        self._unlisted = [], []
        self._signature = self._structure = None
        self.run = None
        self.revision.advance()

    def __repr__(self) -> str:
        label = f" {self.name!r}" if self.name else ""
        return f"<Graph{label}: {len(self.nodes)} nodes, {len(self.leafs)} leafs>"

    def __str__(self) -> str:
        """A table of nodes and leafs (ggml_graph_print)."""
        return pictures.table(repr(self), self.tensors, self.nodes)

    def dot(self) -> str:
        """The graph in Graphviz's language (ggml_graph_dump_dot)."""
        return pictures.dot(self.tensors, self.nodes)

    def dump(self, path: str | Path) -> Path:
        """Writes a drawing as ``.dot``, or with Graphviz's program ``dot`` as ``.svg``, ``.png`` or ``.pdf``.

        Raises GraphError for another suffix, and when ``dot`` is missing or fails, FileKindError for a path that names
        a device, FIFO or folder, and other OSErrors.
        """
        return pictures.dump(self.dot(), path)

    # -- made of the graph -------------------------------------------------------------------------

    def backward(
        self,
        loss: Tensor | Iterable[Tensor] | None = None,
        wrt: Iterable[Tensor] | None = None,
        accumulators: Mapping[Tensor, Tensor] | None = None,
    ) -> Graph:
        """A new graph of the same tensors and of the gradients of ``loss`` (ggml_build_backward_expand).

        ``loss``: one number, or several whose sum is meant; by default the tensors that are marked with
        ``TensorFlag.LOSS``.  ``wrt``: the tensors whose gradients are wanted, by default those marked with
        ``TensorFlag.PARAM``; floats of this graph, leafs or not.  ``accumulators``: persistent F32 tensors to which the
        gradients of some of them are added; :meth:`reset` sets them to zero.  The others are marked as outputs.

        ``gradients[tensor]`` of the new graph is F32, and zeros for what the loss does not depend on.
        Raises GradientError if an op has no rule, if a gradient would pass a quantised tensor, or if it depends on
        bytes that the graph overwrites; GraphError for tensors that are not in the graph; ShapeError for other
        losses.
        """
        make = lazy.whole("ggplug.gradients").backward
        found: Graph = make(self, loss, wrt, accumulators)
        return found

    def reset(self) -> None:
        """Sets the accumulators to zero (ggml_graph_reset)."""
        for each in self.accumulators.values():
            each.set_zero()

    def save(
        self,
        path: str | Path,
        *,
        values: bool | Callable[[Tensor], bool] = True,
        models: Iterable[str | Path] = (),
        embed: bool = False,
    ) -> Path:
        """Writes the graph to a file that :func:`ggplug.load_graph` reads; see :func:`ggplug.saved.save_graph`."""
        save = lazy.whole("ggplug.saved").save_graph
        found: Path = save(self, path, values=values, models=models, embed=embed)
        return found
