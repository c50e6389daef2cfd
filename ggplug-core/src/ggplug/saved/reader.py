"""Reads graphs from files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ggplug import types
from ggplug.backend import BufferType, Device
from ggplug.errors import GGPlugError, OutOfMemoryError, in_one_line
from ggplug.gguf import GGUFReader, TensorInfo
from ggplug.graph import Graph
from ggplug.host import HOST
from ggplug.memory import allocate
from ggplug.ops.base import OPS, Op, apply
from ggplug.registry.discover import scan
from ggplug.registry.entry_points import imported
from ggplug.saved.fields import Fields, Message
from ggplug.saved.format import ABSENT, OPS_GROUP, REPEATED_KEY, TENSOR_ARRAYS, VERSION
from ggplug.saved.writer import has_weight, paths_of
from ggplug.tensor import Context, Spec, Tensor
from ggplug.types import BufferUsage, TensorFlag
from ggplug.values.arrays import encode, strided

Bytes = npt.NDArray[np.uint8]

ALL_FLAGS = int(TensorFlag(0) | TensorFlag.INPUT | TensorFlag.OUTPUT | TensorFlag.PARAM | TensorFlag.LOSS)


class Reference(NamedTuple):
    """Where the value of a leaf is: in the tensor ``name`` of the GGUF file ``file``, whose bytes have this digest."""

    file: str
    name: str
    sha256: str


class LoadedGraph(Graph):
    """A graph from a file, with the memory of its persistent tensors.

    ``context``: the persistent tensors, and their buffers.  ``values``: bytes of leafs without a place of their own;
    :meth:`set_inputs` sets them.  ``references``: leafs whose values are in other files.  ``missing``: leafs that have
    no value.  ``files``: those that were read.  A ``with`` block frees the memory.
    """

    def __init__(self, *outputs: Tensor, name: str = "") -> None:
        super().__init__(*outputs, name=name)
        self.context = Context(name)
        self.values: dict[Tensor, Bytes] = {}
        self.references: dict[Tensor, Reference] = {}
        self.missing: list[Tensor] = []
        self.files: list[Path] = []

    def set_inputs(self) -> None:
        """Sets the leafs whose place an allocation decides, once the graph is allocated.  Raises TensorStateError."""
        for leaf, raw in self.values.items():
            leaf.set_bytes(raw)

    def set_missing(self, seed: int) -> None:
        """Gives the leafs without a value random ones: normally distributed floats, and integers that are zero.

        The standard deviation is that of weights, ``ne[0] ** -0.5``.  Integers may be ids, of which zero is always one.
        """
        random = np.random.default_rng(seed)
        for leaf in self.missing:
            shape = leaf.ne[::-1]
            if leaf.type.is_quantized or leaf.type.dtype.kind == "f" or leaf.type is types.BF16:
                packed = encode(random.standard_normal(shape, np.float32) * leaf.ne[0] ** -0.5, leaf.type)
            else:
                packed = np.zeros(leaf.size * leaf.type.block_bytes, np.uint8)
            raw = np.zeros(leaf.nbytes, np.uint8)
            target = strided(raw, leaf)
            target[...] = packed.view(target.dtype).reshape(target.shape)
            self._give(leaf, raw)
        self.missing.clear()

    def _give(self, leaf: Tensor, raw: Bytes) -> None:
        """Stores a value: in the leaf's own place, or for :meth:`set_inputs`."""
        if leaf.buffer is None:
            self.values[leaf] = raw.copy()
        else:
            leaf.set_bytes(raw)

    def free(self) -> None:
        """Frees the memory of the persistent tensors; raises as :meth:`ggplug.Context.free`."""
        self.context.free()

    def __enter__(self) -> LoadedGraph:
        return self

    def __exit__(self, *exc: object) -> None:
        self.free()


