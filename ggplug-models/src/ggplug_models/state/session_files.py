"""Saves the sequences of a session to a file, and restores them.

The file is a GGUF file.  The tensors ``SEQ.NUMBER`` hold the cells of a sequence, in the order of the model's blocks,
with the type of the cache.  The metadata holds the tokens, the adapters with which they were computed, and what must be
equal in the session that restores them: the model, the extents, and the patches and control vectors.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ggplug.errors import ModelError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug.sharing import Claim
from ggplug.system.files import check_target
from ggplug_models.metadata.values import Values
from ggplug_models.state.memory import Memory

Ints = npt.NDArray[np.integer[Any]]

ARCHITECTURE = "ggplug-session"
MODEL = f"{ARCHITECTURE}.model"
SHAPE = f"{ARCHITECTURE}.shape"
DIGEST = f"{ARCHITECTURE}.sha256"
"""Digest of tokens and cells: a damaged file is refused, since nothing else would reveal the damage."""


class ModelIdentity(Protocol):
    """What identifies a model."""

    @property
    def architecture(self) -> str:
        """The value of ``general.architecture``."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of its file."""

    @property
    def digest(self) -> str:
        """The digest of its weights."""

    @property
    def paths(self) -> Sequence[Path]:
        """The files that it was loaded from."""

    @property
    def n_vocab(self) -> int:
        """The number of tokens of its vocabulary."""


class StoredSession(Protocol):
    """What saving and restoring need of a session; :class:`.Session` documents the members."""

    n_ctx: int
    n_seq: int
    micro_batch: int
    memory: Memory

    @property
    def model(self) -> ModelIdentity:
        """The model of the session."""

    def tokens(self, seq: int) -> tuple[int, ...]:
        """The tokens of a sequence."""

    def overwritten(self, seq: int) -> list[int]:
        """For each kind of cells, the position before which those of a sequence were overwritten."""

    def overwritable(self, length: int) -> list[tuple[int, int]]:
        """For each kind of cells, the least and the largest value of ``overwritten``."""

    def clear(self) -> None:
        """Removes the tokens of all sequences."""

    def locked(self) -> Claim:
        """Locks the model."""

    def source(self, seq: int) -> tuple[int, ...]:
        """The tokens of the source text of a sequence."""

    def adopt(self, seq: int, tokens: Sequence[int], overwritten: Sequence[int], source: Sequence[int]) -> None:
        """Sets the tokens of a sequence and its source text, whose memory was set."""

    def adapters(self, seq: int) -> str:
        """The adapters that a sequence is computed with."""

    def patches(self, seq: int) -> str:
        """The patches and control vectors that a sequence is computed with."""

    def patches_in_effect(self) -> str:
        """The patches and control vectors with which the next tokens are computed."""

    def adapt_as(self, adapters: Mapping[int, str | None]) -> None:
        """Sets them, by sequence; None: those of the model."""


def save(session: StoredSession, path: str | os.PathLike[str]) -> None:
    """Saves all sequences; an existing file is replaced by the complete new one.

    Raises ParameterError if the path is a file of the model, or if tokens were computed with what no file can say:
    several scales of adapters, a patch that is a function; FileKindError, OSError.
    """
    check_target(path, session.model.paths)
    with session.locked(), GGUFWriter(path, ARCHITECTURE) as writer:
        writer.add(MODEL, _fingerprint(session))
        writer.add(SHAPE, _shape(session))
        digest = hashlib.sha256()
        for seq in range(session.n_seq):
            tokens, overwritten = np.array(session.tokens(seq), np.int32), np.array(session.overwritten(seq), np.int64)
            source = np.array(session.source(seq), np.int32)
            writer.add(f"{ARCHITECTURE}.{seq}.tokens", tokens)
            writer.add(f"{ARCHITECTURE}.{seq}.overwritten", overwritten)
            if len(source):
                writer.add(f"{ARCHITECTURE}.{seq}.source", source)
            writer.add(f"{ARCHITECTURE}.{seq}.adapters", session.adapters(seq))
            _digest(digest, tokens, overwritten, source, session.adapters(seq))
            if not len(tokens) and not len(source):
                continue
            writer.add(f"{ARCHITECTURE}.{seq}.patches", session.patches(seq))
            for number, view in enumerate(session.memory.of_sequence(seq)):
                raw = np.frombuffer(view.tobytes(), np.uint8)
                writer.add_tensor(f"{seq}.{number}", raw, view.type, view.ne[:2])
                digest.update(raw.data)
        writer.add(DIGEST, digest.hexdigest())
        writer.write()


