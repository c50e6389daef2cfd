"""Tensors: descriptions of values by type, shape, and the op that computes them; and contexts.

A :class:`Tensor` has ggml's four extents ``ne`` (innermost first) and byte strides ``nb``, a rank, and, if an op
computes it, the op and its sources.  There are two kinds:

* a *persistent* tensor (weight, input, KV cache) has a place of its own: ``buffer`` and ``offset``;
* an *intermediate* has none.  The allocation of the graph that computed it has its place.

A view shares the bytes of its root ``view_src``, ``view_offset`` bytes into it; a root is never a view.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from ggplug.errors import ParameterError, ShapeError, TensorStateError, TypeMismatchError, memory_errors_typed
from ggplug.sharing import accessing, freeing
from ggplug.system.copying import Uncopied
from ggplug.types import TensorFlag, Type, as_type
from ggplug.values.arrays import as_bytes, as_name, as_values, decode, encode, strided, whole_number
from ggplug.values.buffers import Buffer, BufferType
from ggplug.values.geometry import MAX_BYTES as MAX_BYTES
from ggplug.values.geometry import MAX_RANK, geometry
from ggplug.values.geometry import Extents as Extents
from ggplug.values.geometry import contiguous_strides as contiguous_strides
from ggplug.values.geometry import extents as extents
from ggplug.values.revisions import Revision

T = TypeVar("T")

Array = npt.NDArray[Any]


class Spec(NamedTuple):
    """The result of an op's shape rule: type, extents and rank of the op's result, and whether it is a view.

    ``nb``: only if the result is not contiguous.  ``view_of``: the number of the source of which the result is a view,
    ``view_offset`` bytes after that source's first byte.  The constructor of Tensor checks all of this.
    """

    type: Type
    ne: Extents
    rank: int
    nb: Extents | None = None
    view_of: Tensor | None = None
    view_offset: int = 0


class Indexes(NamedTuple):
    """The elements of source ``ids`` choose along dimension ``dim`` (ne order) of source ``of``; both by position.

    ``of`` None: they choose along that dimension of the result.
    """

    ids: int
    of: int | None
    dim: int


class Cost(NamedTuple):
    """What computing a node takes: arithmetic operations and bytes moved to and from memory."""

    flops: int
    bytes: int


class Operation:
    """The op of a tensor, as core uses it; :mod:`ggplug.ops.base` explains the attributes."""

    name: ClassVar[str] = ""
    sources: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[frozenset[str]] = frozenset()
    parameters: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[int, ...]] = ()
    inplace: ClassVar[tuple[int, ...]] = ()
    is_view: ClassVar[bool] = False
    moves: ClassVar[bool] = False
    indexes: ClassVar[Indexes | None] = None
    kinds: ClassVar[tuple[type, ...]] = ()
    """The classes whose kernels and patterns a device uses for an op: its own class, and those of the same package that
    it derives from.  An op of another package computes something else, also if it derives from one of core's."""

    key: tuple[Any, ...]
    """``(name, *parameters)``: builtins only, so that comparing and hashing it calls no Python code."""
    result: ClassVar[Callable[..., Spec]]
    reference: ClassVar[Callable[..., Array]]

    def cost(self, node: Tensor) -> Cost:
        """Operations and bytes of computing ``node``; by default one operation per element of the result."""
        moved = node.nbytes + sum(s.nbytes for s in node.src if s is not None)
        return Cost(node.size, moved)


if TYPE_CHECKING:  # only annotations name them
    G_contra = TypeVar("G_contra", contravariant=True)

    class Computed(Protocol[G_contra]):
        """The last computation of a graph, as tensors use it; implemented by :class:`ggplug.memory.Run`."""

        @property
        def serial(self) -> int: ...
        @property
        def thread(self) -> int: ...
        @property
        def current(self) -> bool: ...
        def locate(self, graph: G_contra, position: int) -> tuple[Buffer, int]: ...

    class Listing(Protocol):
        """A graph, as its tensors use it; implemented by :class:`ggplug.Graph`."""

        @property
        def index(self) -> Mapping[Tensor, int]: ...
        @property
        def run(self) -> Computed[Self] | None: ...
        @property
        def revision(self) -> Revision: ...


