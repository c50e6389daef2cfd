"""The folder of data that a report needs, small enough to be carried to a machine that has nothing.

===================  ============================================================================================
``model.gguf``       a BERT encoder with F16 matrices; files with other types are made from it when they are needed
``embeddings.npz``   ``token_ids`` [texts, longest] with ``token_len`` [texts], and ``embeddings`` [texts, n_embd]
``recorded.npz``     recorded cases of ggml, see :mod:`ggplug_testing.vectors`
===================  ============================================================================================

Of a vocabulary only the rows that the texts use are kept, so ids are positions among these.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug import quants, types
from ggplug.errors import GGUFError, ParameterError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug.system.files import check_differs
from ggplug.types import Type
from ggplug_testing.vectors import Recording

MODEL, EMBEDDINGS, RECORDED = "model.gguf", "embeddings.npz", "recorded.npz"

_VOCABULARY = "token_embd.weight"


class Folder:
    """A prepared folder; models of other types are written to ``scratch``.

    What is missing or damaged raises ParameterError or GGUFError when it is read.
    """

    def __init__(self, path: Path, scratch: Path) -> None:
        self.path = path
        self.scratch = scratch

    def recording(self) -> Recording:
        """The recorded cases."""
        return Recording(self.path / RECORDED)

    def embeddings(self) -> tuple[list[list[int]], npt.NDArray[np.float64]]:
        """Token ids of each text, and the embeddings that they should have, [texts, n_embd]."""
        path = self.path / EMBEDDINGS
        try:
            with np.load(path) as held:
                rows = zip(held["token_ids"], held["token_len"], strict=True)
                return [row[:length].tolist() for row, length in rows], held["embeddings"].astype(np.float64)
        except (OSError, KeyError, ValueError) as error:
            raise ParameterError(f"{path} holds no embeddings: {error}", got=path) from error

    def model(self, kind: str) -> Path:
        """The model with matrices of a type, made from the one that there is."""
        source = self.path / MODEL
        if not source.is_file():
            raise GGUFError(f"{source} is missing", path=source)
        target = self.scratch / f"{kind}.gguf"
        if not target.exists():
            _write(source, target, types.by_name(kind))
        return target


def _write(source: Path, target: Path, kind: Type, rows: npt.NDArray[np.int64] | None = None) -> None:
    """A model with matrices of another type, as far as their rows are whole blocks; ``rows``: of its vocabulary."""
    with GGUFReader(source) as reader, GGUFWriter(target) as writer:
        left_out = {"general.file_type", *(key for key in reader.metadata if key.startswith("tokenizer."))}
        writer.add_metadata_of(reader, without=left_out)
        for name, info in reader.tensors.items():
            ne = info.ne if rows is None or name != _VOCABULARY else (info.ne[0], len(rows))
            changes = info.type is types.F16 and info.ne[0] % kind.block_size == 0
            encoded = functools.partial(_encoded, reader, name, kind if changes else info.type, ne, rows)
            writer.add_tensor(name, encoded, kind if changes else info.type, ne)
        writer.write()


def _encoded(
    reader: GGUFReader, name: str, kind: Type, ne: tuple[int, ...], rows: npt.NDArray[np.int64] | None
) -> npt.NDArray[np.uint8]:
    values: npt.NDArray[Any] = reader.array(name)
    if rows is not None and name == _VOCABULARY:
        values = values[rows]
    return quants.quantize(values.astype(np.float32), kind)


def prepare(folder: Path, golden: Path, recorded: Path) -> None:
    """Fills a folder: MiniLM from its package, embeddings from ``golden``, and the file of recorded cases as it is.

    ``golden``: an ``.npz`` file with ``token_ids``, ``token_len`` and ``embeddings``.  Raises ParameterError for files
    that are something else, ModelError if the weights are not installed.
    """
    from ggplug_models.benchmarks.embeddings import weights_folder
    from ggplug_models.converting.convert import convert

    check_differs(folder / EMBEDDINGS, [golden])
    Recording(recorded)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        shutil.copyfile(golden, scratch / EMBEDDINGS)
        ids, embeddings = Folder(scratch, scratch).embeddings()
        used, positions = np.unique(np.concatenate([np.array(text) for text in ids]), return_inverse=True)
        whole = convert(weights_folder(), scratch / "whole.gguf", "F16")
        _write(whole, folder / MODEL, types.F16, used)
    lengths = np.array([len(text) for text in ids], np.int32)
    padded = np.zeros((len(ids), lengths.max()), np.int32)
    padded[np.arange(lengths.max()) < lengths[:, None]] = positions.reshape(-1)
    np.savez_compressed(
        folder / EMBEDDINGS, token_ids=padded, token_len=lengths, embeddings=embeddings.astype(np.float32)
    )
    shutil.copyfile(recorded, folder / RECORDED)
