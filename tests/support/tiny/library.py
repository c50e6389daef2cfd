"""The library in the tiny language: which of its programs compute a node, and how arguments are laid out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ggplug import ops
from ggplug.backend import Decline, Group
from ggplug.tensor import Tensor
from ggplug.types import F16, F32, I32, I64
from ggplug_simt import Launch, Launches, Library, Properties, TensorArgument, VendorProgram
from ggplug_simt.library import DST, FAULTS, NOTHING, SCRATCH, Program, argument, argument_of

LANES = 4
WORDS = 12
"""Words of a tensor in the argument struct: offset, extents, strides, padded to vectors of 16 bytes."""


class TinyProgram(NamedTuple):
    """A program: its kernel, its tensors, those that it stores in, and its lines."""

    kernel: str
    tensors: tuple[str, ...]
    stored: frozenset[str]
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kernel}[{' '.join(name for name in self.tensors if name in self.stored)}]"


def at(name: str, *indexes: str) -> str:
    """The byte of an element."""
    return " + ".join([f"{name}_offset", *(f"({i}) * {name}_nb{d}" for d, i in enumerate(indexes))])


def load(name: str, *indexes: str) -> str:
    return f"real(word({name}, {at(name, *indexes)}))"


def repeated(name: str) -> tuple[str, ...]:
    """An element of a tensor that is repeated to dst's extents."""
    return tuple(f"i{d} % {name}_ne{d}" for d in range(4))


ITEM = ("let item = group * lanes + lane", "when group < groups")
ELEMENT = (
    *ITEM,
    "when item < dst_ne0 * dst_ne1 * dst_ne2 * dst_ne3",
    "let i0 = item % dst_ne0",
    "let i1 = item // dst_ne0 % dst_ne1",
    "let i2 = item // (dst_ne0 * dst_ne1) % dst_ne2",
    "let i3 = item // (dst_ne0 * dst_ne1 * dst_ne2)",
)
HERE = ("i0", "i1", "i2", "i3")


def each(value: str) -> tuple[str, ...]:
    """A program that stores ``value`` in each element of dst."""
    return (*ELEMENT, f"store dst {at('dst', *HERE)} <- bits({value})")


NOTED = (
    "when not there and word(faults, faults_offset) == 0",
    *(f"store faults faults_offset + {4 * n} <- {word}" for n, word in enumerate(("plan", "node", "id"))),
)
"""Notes an id out of range, if it is the first."""


