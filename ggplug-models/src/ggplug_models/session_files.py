"""Sessions as files: tokens, and what a model remembers of them, to go on with another day.

The file is a GGUF file: tensors ``SEQ.NUMBER`` hold the cells of a sequence, in the order of the model's blocks, with
the type of the cache; metadata the tokens and what has to be alike for a session that reads it.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from ggplug.errors import ModelError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug_models.values import Values

if TYPE_CHECKING:
    from ggplug_models.session import Session

ARCHITECTURE = "ggplug-session"
MODEL = f"{ARCHITECTURE}.model"
SHAPE = f"{ARCHITECTURE}.shape"


def save(session: Session, path: str | os.PathLike[str]) -> None:
    """Writes all sequences; an existing file is replaced by the complete new one.  Raises FileKindError, OSError."""
    with session.turn(), GGUFWriter(path, ARCHITECTURE) as writer:
        writer.add(MODEL, _fingerprint(session))
        writer.add(SHAPE, _shape(session))
        for seq in range(session.n_seq):
            writer.add(f"{ARCHITECTURE}.{seq}.tokens", np.array(session.tokens(seq), np.int32))
            writer.add(f"{ARCHITECTURE}.{seq}.overwritten", np.array(session.overwritten(seq), np.int64))
            if not session.length(seq):
                continue
            for number, view in enumerate(session.memory.of_sequence(seq)):
                raw = np.frombuffer(view.tobytes(), np.uint8)
                writer.add_tensor(f"{seq}.{number}", raw, view.type, view.ne[:2])
        writer.write()


def restore(session: Session, path: str | os.PathLike[str]) -> None:
    """Takes over what :func:`save` wrote.  On an error the session stays as it is, or is empty.

    Raises GGUFError; ModelError for a file of another model, or of a session of another shape.
    """
    with GGUFReader(path) as reader:
        values = Values(reader.metadata, where=os.fspath(path))
        for key, wanted, what in (
            (MODEL, _fingerprint(session), "the session's model"),
            (SHAPE, _shape(session), "the session's contexts, sequences, steps and cache type"),
        ):
            if values.text(key) != wanted:
                raise ModelError(
                    f"{os.fspath(path)}: {key} is {values.text(key)}, of {what} it is {wanted}",
                    got=values.text(key), wanted=wanted,
                )  # fmt: skip
        kept = []
        for seq in range(session.n_seq):
            tokens = reader.metadata.get(f"{ARCHITECTURE}.{seq}.tokens")
            if not isinstance(tokens, np.ndarray):
                raise ModelError(f"{os.fspath(path)}: {ARCHITECTURE}.{seq}.tokens is no array of ids", got=tokens)
            count = len(session.overwritten(seq))
            overwritten = values.integers(f"{ARCHITECTURE}.{seq}.overwritten", length=count)
            kept.append((tokens.tolist(), overwritten.tolist()))
        views: list[tuple[Any, Any]] = []
        for seq, (tokens, _) in enumerate(kept):
            for number, view in enumerate(session.memory.of_sequence(seq) if tokens else ()):
                info = reader.tensors.get(f"{seq}.{number}")
                if info is None or info.nbytes != view.nbytes or info.type is not view.type:
                    raise ModelError(f"{os.fspath(path)}: tensor '{seq}.{number}' is missing or of another size")
                views.append((view, reader.data(info)))
        session.clear()
        with session.turn():
            for view, data in views:
                view.set_bytes(data)
        for seq, (tokens, overwritten) in enumerate(kept):
            session.adopt(seq, tokens, overwritten)


def _fingerprint(session: Session) -> str:
    """What tells models apart: metadata and extents of weights, not their values."""
    model = session.model
    told = [f"{key}={model.metadata[key]}" for key in sorted(model.metadata) if key.startswith(model.architecture)]
    told += [f"{weight.name} {weight.type.name} {weight.ne}" for weight in model.weights]
    return f"{model.architecture} {hashlib.sha256(chr(10).join(told).encode()).hexdigest()}"


def _shape(session: Session) -> str:
    return f"{session.n_seq}x{session.n_ctx} {session.micro_batch} {session.memory.type.name}"