class Tensor(Uncopied):
    """A typed, strided array of up to four dimensions in a graph or in a buffer.

    ``ne``: extents, innermost first, always four.  ``nb``: byte strides, same order.  ``rank``: how many
    extents the shape has.  ``nbytes``: bytes from the first to the last byte, gaps included (ggml_nbytes).
    ``op``/``src``: the op that computes it and that op's sources (absent optional sources are ``None``); a leaf has
    ``op is None``.

    Raises ShapeError or TypeMismatchError for extents and strides that no tensor can have, and for a view that leaves
    the bytes of its root.
    """

    __slots__ = (
        "__weakref__",
        "_graphs",
        "buffer",
        "buffer_type",
        "flags",
        "name",
        "nb",
        "nbytes",
        "ne",
        "offset",
        "op",
        "rank",
        "src",
        "type",
        "view_offset",
        "view_src",
    )

    # How these leafs are copied is in ggplug.host.
    _INSTEAD = "copy its values with numpy(): only leafs with values in host memory are copied and sent"

    type: Type
    ne: Extents
    nb: Extents
    nbytes: int
    rank: int
    op: Operation | None
    src: tuple[Tensor | None, ...]
    view_src: Tensor | None
    view_offset: int
    buffer: Buffer | None
    buffer_type: BufferType | None
    offset: int
    flags: int
    name: str
    """Its name; empty if it has none.  :meth:`named` checks a new one."""
    _graphs: list[weakref.ref[Listing]] | None

    # NumPy must call __radd__ for ``array + tensor`` instead of looping over the tensor.
    __array_ufunc__ = None

    def __init__(
        self, spec: Spec, op: Operation | None = None, src: tuple[Tensor | None, ...] = (), name: str = ""
    ) -> None:
        self.type, ne, self.rank, nb, parent, view_offset = spec
        self.ne, self.nb, self.nbytes, rank = geometry(self.type, ne, nb)
        if not rank <= self.rank <= MAX_RANK:
            raise ShapeError(f"a tensor with extents {ne} cannot have rank {self.rank}", got=self.rank)
        self.op = op
        self.src = src
        self.name = as_name(name)
        self.flags = 0
        self.buffer = None
        self.buffer_type = None
        self.offset = 0
        self._graphs = None
        if parent is None:
            self.view_src = None
            self.view_offset = 0
        else:
            self.view_src = parent if parent.view_src is None else parent.view_src
            self.view_offset = parent.view_offset + view_offset
            offset = self.view_offset
            if not 0 <= offset <= self.view_src.nbytes - self.nbytes or offset % self.type.alignment:
                raise self._misplaced_view()

    def _misplaced_view(self) -> ShapeError:
        kind, root, offset = self.type, self.root, self.view_offset
        if offset % kind.alignment:
            what = f"begins at byte {offset} of {root!r}; {kind.name} must begin at a multiple of {kind.alignment}"
        else:
            what = f"spans bytes {offset} to {offset + self.nbytes} of {root!r}, which has {root.nbytes}"
        return ShapeError(f"{self!r} {what}", tensor=self, got=offset, wanted=root.nbytes)

    # -- shape -------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """NumPy's shape: the first ``rank`` extents, outermost first."""
        return self.ne[: self.rank][::-1]

    @property
    def size(self) -> int:
        """Number of elements (ggml_nelements)."""
        return math.prod(self.ne)

    @property
    def nrows(self) -> int:
        """Number of rows of ``ne[0]`` elements (ggml_nrows)."""
        return self.ne[1] * self.ne[2] * self.ne[3]

    def is_contiguous(self) -> bool:
        """Whether elements follow each other without gaps in ``ne`` order (ggml_is_contiguous)."""
        return self.is_contiguous_from(0)

    def is_contiguous_from(self, dim: int) -> bool:
        """Whether strides above dimension ``dim`` are those of a contiguous tensor (ggml_is_contiguous_0 to _2).

        ``dim`` 0: all elements are contiguous; 1: there may be gaps between rows; 2: between matrices.  The stride of
        an extent of one is checked only above ``dim``, where higher strides must follow from it.  For a tensor without
        elements the strides are checked too.
        """
        ne, nb = self.ne, self.nb
        if self.nb == contiguous_strides(self.type, ne):
            return True
        expected = self.type.block_bytes
        if ne[0] != self.type.block_size and nb[0] != expected:
            return False
        expected = self.type.row_bytes(ne[0])
        for i in range(1, 4):
            if i > dim:
                if ne[i] != 1 and nb[i] != expected:
                    return False
                expected *= ne[i]
            else:
                expected = ne[i] * nb[i]
        return True

    def is_transposed(self) -> bool:
        """Whether elements of a row lie further apart than rows (ggml_is_transposed).

        Only strides are compared: a contiguous tensor with ne0 = 0 counts as transposed, because its rows have no
        bytes.
        """
        return self.nb[0] > self.nb[1]

    def is_permuted(self) -> bool:
        """Whether dimensions are out of stride order (ggml_is_permuted), by strides only, as :meth:`is_transposed`."""
        nb = self.nb
        return nb[0] > nb[1] or nb[1] > nb[2] or nb[2] > nb[3]

    @property
    def is_view(self) -> bool:
        return self.view_src is not None

    @property
    def root(self) -> Tensor:
        """The tensor that owns the bytes: itself, or the tensor that it is a view of."""
        return self if self.view_src is None else self.view_src

    # -- marks -------------------------------------------------------------------------------------

    def named(self, name: str) -> Tensor:
        """Sets the name and returns the tensor (ggml_set_name)."""
        self.name = as_name(name)
        return self

    def mark(self, flag: TensorFlag) -> Tensor:
        """Adds a flag and returns the tensor (ggml_set_input, _output, _param, _loss)."""
        flags, buffer = self.flags | int(flag), self.root.buffer
        self._changed(buffer)  # before the change, too: as in :meth:`place`
        self.flags = flags
        self._changed(buffer)
        return self

    def set_input(self) -> Tensor:
        """Marks a leaf that the caller fills before each computation."""
        return self.mark(TensorFlag.INPUT)

    def set_output(self) -> Tensor:
        """Marks a result that the caller will read: its bytes are never reused within the graph."""
        return self.mark(TensorFlag.OUTPUT)

    # -- place -------------------------------------------------------------------------------------

    def place(self, buffer: Buffer | None, offset: int = 0) -> None:
        """Makes the tensor persistent at ``offset`` bytes into ``buffer``; ``None`` removes its place.

        Only roots have a place; a view follows its root.  Raises ParameterError for a view; BufferUseError if the
        tensor would not lie inside of the buffer (see :meth:`Buffer.check_place`), or the buffer was freed;
        TypeMismatchError if ``buffer`` is no buffer, or ``offset`` no integer.  Then the tensor keeps its place.
        """
        if self.view_src is not None:
            raise ParameterError(f"{self!r} is a view: place its root {self.view_src!r}", tensor=self)
        if buffer is None:
            offset = 0
        elif (check := getattr(buffer, "check_place", None)) is not None:
            offset = check(self, offset)
        else:
            raise TypeMismatchError(f"{self!r} can only be placed in a Buffer, got {buffer!r}", tensor=self, got=buffer)
        before, buffer_type = self.buffer, None if buffer is None else buffer.type
        # Before the change, too: an interrupt may prevent the second call.
        self._changed(before)
        self.buffer, self.buffer_type, self.offset = buffer, buffer_type, offset
        self._changed(before)

    def _changed(self, buffer: Buffer | None) -> None:
        """Advances the revisions of graphs with this tensor; ``buffer``: that of its root before the change."""
        if buffer is not None:
            buffer.watchers.advance()
        for reference in self._graphs or ():
            graph = reference()
            if graph is not None:
                graph.revision.advance()

    def locate(self) -> tuple[Buffer, int]:
        """``(buffer, offset)`` of the tensor's value.

        Raises TensorStateError if there is none: not placed, not computed yet, or reused since.
        """
        buffer, offset, _ = self._find()
        if buffer.unset:
            buffer.fill(offset, self.nbytes)  # the caller may write to this place
        return buffer, offset

    def _find(self) -> tuple[Buffer, int, Computed[Listing] | None]:
        """As :meth:`locate`, and for an intermediate the run that computed it."""
        root = self.root
        buffer = root.buffer
        if buffer is not None:
            return buffer, root.offset + self.view_offset, None
        latest: tuple[Listing, Computed[Listing]] | None = None
        of_others: tuple[Listing, Computed[Listing]] | None = None
        for reference in self._graphs or ():
            graph = reference()
            run = None if graph is None else graph.run
            if graph is None or run is None:
                continue
            if run.thread and run.thread != get_ident():
                of_others = graph, run
            elif latest is None or run.serial > latest[1].serial:
                latest = graph, run
        found = latest or of_others  # runs of other threads that are not done are used only if there is no other
        if found is None:
            raise TensorStateError(
                f"{self!r} has no bytes: no graph with it was allocated or computed, or that graph, its scheduler or "
                "the memory was freed",
                tensor=self,
                remedy="allocate it, or compute a graph with it, and keep that",
            )
        graph, run = found
        return *run.locate(graph, graph.index[self]), run

    def access(self, action: Callable[[Buffer, int], T]) -> T:
        """The result of ``action(buffer, offset)`` for the tensor's place, while no other thread uses that buffer.

        Waits for computations in it.  Raises as :meth:`locate`.
        """
        while True:
            buffer, offset, run = self._find()
            with accessing(buffer):
                # While this thread waited, the bytes may have become those of another tensor.
                if run is not None:
                    unmoved = run.current
                else:
                    root = self.root
                    unmoved = root.buffer is buffer and root.offset + self.view_offset == offset
                if unmoved:
                    return action(buffer, offset)

    # -- values ------------------------------------------------------------------------------------

    def set(self, values: Any) -> Tensor:
        """Stores values and returns the tensor.

        ``values``: anything with the buffer protocol, ``__array_interface__`` or DLPack, or nested sequences
        and scalars; its shape must be ``self.shape`` (a scalar fills the tensor).  Floats are rounded to the tensor's
        type; for quantised types by :func:`ggplug.quantize`, where blocks with NaN or infinities become NaN.  Raises
        ShapeError, TypeMismatchError, TensorStateError; BufferUseError for read-only memory.
        """
        array = as_values(values)
        if array.ndim and array.shape != self.shape:
            raise ShapeError(
                f"cannot set {self!r}: values have shape {array.shape}, the tensor {self.shape}",
                tensor=self,
                got=array.shape,
                wanted=self.shape,
            )
        full = np.broadcast_to(array, self.shape).reshape(self.ne[::-1])
        return self._store(as_bytes(encode(full, self.type)), 0, elements=not self.is_contiguous())

    def numpy(self) -> npt.NDArray[Any]:
        """A copy of the values in ``self.shape``, after waiting for pending work on them.

        Plain types keep their dtype (BF16 widens to float32); quantised types are decoded to float32.  A tensor
        without elements gives an empty array.  Raises TensorStateError if the tensor has no bytes or they were reused.
        """
        return np.ascontiguousarray(decode(self._fetched(), self)).reshape(self.shape)

    def set_bytes(self, data: Any, offset: int = 0) -> Tensor:
        """Stores raw bytes at ``offset`` bytes into the tensor (ggml_backend_tensor_set).

        For a strided tensor, ``data`` is either all elements without gaps, or a range of its bytes with gaps.  Raises
        ShapeError if they do not fit, TypeMismatchError, TensorStateError; BufferUseError for read-only memory.
        """
        raw, offset = as_bytes(data), whole_number(offset, "the offset")
        packed = self.type.row_bytes(self.ne[0]) * self.nrows
        return self._store(raw, offset, elements=raw.size == packed != self.nbytes and offset == 0)

    def _store(self, data: npt.NDArray[np.uint8], offset: int, *, elements: bool) -> Tensor:
        """Stores bytes; ``elements``: they are all elements in their order, of a tensor in which they lie otherwise."""

        def store(buffer: Buffer, start: int) -> None:
            raw = self._spread(data, buffer, start) if elements and data.size else data
            if offset < 0 or offset + raw.size > self.nbytes:
                raise ShapeError(
                    f"{raw.size} bytes at offset {offset} do not fit into the {self.nbytes} bytes of {self!r}",
                    tensor=self,
                    got=raw.size,
                    wanted=self.nbytes,
                )
            buffer.set_tensor(self, raw, start, offset)
            if raw.size and buffer.unset:
                buffer.fill(start, self.nbytes)

        self.access(store)
        return self

    def set_zero(self) -> Tensor:
        """Sets every element to zero and returns the tensor (ggml_set_zero); bytes between strided rows are kept.

        Raises what :meth:`set_bytes` raises.
        """
        return self.set_bytes(np.zeros(self.type.row_bytes(self.ne[0]) * self.nrows, np.uint8))

    def tobytes(self) -> bytes:
        """The raw bytes of the tensor, gaps included (ggml_backend_tensor_get)."""
        return self._fetched().tobytes()

    def item(self) -> Any:
        """The value of a tensor with one element.  Raises ShapeError for other tensors; TensorStateError."""
        if self.size != 1:
            raise ShapeError(f"{self!r} has {self.size} elements, not one", tensor=self, got=self.size, wanted=1)
        return self.numpy().item()

    @memory_errors_typed
    def _fetched(self) -> npt.NDArray[np.uint8]:
        raw = np.empty(self.nbytes, np.uint8)
        self.access(lambda buffer, offset: buffer.get_tensor(self, raw, offset))
        return raw

    @memory_errors_typed
    def _spread(self, packed: npt.NDArray[np.uint8], buffer: Buffer, start: int) -> npt.NDArray[np.uint8]:
        """Elements without gaps in the layout of a strided tensor, with the bytes that its gaps have now."""
        raw = np.empty(self.nbytes, np.uint8)
        buffer.get_tensor(self, raw, start)
        target = strided(raw, self)
        target[...] = packed.view(target.dtype).reshape(target.shape)
        return raw

    # -- presentation ------------------------------------------------------------------------------

    def __repr__(self) -> str:
        label = f" {self.name!r}" if self.name else ""
        shape = "x".join(map(str, self.ne[: self.rank])) or "scalar"
        made = f" = {self.op!r}" if self.op is not None else ""
        where = f" in {self.root.buffer.type.name}" if self.root.buffer is not None else ""
        return f"<Tensor{label} {self.type.name} [{shape}]{made}{where}>"

    if TYPE_CHECKING:  # ggplug.ops.operators defines them; this module cannot import ``ops``

        def __add__(self, other: Tensor | float) -> Tensor: ...
        def __radd__(self, other: float) -> Tensor: ...
        def __sub__(self, other: Tensor | float) -> Tensor: ...
        def __rsub__(self, other: float) -> Tensor: ...
        def __mul__(self, other: Tensor | float) -> Tensor: ...
        def __rmul__(self, other: float) -> Tensor: ...
        def __truediv__(self, other: Tensor | float) -> Tensor: ...
        def __rtruediv__(self, other: float) -> Tensor: ...
        def __neg__(self) -> Tensor: ...
        def __pos__(self) -> Tensor: ...
        def __abs__(self) -> Tensor: ...

    def __bool__(self) -> bool:
        raise TypeMismatchError("a tensor has no truth value: read it with .item() or .numpy()", tensor=self)

    def __len__(self) -> int:
        if not self.rank:
            raise TypeMismatchError("a scalar tensor has no length", tensor=self)
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        raise TypeMismatchError(
            "a tensor is a description, which cannot be iterated over: use tensor.numpy()", tensor=self
        )