def load_graph(
    path: str | os.PathLike[str],
    where: Device | BufferType | None = None,
    *,
    models: Iterable[str | os.PathLike[str]] = (),
    values: bool = True,
) -> LoadedGraph:
    """The graph in a file that :func:`ggplug.saved.save_graph` wrote, equal to the one that was written.

    ``where``: a device or a type of memory for the tensors that had a place of their own; by default memory of the
    host.  ``models``: GGUF files with weights that the file refers to; by default those in its folder.
    ``values=False``: the structure only; no tensor gets a place, and no other file is opened.

    Raises GGUFError, with ``field``, for a file that is malformed, of a later version, or with an op that is not
    installed, and if a weight is not found; PluginError if the module of an op cannot be imported; ParameterError if
    ``models`` is no list; OutOfMemoryError; OSError.
    """
    with ExitStack() as stack:
        reader = stack.enter_context(GGUFReader(path, follow_splits=False))
        fields = Fields(reader)
        graph = _structure(fields)
        found = _Values(reader, fields, graph, where, models, stack)
        found.find()
        if values:
            try:
                found.load()
            except BaseException:
                graph.free()
                raise
        return graph


def decode_graph(raw: bytes) -> LoadedGraph:
    """The graph that :func:`ggplug.saved.encode_graph` wrote; no tensor has a place or a value.

    Raises GGUFError and PluginError as :func:`load_graph`.
    """
    return _structure(Fields(Message(raw)))


# -- structure -------------------------------------------------------------------------------------


def _structure(fields: Fields) -> LoadedGraph:
    version = fields.number("graph.version")
    if not 1 <= version <= VERSION:
        by = f", which ggplug {fields.text('graph.writer')} wrote" if version > VERSION else ""
        remedy = "update ggplug" if version > VERSION else None
        fields.fail("graph.version", "version", f"the format has version {version}{by}", got=version, remedy=remedy)
    ops = list(_ops(fields))
    names = fields.texts("graph.tensor.name")
    count = len(names)
    columns = {
        name: fields.numbers(f"graph.tensor.{name}", kind, count * (4 if name in ("ne", "nb") else 1))
        for name, kind in TENSOR_ARRAYS.items()
    }
    ends = list(accumulate(columns["n_sources"]))
    sources = fields.numbers("graph.sources", count=ends[-1] if ends else 0)
    tensors: list[Tensor] = []
    for position, name in enumerate(names):
        row: dict[str, Any] = {key: column[position] for key, column in columns.items() if key not in ("ne", "nb")}
        row |= {key: tuple(columns[key][4 * position : 4 * position + 4]) for key in ("ne", "nb")}
        end = ends[position]
        src = [
            None if at == ABSENT else fields.earlier("graph.sources", tensors, at)
            for at in sources[end - row["n_sources"] : end]
        ]
        tensors.append(_tensor(fields, position, row, src, ops, tensors).named(name))
        tensors[-1].flags = row["flags"]
    outputs = [fields.earlier("graph.outputs", tensors, at) for at in fields.numbers("graph.outputs")]
    return LoadedGraph.listed(tensors, outputs, name=fields.text("general.name"))


def _ops(fields: Fields) -> Iterator[Op]:
    given = fields.parameters()
    for number, name in enumerate(fields.texts("graph.ops")):
        cls = _op_class(fields, name)
        values = given.get(number, {})
        unknown = values.keys() - set(cls.parameters)
        if unknown:
            fields.fail("graph.ops", "parameter", f"the op {name} has no parameter {min(unknown)!r}", got=min(unknown))
        declared = cls._signature.parameters
        lacking = [
            each for each in cls.parameters if each not in values and declared[each].default is declared[each].empty
        ]
        if lacking:
            fields.fail("graph.ops", "parameter", f"the op {name} needs the parameter {lacking[0]!r}", got=lacking[0])
        with fields.refusing(f"graph.op.{number}", "parameter"):
            yield cls(**values)


def _op_class(fields: Fields, name: str) -> type[Op]:
    """The class of an op, of this or another distribution."""
    if name not in OPS:
        package = name.partition(".")[0]
        installed = next((each for each in scan(OPS_GROUP) if each.name == package), None)
        if installed is not None:
            imported(installed, f"the module {installed.value} with the op {name!r}")
    found = OPS.get(name)
    if found is None:
        fields.fail(
            "graph.ops",
            "unknown op",
            f"there is no op {name!r:.100}",
            got=name,
            remedy=f"import the package that defines it, or install one with an entry point of the group {OPS_GROUP}",
        )
    return found