class TinyLibrary(Library):
    """Programs for add, mul, scale, relu, copies, get_rows, set_rows and sum_rows of float32.

    Copies to F16 are made where one item stores both halves of a word, because ``narrow_stores`` is not there.
    """

    language = "tiny"
    offset: np.dtype[Any] = np.dtype("<u4")
    record: np.dtype[Any] = np.dtype([("plan", "<u4"), ("node", "<u4"), ("id", "<i4")])

    def __init__(self, properties: Properties) -> None:
        self.properties = properties

    def match(self, group: Group) -> Launches | Decline:
        node = group.node
        if len(group) > 1:
            return Decline("every node is computed alone")
        if node.size == 0:
            return NOTHING
        chooser = getattr(self, f"_{node.op.name}", None) if node.op is not None else None
        if chooser is None:
            return Decline("the tiny library has no program for it")
        found: Launches | Decline = chooser(node)
        return found

    def text(self, program: Program) -> str:
        assert isinstance(program, TinyProgram)
        bindings = [f"binding {n} {'read_write' if n in program.stored else 'read'}" for n in program.tensors]
        members = [f"{n}_{word}" for n in program.tensors for word in MEMBERS]
        return "\n".join([*bindings, *(f"member {m}" for m in (*HEAD, *members)), *program.lines])

    def arguments(self, launch: Launch, **noted: int) -> npt.NDArray[np.uint8]:
        words = [launch.groups, launch.lanes, noted.get("plan", 0), noted.get("node", 0), *_scalars(launch.values)]
        for tensor in launch.tensors:
            words += [tensor.delta, *tensor.ne, *tensor.nb, 0, 0, 0]
        return np.array(words, np.uint32).view(np.uint8)

    def offset_of(self, program: Program | VendorProgram, number: int) -> int:
        return 4 * (len(HEAD) + WORDS * number)

    def aliased(self, program: Program, shared: frozenset[int]) -> TinyProgram:
        assert isinstance(program, TinyProgram)
        return program._replace(stored=program.stored | {program.tensors[n] for n in shared})

    # -- programs ----------------------------------------------------------------------------------

    def _launch(
        self, kernel: str, tensors: dict[str, TensorArgument], lines: tuple[str, ...], items: int, *values: float
    ) -> Launch:
        stored = frozenset(name for name, tensor in tensors.items() if tensor.written)
        program = TinyProgram(kernel, tuple(tensors), stored, lines)
        return Launch(program, -(-items // LANES), LANES, tuple(tensors.values()), values)

    def _map(self, node: Tensor, value: str, *values: float) -> Launches | Decline:
        if any(t is not None and t.type is not F32 for t in (node, *node.src)):
            return Decline("the tiny library computes with f32")
        assert node.op is not None
        tensors = {"dst": argument(DST, node)}
        for n, (name, source) in enumerate(zip("xy", node.src, strict=False)):
            assert source is not None
            tensors[name] = argument(n, source)
        return Launches(node.op.name, (self._launch(node.op.name, tensors, each(value), node.size, *values),))

    def _add(self, node: Tensor) -> Launches | Decline:
        return self._map(node, f"{load('x', *HERE)} + {load('y', *repeated('y'))}")

    def _mul(self, node: Tensor) -> Launches | Decline:
        return self._map(node, f"{load('x', *HERE)} * {load('y', *repeated('y'))}")

    def _relu(self, node: Tensor) -> Launches | Decline:
        x = load("x", *HERE)
        return self._map(node, f"{x} if {x} > 0 else 0.0")

    def _scale(self, node: Tensor) -> Launches | Decline:
        assert isinstance(node.op, ops.Scale)
        return self._map(node, f"{load('x', *HERE)} * real(p0) + real(p1)", node.op.s, node.op.bias)

    def _cont(self, node: Tensor) -> Launches | Decline:
        x = node.src[0]
        assert x is not None
        if node.type is F16 and x.type is F32 and not self.properties.narrow_stores:
            return self._halves(node, x)
        if node.ne != x.ne or (node.type, x.type) != (F32, F32):
            return Decline("the tiny library copies f32 between equal extents")
        tensors = {"dst": argument(DST, node), "x": argument(0, x)}
        lines = (*ELEMENT, f"store dst {at('dst', *HERE)} <- word(x, {at('x', *HERE)})")
        return Launches("copy", (self._launch("copy", tensors, lines, node.size),))

    _dup = _cont
    _cpy = _cont

    def _halves(self, node: Tensor, x: Tensor) -> Launches | Decline:
        """A word of two halves an item; declined where items would share a word."""
        whole = node.is_contiguous() and x.is_contiguous() and node.ne == x.ne and node.size % 2 == 0
        if not whole or node.view_offset % 4:
            return Decline("two items would store in one word")
        extents = (node.size // 2, 1, 1, 1)
        tensors = {
            "dst": argument(DST, node)._replace(ne=extents, nb=(4, 0, 0, 0)),
            "x": argument(0, x)._replace(ne=(x.size, 1, 1, 1), nb=(4, 0, 0, 0)),
        }
        low, high = (f"half({load('x', f'2 * item + {k}')})" for k in range(2))
        lines = (*ITEM, "when item < dst_ne0", f"store dst {at('dst', 'item')} <- {low} | {high} << 16")
        return Launches("halves", (self._launch("halves", tensors, lines, node.size // 2),))

    def _get_rows(self, node: Tensor) -> Launches | Decline:
        x, ids = node.src
        assert x is not None
        assert ids is not None
        if (node.type, x.type, ids.type) != (F32, F32, I32):
            return Decline("the tiny library picks rows of f32")
        lines = (
            *ELEMENT,
            f"let id = signed(word(ids, {at('ids', 'i1', 'i2', 'i3')}))",
            "let there = 0 <= id < x_ne1",
            f"store dst {at('dst', *HERE)} <- word(x, {at('x', 'i0', 'id', 'i2', 'i3')}) if there else 0",
            *NOTED,
        )
        tensors = {"dst": argument(DST, node), "x": argument(0, x), "ids": argument(1, ids), "faults": RECORD}
        return Launches("get_rows", (self._launch("get_rows", tensors, lines, node.size),))

    def _set_rows(self, node: Tensor) -> Launches | Decline:
        _, rows, ids = node.src
        assert rows is not None
        assert ids is not None
        if (node.type, rows.type) != (F32, F32) or ids.type is I64:
            return Decline("the tiny library writes rows of f32 at ids of i32")
        element = tuple(line.replace("dst_", "rows_") for line in ELEMENT)
        lines = (
            *element,
            f"let id = signed(word(ids, {at('ids', 'i1', 'i2 % ids_ne1', 'i3 % ids_ne2')}))",
            "let there = 0 <= id < dst_ne1",
            f"let value = word(rows, {at('rows', *HERE)})",
            f"if there then store dst {at('dst', 'i0', 'id', 'i2', 'i3')} <- value",
            *NOTED,
        )
        tensors = {"dst": argument(DST, node), "rows": argument(1, rows), "ids": argument(2, ids), "faults": RECORD}
        return Launches("set_rows", (self._launch("set_rows", tensors, lines, rows.size),))

    def _sum_rows(self, node: Tensor) -> Launches | Decline:
        """Sums of pairs into scratch memory, then those of a row."""
        (x,) = node.src
        assert x is not None
        if (node.type, x.type) != (F32, F32):
            return Decline("the tiny library adds up f32")
        pairs = -(-x.ne[0] // 2)
        extents = (pairs, *x.ne[1:])
        strides = (4, 4 * pairs, 4 * pairs * x.ne[1], 4 * pairs * x.ne[1] * x.ne[2])
        part = argument_of(SCRATCH, F32, extents, strides)  # type: ignore[arg-type]
        two = f"{load('x', '2 * i0', *HERE[1:])} + ({load('x', '2 * i0 + 1', *HERE[1:])} if 2 * i0 + 1 < x_ne0 else 0)"
        tensors = {"dst": part._replace(written=True), "x": argument(0, x)}
        first = self._launch("pairs", tensors, each(two), pairs * x.nrows)
        lines = (*ELEMENT, "let total = 0.0", *_loop(pairs), f"store dst {at('dst', *HERE)} <- bits(total)")
        second = self._launch("rows", {"dst": argument(DST, node), "x": part}, lines, node.size)
        return Launches("sum_rows", (first, second), scratch=4 * pairs * x.nrows)


HEAD = ("groups", "lanes", "plan", "node", "p0", "p1", "unused_0", "unused_1")
MEMBERS = ("offset", *(f"ne{d}" for d in range(4)), *(f"nb{d}" for d in range(4)), *(f"unused_{n}" for n in range(3)))
RECORD = TensorArgument(FAULTS, (1, 1, 1, 1), (0, 0, 0, 0), span=12, written=True)


def _scalars(values: tuple[float | int, ...]) -> list[int]:
    with np.errstate(over="ignore"):
        bits = [int(np.float32(value).view(np.uint32)) for value in values]
    return bits + [0] * (4 - len(bits))


def _loop(count: int) -> list[str]:
    return [f"let total = total + {load('x', str(n), *HERE[1:])}" for n in range(count)]