def new_tensor(type: Type | str, ne: int | Iterable[int], name: str = "") -> Tensor:
    """A leaf without bytes: ``ne`` innermost first (ggml_new_tensor).

    Place it with a :class:`Context`, or let the graph's allocation place it and set it after that.
    Raises ShapeError (more than four extents, a row that is no whole number of blocks), ParameterError.
    """
    full, rank = extents(ne)
    return Tensor(Spec(as_type(type), full, rank), name=name)


class Context(Uncopied):
    """A named set of persistent tensors that are allocated together, such as a model's weights.

    ``ggplug.memory.allocate`` places all of them; the context then owns the buffers.  As a context manager it frees
    them at the end.
    """

    _INSTEAD = "copy the values of its tensors, with numpy()"

    def __init__(self, name: str = "") -> None:
        self.name = as_name(name)
        self.tensors: list[Tensor] = []
        self.buffers: list[Buffer] = []
        self._by_name: dict[str, Tensor] = {}
        self._members: set[Tensor] = set()

    def new_tensor(self, type: Type | str, ne: int | Iterable[int], name: str = "") -> Tensor:
        """A leaf that belongs to this context; see :func:`new_tensor`.  A name is used once."""
        return self.add(new_tensor(type, ne, name))

    def add(self, tensor: Tensor) -> Tensor:
        """Adds a tensor.  Raises ParameterError if the context has it already, or has another one of that name."""
        if tensor in self._members:
            raise ParameterError(f"context {self.name!r} already has {tensor!r}", tensor=tensor)
        if tensor.name:
            if tensor.name in self._by_name:
                raise ParameterError(f"context {self.name!r} already has a tensor {tensor.name!r}", tensor=tensor)
            self._by_name[tensor.name] = tensor
        self._members.add(tensor)
        self.tensors.append(tensor)
        return tensor

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self._by_name[name]
        except KeyError:
            raise ParameterError(f"context {self.name!r} has no tensor {name!r:.100}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def get(self, name: str) -> Tensor | None:
        """The tensor of that name, or None."""
        return self._by_name.get(name)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors except views, without padding."""
        return sum(t.nbytes for t in self.tensors if not t.is_view)

    def free(self) -> None:
        """Removes the places of all tensors and frees the buffers, after waiting for computations that use them.

        Raises BufferUseError while zero-copy views of a buffer exist, and BusyError if it is called from within such a
        computation; then nothing is changed.
        """
        with freeing(*self.buffers):
            for buffer in self.buffers:
                buffer.check_free()
            for tensor in self.tensors:
                if not tensor.is_view and tensor.buffer in self.buffers:
                    tensor.place(None)
            for buffer in self.buffers:
                buffer.free()
            self.buffers.clear()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *exc: object) -> None:
        self.free()

    def __repr__(self) -> str:
        return f"<Context {self.name!r}: {len(self.tensors)} tensors, {self.nbytes / 2**20:.1f} MiB>"


# -- for ops ---------------------------------------------------------------------------------------


def like(tensor: Tensor, type: Type | None = None) -> Spec:
    """The spec of a contiguous tensor with the same extents (ggml_dup_tensor)."""
    return Spec(type or tensor.type, tensor.ne, tensor.rank)


def describe(tensors: Sequence[Tensor | None]) -> str:
    """Names, types and extents for an error message: ``w f32 [64x32], x f16 [64x7]``."""
    return ", ".join(
        f"{t.name or f'source {i}'} {t.type.name} [{'x'.join(map(str, t.ne[: t.rank]))}]"
        for i, t in enumerate(tensors)
        if t is not None
    )