def _tensor(
    fields: Fields,
    position: int,
    row: dict[str, Any],
    src: list[Tensor | None],
    ops: list[Op],
    tensors: list[Tensor],
) -> Tensor:
    field = f"tensor {position}"
    if not 0 <= row["flags"] <= ALL_FLAGS:
        fields.fail(field, "flags", f"there are no flags {row['flags']}", got=row["flags"])
    root = None if row["root"] == position else fields.earlier("graph.tensor.root", tensors, row["root"])
    if row["op"] == ABSENT:
        if src:
            fields.fail(field, "sources", "a leaf has sources")
        with fields.refusing(field, "shape"):
            kind = types.by_id(row["type"])
            if root is not None and root.view_src is not None:
                fields.fail(field, "root", f"its root, tensor {row['root']}, is a view")
            return Tensor(Spec(kind, row["ne"], row["rank"], row["nb"], root, row["offset"]))
    op = fields.earlier("graph.tensor.op", ops, row["op"])
    if len(src) > len(op.sources):
        fields.fail(field, "sources", f"the op {op.name} has {len(op.sources)} sources, not {len(src)}", got=len(src))
    with fields.refusing(field, "sources"):
        try:
            node = apply(op, (*src, *(None for _ in op.sources[len(src) :])))
        except (GGPlugError, MemoryError):
            raise
        except Exception as error:  # of an op of another package
            fields.fail(field, "sources", f"the op {op.name} raised {in_one_line(error)}")
    found = node.type.id, node.rank, node.ne, node.nb, node.view_src, node.view_offset
    wanted = row["type"], row["rank"], row["ne"], row["nb"], root, row["offset"]
    if found != wanted:
        fields.fail(
            field,
            "result",
            f"the result of {op!r} is not what it was for ggplug {fields.text('graph.writer')}: type, rank, extents, "
            f"strides, root and offset are {found}, the file says {wanted}",
            got=found,
            wanted=wanted,
        )
    return node


# -- values ----------------------------------------------------------------------------------------


