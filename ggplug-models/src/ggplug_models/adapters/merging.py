"""Writes a model whose weights have an adapter's changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ggplug.errors import ParameterError
from ggplug.gguf import GGUFReader, GGUFWriter, TensorInfo
from ggplug.quantizing.rows import Encoder
from ggplug.system.files import check_target
from ggplug.types import F32
from ggplug_models.adapters.lora import TABLE, A, B, LoraFile
from ggplug_models.adapters.matrices import rows_in_file, values_in_file
from ggplug_models.checks.arguments import number


def merge(
    model: str | os.PathLike[str],
    adapters: Mapping[str | os.PathLike[str], float],
    target: str | os.PathLike[str],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Writes ``target``: the model with the changes of ``adapters``, each with a scale, in its weights.

    Changed weights are decoded, added to in float32, and encoded in their own type again.  ``progress(done, total)``:
    called with bytes of tensors.  Raises ModelError if an adapter is not of this model, or a changed weight is not
    finite or out of range of its type; ParameterError, GGUFError, OSError.
    """
    if not adapters:
        raise ParameterError("no adapter was given to merge", got=adapters, wanted="at least one")
    files = [(LoraFile(path), number("scale", scale)) for path, scale in adapters.items()]
    with ExitStack() as stack:
        reader = stack.enter_context(GGUFReader(model))
        check_target(target, (*reader.paths, *adapters))
        writer = GGUFWriter(target)
        extents = {name: info.ne for name, info in reader.tensors.items()}
        for file, _ in files:
            file.check(str(reader.metadata.get("general.architecture", "")), extents)
        writer.add_metadata_of(reader)
        encoder = stack.enter_context(Encoder())
        opened = [(file, scale, stack.enter_context(GGUFReader(file.path))) for file, scale in files]
        for name, info in reader.tensors.items():
            changing = [each for each in opened if name in each[0].pairs]
            read = (
                partial(_changed, reader, info, changing, encoder) if changing else partial(rows_in_file, reader, info)
            )
            writer.add_tensor(name, read, info.type, info.ne)
        writer.write(progress)
    return Path(target)


def _changed(
    reader: GGUFReader, info: TensorInfo, changing: Sequence[tuple[LoraFile, float, GGUFReader]], encoder: Encoder
) -> npt.NDArray[np.uint8]:
    """The bytes of a weight with the changes of adapters."""
    values = values_in_file(reader, info)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
        for file, scale, matrices in changing:
            values += np.float32(file.factor(info.name, scale)) * _product(matrices, info.name).reshape(values.shape)
        rows = values.reshape(-1, info.ne[0]).view(np.uint8)
        encoded = encoder.encode(rows, F32, info.type)
    misfit = encoder.misfit(rows, F32, encoded, info.type, into_blocks=True)
    if misfit is not None:
        files = ", ".join(str(file.path) for file, _, _ in changing)
        raise misfit.refused(f"{reader.paths[info.shard]} with {files}", info.name, info.ne, info.type)
    return encoded


def _product(matrices: GGUFReader, name: str) -> npt.NDArray[np.float32]:
    """B A of a weight, rows first."""
    a, b = (values_in_file(matrices, matrices.tensors[name + end]) for end in (A, B))
    found: npt.NDArray[np.float32] = a @ np.swapaxes(b, -1, -2) if name == TABLE else b @ a
    return found