def restore(session: StoredSession, path: str | os.PathLike[str]) -> None:
    """Restores what :func:`save` wrote.  The file is checked first: if it is refused, the session is not changed.

    The sequences are then computed with the adapters with which they were saved.  Raises GGUFError; ModelError if the
    file is damaged, needs an adapter that the model does not have, or is from another model or a session with other
    parameters, patches or control vectors; ParameterError for a patch in effect that is a function.
    """
    with GGUFReader(path) as reader:
        values = Values(reader.metadata, where=os.fspath(path))
        _check(values, MODEL, _fingerprint(session), "the session's model")
        _check(values, SHAPE, _shape(session), "the session's n_seq x n_ctx, micro_batch and cache type")
        kept = [_sequence(session, values, seq) for seq in range(session.n_seq)]
        adapters = {seq: values.text(f"{ARCHITECTURE}.{seq}.adapters", None) for seq in range(session.n_seq)}
        views: list[tuple[Any, Any]] = []
        digest = hashlib.sha256()
        for seq, (tokens, overwritten, source) in enumerate(kept):
            _digest(digest, tokens, overwritten, source, adapters[seq] or "")  # files of former versions have none
            computed = len(tokens) or len(source)
            if not computed:
                adapters[seq] = None
            else:
                what = "the digests of the patches and control vectors in effect"
                _check(values, f"{ARCHITECTURE}.{seq}.patches", session.patches_in_effect(), what)
            for number, view in enumerate(session.memory.of_sequence(seq) if computed else ()):
                info = reader.tensors.get(f"{seq}.{number}")
                if info is None or info.nbytes != view.nbytes or info.type is not view.type:
                    raise ModelError(
                        f"{os.fspath(path)}: tensor '{seq}.{number}' is missing or has the wrong size",
                        got=None if info is None else info.nbytes,
                        wanted=view.nbytes,
                    )
                views.append((view, reader.data(info)))
                digest.update(np.ascontiguousarray(views[-1][1]).reshape(-1).view(np.uint8).data)
        if values.text(DIGEST) != digest.hexdigest():
            raise ModelError(
                f"{os.fspath(path)} is damaged: its content does not match its digest {DIGEST}",
                got=digest.hexdigest(),
                wanted=values.text(DIGEST),
                remedy="save the session again",
            )
        session.adapt_as(adapters)
        session.clear()
        with session.locked():
            for view, data in views:
                view.set_bytes(data)
        for seq, (tokens, overwritten, source) in enumerate(kept):
            session.adopt(seq, tokens.tolist(), overwritten.tolist(), source.tolist())


def _check(values: Values, key: str, wanted: str, what: str) -> None:
    """Raises ModelError if a file does not have what is wanted under a key."""
    found = values.text(key, "")
    if found != wanted:
        raise ModelError(
            f"{values.where} does not belong to this session: {key} is {found or None}, but {what} is {wanted or None}",
            got=found,
            wanted=wanted,
        )


def _sequence(session: StoredSession, values: Values, seq: int) -> tuple[Ints, Ints, Ints]:
    """The token ids of a sequence in a file, its overwritten positions, and its source text.  Raises ModelError."""
    beginning = f"{ARCHITECTURE}.{seq}"
    tokens = _ids(session, values, f"{beginning}.tokens")
    key = f"{beginning}.source"
    source = _ids(session, values, key) if key in values.values else np.zeros(0, np.int32)
    key = f"{beginning}.overwritten"
    overwritten = values.integers(key, length=len(session.overwritten(seq)))
    limits = session.overwritable(len(tokens))
    if any(not least <= lost <= most for lost, (least, most) in zip(overwritten.tolist(), limits, strict=True)):
        raise values.refused(key, f"positions within {limits}, for a sequence of {len(tokens)} tokens")
    return tokens, overwritten.astype(np.int64), source


def _ids(session: StoredSession, values: Values, key: str) -> Ints:
    """Token ids in a file.  Raises ModelError."""
    ids: Any = values.values.get(key)
    n_vocab = session.model.n_vocab
    fits = isinstance(ids, np.ndarray) and (ids.dtype.kind in "iu" or not ids.size) and ids.ndim == 1
    if not fits or len(ids) > session.n_ctx or np.any((ids < 0) | (ids >= n_vocab)):
        raise values.refused(key, f"at most {session.n_ctx} ids from 0 to {n_vocab - 1}")
    return np.asarray(ids, np.int32)


def _digest(digest: hashlib._Hash, tokens: Ints, overwritten: Ints, source: Ints, adapters: str) -> None:
    parts = np.int64(len(tokens)).tobytes(), tokens.tobytes(), overwritten.tobytes(), source.tobytes()
    digest.update(b"".join((*parts, adapters.encode())))


def _fingerprint(session: StoredSession) -> str:
    """A digest of what identifies the model: the metadata of its architecture, and its weights."""
    model = session.model
    found = {key: model.metadata[key] for key in sorted(model.metadata) if key.startswith(model.architecture)}
    facts = [f"{key}={each.tolist() if isinstance(each, np.ndarray) else each}" for key, each in found.items()]
    facts.append(model.digest)
    return f"{model.architecture} {hashlib.sha256(chr(10).join(facts).encode()).hexdigest()}"


def _shape(session: StoredSession) -> str:
    return f"{session.n_seq}x{session.n_ctx} {session.micro_batch} {session.memory.type.name}"