class _Values:
    """Gives the tensors of a graph their places, and the leafs their values."""

    def __init__(
        self,
        reader: GGUFReader,
        fields: Fields,
        graph: LoadedGraph,
        where: Device | BufferType | None,
        models: Iterable[str | os.PathLike[str]],
        stack: ExitStack,
    ) -> None:
        self.reader = reader
        self.fields, self.graph, self.where = fields, graph, HOST if where is None else where
        self.models = paths_of(models)
        self.stack = stack
        self.opened: dict[Path, GGUFReader] = {}
        self.stored: dict[int, TensorInfo] = {}
        """By position, the leafs whose values are in this file."""

    def find(self) -> None:
        """Finds which leafs have a value, in this file or another one, and which are missing."""
        graph, fields = self.graph, self.fields
        self.stored.update(self._stored())
        graph.references.update(self._references())
        repeated = frozenset(fields.numbers(REPEATED_KEY)) if REPEATED_KEY in self.reader.metadata else ()
        for position in repeated:
            if position not in self.stored or not graph.tensors[position].is_contiguous():
                fields.fail(REPEATED_KEY, "value", f"the tensor {position} is no leaf with a block to repeat")
        for position, info in self.stored.items():
            leaf = graph.tensors[position]
            wanted = leaf.type.block_bytes if position in repeated else leaf.nbytes
            if info.nbytes != wanted:
                fields.fail(f"tensor {position}", "value", f"its value has {info.nbytes} bytes, not {wanted}")
        found = {graph.tensors[position] for position in self.stored} | graph.references.keys()
        graph.missing += [leaf for leaf in self._leafs() if leaf.nbytes and leaf not in found]

    def load(self) -> None:
        graph, fields = self.graph, self.fields
        weights = {leaf: self.weight(leaf, reference) for leaf, reference in graph.references.items()}
        self.place(fields.numbers("graph.tensor.usage", TENSOR_ARRAYS["usage"], len(graph.tensors)))
        for leaf in graph.leafs:
            position = graph.index[leaf]
            if leaf in weights:
                graph._give(leaf, weights[leaf])
            elif position in self.stored:
                graph._give(leaf, self.value(leaf, self.reader.data(self.stored[position])))
        graph.files += [path for reader in (self.reader, *self.opened.values()) for path in reader.paths]

    def value(self, leaf: Tensor, raw: Bytes) -> Bytes:
        """A leaf's bytes, of which the file has all, or one block that is repeated."""
        if raw.size == leaf.nbytes:
            return raw
        try:
            return np.tile(raw, leaf.nbytes // raw.size)
        except MemoryError:
            what = f"there is no memory for the {leaf.nbytes} bytes of {leaf!r}"
            raise OutOfMemoryError(what, tensor=leaf, wanted=leaf.nbytes) from None

    def place(self, usages: list[int]) -> None:
        """Allocates memory for the tensors with a place of their own, a buffer or several for each usage."""
        graph = self.graph
        unknown = set(usages) - {usage.value for usage in BufferUsage} - {ABSENT}
        if unknown:
            self.fields.fail("graph.tensor.usage", "usage", f"there is no usage {min(unknown)}", got=min(unknown))
        for usage in BufferUsage:
            group = Context(graph.name)
            for tensor, number in zip(graph.tensors, usages, strict=True):
                if number == usage.value and not tensor.is_view:
                    group.tensors.append(tensor)  # not ``add``: names need not be unique
            allocate(group, self.where, usage)
            graph.context.tensors += group.tensors
            graph.context.buffers += group.buffers

    def _stored(self) -> Iterator[tuple[int, TensorInfo]]:
        """The positions of the leafs whose values are in this file, and where."""
        positions = {str(self.graph.index[leaf]): self.graph.index[leaf] for leaf in self._leafs()}
        for name, info in self.reader.tensors.items():
            if name not in positions:
                self.fields.fail(f"tensor {name}", "value", "there is no leaf of this number")
            yield positions[name], info

    def _references(self) -> Iterator[tuple[Tensor, Reference]]:
        fields, graph, leafs = self.fields, self.graph, set(self._leafs())
        columns = [fields.texts(f"graph.weights.{name}") for name in ("file", "name", "sha256")]
        numbers = fields.numbers("graph.weights.tensor", count=len(columns[0]))
        if any(len(column) != len(numbers) for column in columns):
            fields.fail("graph.weights", "length", "its arrays have different lengths")
        for position, *reference in zip(numbers, *columns, strict=True):
            leaf = fields.earlier("graph.weights.tensor", graph.tensors, position)
            if leaf not in leafs:
                fields.fail("graph.weights.tensor", "value", f"the tensor {position} is no leaf with a value")
            yield leaf, Reference(*reference)

    def _leafs(self) -> list[Tensor]:
        """The leafs that can have a value in a file."""
        return [leaf for leaf in self.graph.leafs if not leaf.is_view]

    def weight(self, leaf: Tensor, wanted: Reference) -> Bytes:
        """The bytes of a weight in another file."""
        for reader in self.candidates(wanted.file):
            if has_weight(reader, leaf, wanted.name, wanted.sha256):
                return reader.data(wanted.name)
        self.fields.fail(
            "graph.weights",
            "weight",
            f"no file was found that has the tensor {wanted.name!r:.100} with the digest that it has in "
            f"{wanted.file!r:.100}",
            got=wanted.file,
            remedy="name the model's file: --model FILE, in Python models=[path]; or save the graph without it",
        )

    def candidates(self, file: str) -> Iterator[GGUFReader]:
        """The models that the caller gave, or the file of this name in the folder of the graph's file."""
        paths = self.models
        if not paths:
            if file != Path(file).name or file in ("", "..") or "\0" in file:
                self.fields.fail("graph.weights.file", "name", f"{file!r:.100} is no name of a file", got=file)
            near = self.reader.path.parent / file
            paths = [near] if near.is_file() else []
        for path in paths:
            if path not in self.opened:
                self.opened[path] = self.stack.enter_context(GGUFReader(path))
            yield self.opened[path]
