"""Writes graphs to files."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ggplug.errors import ParameterError, SerializationError, TensorStateError
from ggplug.gguf import GGUFReader, GGUFWriter, ValueType
from ggplug.gguf.format import is_foreign
from ggplug.graph import Graph
from ggplug.ops.base import ByIdentity
from ggplug.saved.format import (
    ABSENT,
    ARCHITECTURE,
    NAME_KEY,
    PARAMETERS,
    REPEATED_KEY,
    SMALL,
    TENSOR_ARRAYS,
    VERSION,
)
from ggplug.system.files import check_target
from ggplug.tensor import Operation, Tensor
from ggplug.types import I8, BufferUsage


def save_graph(
    graph: Graph,
    path: str | os.PathLike[str],
    *,
    values: bool | Callable[[Tensor], bool] = True,
    models: Iterable[str | os.PathLike[str]] = (),
    embed: bool = False,
) -> Path:
    """Writes a graph to a file, completely or not at all, and returns the path; see :mod:`ggplug.saved.format`.

    ``values``: whether the values of leafs are written, or a function that says so for each leaf.  A leaf without a
    value is written without one.  ``models``: GGUF files; of a leaf that has name, type, extents and bytes of a tensor
    in one of them, only the names of file and tensor and a digest are written.  ``embed``: weights that are in none of
    the models are written with their bytes, as all are without ``models``.  :func:`ggplug.load_graph` reads files.

    Raises SerializationError if a node calls a Python function; ParameterError if a weight is in none of the models,
    ``path`` is one of them, tensors of the graph share bytes without being views, or a parameter of an op does not fit
    in the file; GGUFError for a malformed model; OSError.

    A process that is killed while it writes leaves a file ``.ggplug-*.part``; see :class:`ggplug.system.files.NewFile`.
    """
    if graph.signature().shared:
        position, _, _ = graph.signature().shared[0]
        raise ParameterError(
            f"{graph.tensors[position]!r} shares bytes with another tensor of {graph!r} that it is no view of, so the "
            "graph cannot be written to a file",
            tensor=graph.tensors[position],
        )
    writer = GGUFWriter(path, arch=ARCHITECTURE)
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(GGUFReader(model)) for model in paths_of(models)]
        check_target(path, (each for reader in readers for each in reader.paths))
        _write_structure(writer, graph)
        _write_values(writer, graph, values if callable(values) else lambda leaf: bool(values), readers, embed)
        return writer.write()[0]


def encode_graph(graph: Graph) -> bytes:
    """The structure of a graph as the bytes of a graph file without values, which :func:`decode_graph` reads.

    Raises SerializationError and ParameterError as :func:`save_graph`.
    """
    writer = GGUFWriter("", arch=ARCHITECTURE)
    _write_structure(writer, graph)
    writer.add("graph.version", 1, ValueType.UINT32)
    return writer.header()


def paths_of(models: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """The paths of a list of models.  Raises ParameterError for a single path, of which each character would be one."""
    if isinstance(models, (str, bytes, os.PathLike)):
        raise ParameterError(
            f"models must be a list of paths, got {models!r}", got=models, remedy=f"models=[{models!r}]"
        )
    return [Path(model) for model in models]


def _write_structure(writer: GGUFWriter, graph: Graph) -> None:
    from ggplug import __version__

    writer.add(NAME_KEY, graph.name)
    writer.add("graph.writer", __version__)
    leafs = set(graph.leafs)
    ops: dict[tuple[Any, ...], int] = {}
    arrays: dict[str, list[int]] = {name: [] for name in TENSOR_ARRAYS}
    sources: list[int] = []
    for position, tensor in enumerate(graph.tensors):
        op = None if tensor in leafs else tensor.op
        if op is not None and op.key not in ops:
            _write_op(writer, len(ops), op)
            ops[op.key] = len(ops)
        root, buffer = graph.roots[position], tensor.buffer
        arrays["op"].append(ABSENT if op is None else ops[op.key])
        arrays["n_sources"].append(len(graph.sources[position]))
        arrays["type"].append(tensor.type.id)
        arrays["rank"].append(tensor.rank)
        arrays["ne"].extend(tensor.ne)
        arrays["nb"].extend(tensor.nb)
        arrays["root"].append(root)
        arrays["offset"].append(0 if root == position else tensor.view_offset)
        arrays["flags"].append(tensor.flags)
        arrays["usage"].append(ABSENT if buffer is None else buffer.usage.value)
        sources.extend(graph.sources[position])
    _add_array(writer, "graph.ops", [name for name, *_ in ops], ValueType.STRING)
    for name, numbers in arrays.items():
        _add_array(writer, f"graph.tensor.{name}", numbers, TENSOR_ARRAYS[name])
    _add_array(writer, "graph.sources", sources, ValueType.INT32)
    _add_array(writer, "graph.tensor.name", [tensor.name for tensor in graph.tensors], ValueType.STRING)
    _add_array(writer, "graph.outputs", [graph.index[each] for each in graph.outputs], ValueType.INT32)


def _write_op(writer: GGUFWriter, number: int, op: Operation) -> None:
    for name in op.parameters:
        value = getattr(op, name)
        if isinstance(value, ByIdentity):
            raise SerializationError(
                f"{op!r} holds {value!r}, an object of Python that cannot be written to a file",
                op=op,
                got=value,
                remedy="build the graph again in the other process",
            )
        writer.add(f"graph.op.{number}.{name}", value, PARAMETERS[type(value)])


def _add_array(writer: GGUFWriter, key: str, items: Sequence[Any], kind: ValueType) -> None:
    writer.add(key, items, (ValueType.ARRAY, kind))


def _write_values(
    writer: GGUFWriter, graph: Graph, wanted: Callable[[Tensor], bool], models: Sequence[GGUFReader], embed: bool
) -> None:
    in_models: list[tuple[int, str, str, str]] = []
    repeated: list[int] = []
    for leaf in graph.leafs:
        position = graph.index[leaf]
        if graph.roots[position] != position or not leaf.nbytes or not wanted(leaf):
            continue
        if not has_value(leaf):
            continue
        model, digest = _found(leaf, models)
        if model is not None:
            in_models.append((position, model.path.name, leaf.name, digest))
            continue
        if models and not embed and leaf.buffer is not None and leaf.buffer.usage is BufferUsage.WEIGHTS:
            raise ParameterError(
                f"the weight {leaf.name!r} of {graph!r} is in none of the models "
                f"{', '.join(str(model.path) for model in models)}",
                tensor=leaf,
                remedy="name the file that the model was loaded from; or write such weights with embed=True, or leave "
                "them out with values=",
            )
        block = repeated_block(leaf)
        if block:
            repeated.append(position)
            writer.add_tensor(str(position), block, leaf.type, (leaf.type.block_size,))
        else:
            kind, ne = (leaf.type, leaf.ne) if leaf.is_contiguous() else (I8, (leaf.nbytes,))
            writer.add_tensor(str(position), leaf.tobytes, kind, ne)  # read when it is written, one after the other
    columns = list(zip(*in_models, strict=True)) or [(), (), (), ()]
    _add_array(writer, "graph.weights.tensor", columns[0], ValueType.INT32)
    for name, column in zip(("file", "name", "sha256"), columns[1:], strict=True):
        _add_array(writer, f"graph.weights.{name}", column, ValueType.STRING)
    if repeated:
        _add_array(writer, REPEATED_KEY, repeated, ValueType.INT32)
    writer.add("graph.version", VERSION if repeated else 1, ValueType.UINT32)


def repeated_block(leaf: Tensor) -> bytes:
    """The block that a leaf's value repeats; empty if its blocks differ, or if it is so small that it is written whole.

    A KV cache is zeros where no token was computed yet: often hundreds of megabytes.
    """
    size = leaf.type.block_bytes
    if leaf.nbytes < SMALL or not leaf.is_contiguous():
        return b""
    raw = leaf.tobytes()
    block = raw[:size]
    return block if raw[size : 2 * size] == block and raw == block * (len(raw) // size) else b""


def has_value(leaf: Tensor) -> bool:
    """Whether a leaf has a place, and was set since it has it."""
    try:
        return leaf.access(lambda buffer, offset: buffer.unset.get(offset) != offset + leaf.nbytes)
    except TensorStateError:
        return False


def _found(leaf: Tensor, models: Sequence[GGUFReader]) -> tuple[GGUFReader | None, str]:
    """The model that has the leaf's value under its name, and the digest of that."""
    there = [model for model in models if leaf.name in model.tensors]
    digest = sha256_of(leaf.tobytes()) if there else ""
    return next((model for model in there if has_weight(model, leaf, leaf.name, digest)), None), digest


def has_weight(reader: GGUFReader, leaf: Tensor, name: str, digest: str) -> bool:
    """Whether a file has a tensor of this name with the leaf's type and extents, and bytes with this digest."""
    info = reader.tensors.get(name)
    if info is None or is_foreign(reader.endian) or not leaf.is_contiguous():
        return False
    same = info.type is leaf.type and info.ne + (1,) * (4 - len(info.ne)) == leaf.ne
    return same and sha256_of(reader.data(info).data) == digest


def sha256_of(raw: bytes | memoryview) -> str:
    """The digest of bytes."""
    return hashlib.sha256(raw).hexdigest()
