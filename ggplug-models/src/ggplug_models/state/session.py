"""Sessions: sequences of tokens that a language model has decoded, with their KV cache or recurrent state."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

import ggplug as gg
from ggplug.backend import BufferType, Device
from ggplug.errors import ContextFullError, FreedError, ParameterError, memory_errors_typed
from ggplug.graph import Graph
from ggplug.scheduler import Explanation, Pipeline, Scheduler
from ggplug.sharing import Claim, locked, one_thread_at_a_time
from ggplug.system.copying import Uncopied
from ggplug.system.recent import Recent
from ggplug.types import BufferUsage, Type
from ggplug_models.checks.arguments import check_sequence, whole
from ggplug_models.checks.ids import in_common, listed_ids
from ggplug_models.layers.collecting import joined, of_tokens, patterns_of
from ggplug_models.layers.patches import GraphChange
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.metadata.values import short_repr
from ggplug_models.state.adapting import (
    Adapting,
    InEffect,
    Lora,
    OwnScales,
    as_text,
    checked_scales,
    digests,
    in_effect,
    only_scaled,
    scales_in,
    unscaled,
)
from ggplug_models.state.batching import FEW, divided, in_steps, padded_rows, rows_of, steps_of
from ggplug_models.state.cells import Cells, SourceCells
from ggplug_models.state.memory import Kind, Memory
from ggplug_models.state.session_files import ModelIdentity, restore, save
from ggplug_models.state.steps import Outputs, Shape, Step, Tokens
from ggplug_models.tokenizers import Tokenizer

Floats = npt.NDArray[np.float32]

CONTEXT = 4096
"""Default context length, if the model supports it."""

SEQUENCES = 1 << 16
"""Maximum number of sequences of a session."""

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")

LARGEST_RESULT = 64 << 20
"""Maximum size in bytes of the logits of a step of several tokens."""


class Basis(NamedTuple):
    """What the tokens of a sequence are computed with: the scales of adapters, if it has its own, and a source text."""

    own: OwnScales
    source: tuple[int, ...]


class Piece(NamedTuple):
    """What one step of a call computes: tokens by sequence, at most ``n`` of each.

    ``changes``: the scales of the graph's changes.  ``outputs``: the results of the step.  ``ends``: the sequences
    whose last tokens these are.  ``vectors``: what a head reads with the tokens.
    """

    tokens: dict[int, list[int]]
    n: int
    changes: InEffect
    outputs: Outputs
    ends: frozenset[int]
    vectors: dict[int, Floats] | None


class SourceStep(Protocol):
    """The graph that computes the keys and values of a source text."""

    graph: Graph

    def compute(
        self, scheduler: Scheduler, tokens: npt.NDArray[np.int64], rows: npt.NDArray[np.int32], scales: InEffect
    ) -> None:
        """Computes them for tokens, and stores them in rows of the memory; the last rows are those of padding.

        ``scales``: the changes of the graph, with their scales.
        """


class Reader(Protocol):
    """Gets values of nodes with each step that a session computes; see :meth:`Session.decode`."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the nodes; their values must have a row for each token."""

    def read(self, seq: int, place: int, tokens: Sequence[int], values: Sequence[Floats]) -> None:
        """Gets the values of each node for tokens of a sequence, which are those from position ``place`` on."""


class LanguageModel(ModelIdentity, Protocol):
    """What sessions and generation need of a language model; :class:`.Decoder` documents the members."""

    @property
    def n_ctx(self) -> int:
        """The context length that the model supports."""

    @property
    def most_positions(self) -> int | None:
        """Number of positions that the model has embeddings for; None: no limit."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What a session keeps for each block."""

    @property
    def keeps_states(self) -> bool:
        """Whether there are blocks with a recurrent state, which cannot be rewound."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the file."""

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler that computes the model's graphs."""

    def is_long(self, n_ctx: int) -> bool:
        """Whether contexts of ``n_ctx`` tokens are computed differently from short ones."""

    def cells(self, n_seq: int, n_ctx: int, n_step: int) -> dict[int, Cells]:
        """The cells of a session, by the window of the blocks that use them."""

    @property
    def patches(self) -> tuple[GraphChange, ...]:
        """The patches that are in effect."""

    def build(
        self,
        shape: Shape,
        memory: Memory,
        cells: Mapping[int, Cells],
        n_ctx: int,
        collect: Sequence[str] = (),
        patches: Sequence[GraphChange] = (),
    ) -> Step:
        """The step with the graph for this shape."""

    def build_source(self, n_tok: int, memory: Memory, patches: Sequence[GraphChange] = ()) -> SourceStep | None:
        """The step that reads a source text of ``n_tok`` tokens, with ``patches``; None: the model reads none."""

    def cache_on(self, number: int) -> Device | None:
        """The device that a rule chose for a block's cache or state; None: no rule did."""

    def device_of(self, number: int) -> Device:
        """The device of a block's cache or state."""

    @property
    def split(self) -> Mapping[str, BufferType]:
        """The memory of tensors that are split between the members of a combined device, by name."""

    def copies(self, devices: Collection[Device]) -> int:
        """How many steps are computed at the same time, if the caches of the blocks are on these devices."""

    @property
    def pipeline(self) -> Pipeline:
        """What computes several steps at the same time."""

    def locked(self, *sessions: Session) -> Claim:
        """A ``with`` block in which this thread alone computes with the model, and the sessions are not freed."""

    def call(self) -> Claim:
        """A ``with`` block during which the model is not freed."""

    def session(self, n_ctx: int | None = None, n_seq: int = 1, cache_type: str | Type = "f16") -> Session:
        """A new session."""


def cache_type_of(given: str | Type) -> Type:
    """The type of a KV cache, by name or as it is.  Raises ParameterError."""
    name = given.lower() if isinstance(given, str) else None
    kind = gg.types.by_name(name) if name in CACHE_TYPES else given
    if not isinstance(kind, Type) or kind.name not in CACHE_TYPES:
        known = ", ".join(CACHE_TYPES)
        raise ParameterError(f"cache_type must be one of {known}, got {short_repr(given)}", got=given, wanted=known)
    return kind


def _pieces(
    left: dict[int, list[int]],
    given: dict[int, Floats],
    steps: Iterable[tuple[list[int], int, InEffect]],
    outputs: Outputs,
) -> list[Piece]:
    """What each of the steps computes of the tokens that are left, and of the vectors that are given with them.

    ``outputs``: the results that the caller wants of the last tokens of a sequence, or with ALL of each token.
    """
    pieces = []
    for chosen, n, changes in steps:
        ends = frozenset(seq for seq in chosen if len(left[seq]) <= n)
        wanted = outputs if outputs is Outputs.ALL or ends else Outputs.NONE
        vectors = {seq: given[seq][:n] for seq in chosen} if given else None
        pieces.append(Piece({seq: left[seq][:n] for seq in chosen}, n, changes, wanted, ends, vectors))
        for seq in chosen:
            left[seq] = left[seq][n:]
            if given:
                given[seq] = given[seq][n:]
    return pieces


def _by_sequence(
    step: Step, results: Sequence[npt.NDArray[Any]], batch: Mapping[int, Sequence[int]]
) -> dict[int, Floats]:
    """The results of a step that are not collected values, by sequence."""
    if step.result is None:
        return {}
    first, n_seq = step.shape.first, step.shape.n_seq
    found = results[0].reshape(n_seq, -1, step.result.ne[0])
    if step.shape.outputs is Outputs.LAST:
        return {seq: found[seq - first] for seq in batch}
    return {seq: found[seq - first, : len(tokens)] for seq, tokens in batch.items()}


class Session(Uncopied):
    """``n_seq`` sequences of up to ``n_ctx`` tokens each, with the KV cache or recurrent state of ``model`` for them.

    The sequences of an encoder-decoder also have a source text each (:meth:`encode`), of up to ``n_ctx`` tokens.

    ``cache_type``: type of the KV cache, one of :data:`CACHE_TYPES`.  ``micro_batch``: maximum number of tokens of a
    sequence that are computed in one step.  ``planned``: its memory is planned and not allocated, for :meth:`largest`
    alone.  Graphs are made once for each shape of step and reused.

    Only one thread at a time may use a session; another one gets BusyError.  Sessions of one model lock the model while
    they compute.  After an interrupt, each sequence has the tokens that were decoded so far, or none.  Call
    :meth:`free` to release the memory, or use a ``with`` block.  Raises ParameterError, OutOfMemoryError, FreedError.
    """

    _INSTEAD = "make another session, and write this one with save() and read it with restore()"

    GRAPHS = 64
    """Number of graphs that are kept; the least recently used one is dropped first."""

    def __init__(
        self,
        model: LanguageModel,
        n_ctx: int | None = None,
        n_seq: int = 1,
        cache_type: str | Type = "f16",
        micro_batch: int = 512,
        *,
        planned: bool = False,
    ) -> None:
        n_ctx = min(CONTEXT, model.n_ctx) if n_ctx is None else n_ctx
        kind = cache_type_of(cache_type)
        self.model = model
        self.n_ctx = whole("n_ctx", n_ctx, 1)
        most = model.most_positions
        if most is not None and self.n_ctx > most:
            raise ParameterError(
                f"n_ctx is {self.n_ctx}, but this {model.architecture} model has embeddings for {most} positions only",
                got=self.n_ctx,
                wanted=most,
                remedy=f"use an n_ctx of at most {most}",
            )
        self.n_seq = whole("n_seq", n_seq, 1, SEQUENCES)
        self.micro_batch = min(whole("micro_batch", micro_batch, 1), self.n_ctx)
        self.freed = False
        self._entered_by = 0
        self._has_experts = Hyperparameters(model.metadata).integer("expert_count", 0, at_least=0) > 0
        self._tokens: list[list[int]] = [[] for _ in range(self.n_seq)]
        self._sources: list[list[int]] = [[] for _ in range(self.n_seq)]
        self._source_steps: Recent[tuple[int, tuple[GraphChange, ...]], SourceStep | None] = Recent(self.GRAPHS)
        self._changes = [0] * self.n_seq
        self._filled = [0] * self.n_seq
        """How many cells of each sequence may hold other values than 0, also of tokens that it has lost."""
        self._cells = model.cells(self.n_seq, self.n_ctx, self.micro_batch)
        self._last: dict[int, tuple[Step, int, tuple[GraphChange, ...]]] = {}
        """For each sequence the step of its last single token, how long it may become with it, and the patches."""
        last = self._last  # a function over self would keep the session from ending with its last reference
        self._steps: Recent[tuple[int, Shape, tuple[str, ...], tuple[GraphChange, ...]], Step] = Recent(
            self.GRAPHS, lambda _: last.clear()
        )
        """The first element of a key is the number of the scheduler that computes the step, in the model's pipeline."""
        self._adapting = Adapting(self.n_seq)
        self._adapted: list[dict[GraphChange, float] | None] = [{}] * self.n_seq
        """The adapters with which the source text and the tokens of each sequence were computed; None: with several
        scales."""
        self._patched: list[tuple[GraphChange, ...] | None] = [()] * self.n_seq
        """The other changes with which they were computed; None: not all with the same."""
        self._one = Tokens(np.zeros((1, 1), np.int64), np.zeros((1, 1), np.int64), np.zeros(1, np.int64))
        """A single token; it is changed for each."""
        counts = {window: each.count for window, each in self._cells.items()}
        with model.call():
            self._devices = devices = [model.device_of(number) for number in range(len(model.kinds))]
            chosen = any(model.cache_on(number) is not None for number in range(len(model.kinds)))
            usage = BufferUsage.WEIGHTS if chosen else BufferUsage.ANY
            self.memory = Memory(
                model.kinds, devices, self.n_seq, counts, kind, usage, planned=planned, split=model.split
            )

    @property
    def n_copies(self) -> int:
        """How many steps of a call are computed at the same time; see :attr:`.Model.n_copies`."""
        return self.model.copies(self._devices)

    # -- sequences ---------------------------------------------------------------------------------

    def tokens(self, seq: int = 0) -> tuple[int, ...]:
        """The tokens of a sequence."""
        return tuple(self._tokens[self._number(seq)])

    def length(self, seq: int = 0) -> int:
        """The number of tokens of a sequence."""
        return len(self._tokens[self._number(seq)])

    def changes(self, seq: int = 0) -> int:
        """A counter that grows whenever a sequence gets or loses tokens, and so shows whether other code used it."""
        return self._changes[self._number(seq)]

    @one_thread_at_a_time
    def clear(self, seq: int | None = None) -> None:
        """Removes the tokens of a sequence, or of all sequences, and the source texts."""
        for each in range(self.n_seq) if seq is None else (self._number(seq),):
            self._cut(each, 0)
            self._set_source(each, [])

    @one_thread_at_a_time
    def rewind(self, length: int, seq: int = 0) -> int:
        """Removes all tokens of a sequence but the first ``length``; returns the number of tokens that are left.

        That is ``length``, or 0 if the sequence cannot be rewound that far: because the cells of a sliding window were
        overwritten, or the model has a recurrent state.
        """
        seq = self._number(seq)
        length = whole("length", length)
        if length > len(self._tokens[seq]):
            raise ParameterError(
                f"cannot rewind to {length} tokens: sequence {seq} has {len(self._tokens[seq])}", got=length
            )
        if length == len(self._tokens[seq]):
            return length
        self._cut(seq, length if self.can_rewind(length, seq) else 0)
        return len(self._tokens[seq])

    def can_rewind(self, length: int, seq: int = 0) -> bool:
        """Whether the next token can follow the first ``length`` ones, after others were computed."""
        return not self.model.keeps_states and all(cells.keeps(seq, length) for cells in self._cells.values())

    def keep_prefix(self, tokens: Sequence[int], seq: int = 0) -> int:
        """Rewinds a sequence to its common prefix with ``tokens[:-1]``; returns the number of tokens that are left.

        The caller then decodes the rest of ``tokens``, which is at least one token, and so gets logits.
        """
        held = self._tokens[self._number(seq)]
        check_sequence(tokens, "tokens")
        return self.rewind(max(min(in_common(held, tokens), len(tokens) - 1), 0), seq)

    @one_thread_at_a_time
    def copy(self, source: int, target: int) -> None:
        """Copies a sequence with its KV cache or state to the sequence ``target``, whose tokens are replaced."""
        source, target = self._number(source), self._number(target)
        if source == target:
            return
        with self.locked():
            self._cut(target, 0)  # it stays empty until the copy is complete
            self._filled[target] = max(self._filled[source], self._filled[target])
            self._set_source(target, [])
            for a, b in zip(self.memory.of_sequence(source), self.memory.of_sequence(target), strict=True):
                b.set_bytes(a.tobytes())
            for cells in self._cells.values():
                cells.copied(source, target)
            self._adapting.copy(source, target)
            self._adapted[target], self._patched[target] = self._adapted[source], self._patched[source]
            self._set_source(target, self._sources[source])
            self._tokens[target] = list(self._tokens[source])

    def shift(self, keep: int, drop: int, seq: int = 0) -> None:
        """Removes the ``drop`` tokens after the first ``keep``, and decodes those after them again.

        This frees part of a full context.  It takes as long as a prompt of the tokens that are decoded again; the
        result is that of the shorter text.
        """
        seq = self._number(seq)
        held = self._tokens[seq]
        keep, drop = whole("keep", keep), whole("drop", drop)
        if keep + drop > len(held):
            raise ParameterError(
                f"cannot drop {drop} tokens after the first {keep}: sequence {seq} has {len(held)}", got=(keep, drop)
            )
        if not drop:
            return
        tokens = [*held[:keep], *held[keep + drop :]]
        again = tokens[self.rewind(keep, seq) :]
        if again:
            self.decode({seq: again}, Outputs.NONE)

    @one_thread_at_a_time
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes all sequences to a file; see :mod:`ggplug_models.state.session_files`."""
        save(self, path)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Replaces all sequences by those of a file that :meth:`save` wrote.

        A sequence with tokens has the scales of adapters with which they were computed, until :meth:`adapt` changes
        them; one without tokens has those of the model.

        Raises ModelError if the file is from another model, or from a session with other parameters; GGUFError.
        """
        restore(self, path)

    def overwritten(self, seq: int) -> list[int]:
        """For each kind of cells, the position before which those of a sequence were overwritten."""
        empty = not self.length(seq)
        return [0 if empty else cells.lost(seq) for cells in self._cells.values()]

    def overwritable(self, length: int) -> list[tuple[int, int]]:
        """For each kind of cells, the least and the largest :meth:`overwritten` of a sequence of this length."""
        return [cells.losable(length) for cells in self._cells.values()]

    @one_thread_at_a_time
    def adopt(self, seq: int, tokens: Sequence[int], overwritten: Sequence[int], source: Sequence[int] = ()) -> None:
        """Sets the tokens of a sequence, and its source text, whose keys, values or state the caller has set; see
        :meth:`overwritten`.

        Raises as :meth:`decode` and :meth:`encode`, and ParameterError for numbers that are not :meth:`overwritable`,
        before any change.
        """
        seq = self._number(seq)
        adopted = self._checked(seq, tokens, 0, source) if len(tokens) else []
        read = self._checked_source(seq, source) if len(source) else []
        limits = self.overwritable(len(adopted))
        fits = len(overwritten) == len(limits)
        if not fits or any(not least <= lost <= most for lost, (least, most) in zip(overwritten, limits, strict=True)):
            raise ParameterError(
                f"overwritten must be positions within {limits}, got {short_repr(overwritten)}",
                got=overwritten,
                wanted=limits,
            )
        self._cut(seq, 0)
        self._set_source(seq, [])
        self._compute_with(seq, self._in_effect(seq))
        for cells, lost in zip(self._cells.values(), overwritten, strict=True):
            cells.clear(seq)
            cells.lose(seq, lost)
        self._set_source(seq, read)
        self._filled[seq] = self.n_ctx
        self._tokens[seq] = adopted

    def _number(self, seq: int) -> int:
        if type(seq) is int and 0 <= seq < self.n_seq:
            return seq
        if not isinstance(seq, (int, np.integer)) or isinstance(seq, bool) or not 0 <= seq < self.n_seq:
            known = f"0 to {self.n_seq - 1}"
            raise ParameterError(f"seq must be from {known}, got {short_repr(seq)}", got=seq, wanted=known)
        return int(seq)

    def _cut(self, seq: int, length: int) -> None:
        """Cuts a sequence to ``length`` tokens in one operation, so that an interrupt leaves no intermediate state."""
        if self.freed:
            raise self.freed_error()
        self._changes[seq] += 1
        del self._tokens[seq][length:]

    def _set_source(self, seq: int, tokens: Sequence[int]) -> None:
        """Notes that the cells of a sequence hold the keys and values of a source text."""
        if tokens == self._sources[seq]:
            return
        for cells in self._cells.values():
            if isinstance(cells, SourceCells):
                cells.lengths[seq] = len(tokens)
        self._sources[seq] = list(tokens)
        self._last.clear()  # steps read as many cells as the longest source text has

    def _begin(self, seq: int) -> None:
        """Resets the states and cells of a sequence without tokens."""
        for state in self.memory.states(seq):
            state.set_zero()
        for cells in self._cells.values():
            cells.clear(seq)

    def _forget(self, seq: int) -> None:
        """Sets the cells of tokens that a sequence has lost to 0: they may hold NaN, and 0 times NaN is not 0."""
        held, filled = len(self._tokens[seq]), self._filled[seq]
        if filled > held:
            for each in self.memory.cells(seq, held, filled):
                each.set_zero()
            self._filled[seq] = held

    # -- adapters ----------------------------------------------------------------------------------

    def adapt(self, lora: Lora | None, seq: int = 0) -> None:
        """Computes a sequence with adapters of its own from now on: those that are named, with these scales.

        ``lora``: scales by what :meth:`.Network.adapt` returned.  None: all adapters act with the scales of the model,
        as in a new session.  A sequence whose scales change loses its tokens and its source text.  Sequences with equal
        scales are computed together, others one after the other: the results are those that each has alone.

        Raises ParameterError for what is no adapter in effect, and for scales that are no numbers.
        """
        self._adapt(self._number(seq), checked_scales(lora, self.model.patches))

    @one_thread_at_a_time
    def _adapt(self, seq: int, own: OwnScales) -> None:
        if not self._is_computed_with(own, seq):
            self._cut(seq, 0)
            self._set_source(seq, [])
        self._adapting.set(seq, own)

    def basis(self, seq: int = 0) -> Basis:
        """What a sequence is computed with, besides its tokens, for :meth:`set_basis`."""
        seq = self._number(seq)
        return Basis(self._adapting.own(seq), self.source(seq))

    def set_basis(self, basis: Basis, seq: int = 0) -> None:
        """Gives a sequence the adapters and the source text that :meth:`basis` returned.

        It keeps its tokens if it has these already.  Raises as :meth:`encode`.
        """
        seq = self._number(seq)
        if basis.own != self._adapting.own(seq):
            self._adapt(seq, basis.own)
        if basis.source != self.source(seq):
            self.encode(basis.source, seq)

    def is_adapted(self, lora: Lora | None, seq: int = 0) -> bool:
        """Whether a sequence is computed with these adapters: :meth:`adapt` would keep its tokens."""
        return self._is_computed_with(checked_scales(lora, self.model.patches), self._number(seq))

    def _is_computed_with(self, own: OwnScales, seq: int) -> bool:
        return self._computed_with(seq) == only_scaled(in_effect(own, self.model.patches))

    def _computed_with(self, seq: int) -> dict[GraphChange, float] | None:
        """The adapters for the tokens and the source text of a sequence, or for new ones if it has none.

        None: they were computed with several scales.
        """
        return only_scaled(self._in_effect(seq)) if self._is_empty(seq) else self._adapted[seq]

    def _is_empty(self, seq: int) -> bool:
        return not self._tokens[seq] and not self._sources[seq]

    def _compute_with(self, seq: int, changes: InEffect) -> None:
        """Notes what the next tokens of a sequence are computed with."""
        adapters, patches = only_scaled(changes), unscaled(changes)
        first = self._is_empty(seq)
        self._adapted[seq] = adapters if first or adapters == self._adapted[seq] else None
        self._patched[seq] = patches if first or patches == self._patched[seq] else None

    def adapters(self, seq: int = 0) -> str:
        """The adapters that a sequence is computed with, for a file.

        Raises ParameterError if their scales were changed between its tokens, or if one was removed since.
        """
        seq = self._number(seq)
        computed = self._computed_with(seq)
        if computed is None or not computed.keys() <= {*self.model.patches}:
            which = "several scales of adapters" if computed is None else "an adapter that was removed since"
            raise self._unsaid(seq, which)
        return as_text(computed)

    def patches(self, seq: int = 0) -> str:
        """The patches and control vectors that a sequence is computed with, for a file.

        Raises ParameterError for a function, and if they were changed between its tokens.
        """
        seq = self._number(seq)
        computed = unscaled(self._in_effect(seq)) if self._is_empty(seq) else self._patched[seq]
        if computed is None:
            raise self._unsaid(seq, "several patches or control vectors")
        return digests(computed)

    def _unsaid(self, seq: int, which: str) -> ParameterError:
        return ParameterError(
            f"the tokens of sequence {seq} were computed with {which}, which no file can say",
            got=seq,
            remedy=f"call clear({seq}), and decode them again",
        )

    def patches_in_effect(self) -> str:
        """The patches and control vectors with which the next tokens are computed, for a file.

        Raises ParameterError for a function.
        """
        return digests(unscaled(in_effect(None, self.model.patches)))

    def adapt_as(self, adapters: Mapping[int, str | None]) -> None:
        """As :meth:`adapt`, with what :meth:`adapters` returned, by sequence; None: the scales of the model.

        Raises ModelError, before any change, for an adapter that the model does not have.
        """
        there = self.model.patches
        of_model = only_scaled(in_effect(None, there))
        found = {self._number(seq): None if each is None else scales_in(each, there) for seq, each in adapters.items()}
        for seq, own in found.items():
            self._adapt(seq, None if own == of_model else own)

    def _in_effect(self, seq: int) -> InEffect:
        return self._adapting.of(seq, self.model.patches)

    # -- computing ---------------------------------------------------------------------------------

    def locked(self) -> Claim:
        """Locks the model, and keeps the session from being freed; see :meth:`.Model.locked`."""
        return self.model.locked(self)

    turn = locked
    """The former name of :meth:`locked`."""

    def source(self, seq: int = 0) -> tuple[int, ...]:
        """The tokens of the source text of a sequence."""
        return tuple(self._sources[self._number(seq)])

    @one_thread_at_a_time
    def encode(self, tokens: Sequence[int], seq: int = 0) -> None:
        """Reads the source text of a sequence of an encoder-decoder, as a whole; the sequence has no tokens then.

        A source text that the sequence has already is not computed again.

        Raises ParameterError for a model that reads no source text, for a text without tokens, and for ids outside of
        the vocabulary; ContextFullError for more than ``n_ctx`` tokens; FreedError.
        """
        seq = self._number(seq)
        checked = self._checked_source(seq, tokens)
        self._cut(seq, 0)
        if checked == self._sources[seq]:
            return
        with self.locked():
            self._set_source(seq, [])  # until it is complete
            changes = self._in_effect(seq)
            step = self._source_step(in_steps(len(checked)), tuple(changes))
            assert step is not None
            positions = np.full((1, in_steps(len(checked))), -1)
            positions[0, : len(checked)] = np.arange(len(checked))
            (cells,) = (each for each in self._cells.values() if isinstance(each, SourceCells))
            step.compute(self.model.scheduler, np.array(checked), cells.rows(seq, positions), changes)
        self._compute_with(seq, changes)
        self._set_source(seq, checked)

    def _source_step(self, n_tok: int, changes: tuple[GraphChange, ...]) -> SourceStep | None:
        """The step that reads a source text; None if the model reads none."""
        key = n_tok, changes
        return self._source_steps.of(key, lambda: self.model.build_source(n_tok, self.memory, changes))

    def _checked_source(self, seq: int, tokens: Sequence[int]) -> list[int]:
        """The ids of a source text."""
        if not self._reads_source:
            raise ParameterError(
                f"{self.model.architecture} models read no source text",
                got=self.model.architecture,
                remedy="decode the text, as the tokens of the sequence",
            )
        found = listed_ids(tokens, self.model.n_vocab, f"the source text of sequence {seq}")
        if len(found) > self.n_ctx:
            raise ContextFullError(
                f"the source text of sequence {seq} has {len(found)} tokens; the context length is {self.n_ctx}",
                got=len(found),
                wanted=self.n_ctx,
                remedy="create the session with a larger n_ctx",
            )
        return found

    @property
    def _reads_source(self) -> bool:
        return any(isinstance(cells, SourceCells) for cells in self._cells.values())

    @one_thread_at_a_time
    @memory_errors_typed
    def decode(
        self,
        batch: Mapping[int, Sequence[int]],
        outputs: Outputs = Outputs.LAST,
        *,
        hidden: bool = False,
        few: int = FEW,
        vectors: Mapping[int, Floats] | None = None,
        reader: Reader | None = None,
    ) -> dict[int, Floats]:
        """Appends tokens to sequences and computes them; returns the results by sequence.

        ``batch``: token ids by sequence.  ``outputs``: LAST returns the logits after the last token of each sequence,
        float32 ``(n_vocab,)``; ALL those after each token, ``(n, n_vocab)``; NONE returns nothing.  ``hidden``: return
        the normalised vectors of the last block instead of logits.  ``vectors``: what a head (:mod:`.heads`) reads of
        each token, ``(n, n_in)`` by sequence.  ``reader``: gets values of nodes after each step.

        Sequences with at most ``few`` tokens, similar numbers of tokens, and the same :meth:`adapters` are computed
        together (of models with a recurrent state: adjacent sequences with equal numbers); others one after the other,
        in micro-batches, all with the scales of adapters of the beginning.  Where several devices have layers,
        :attr:`n_copies` of these steps are under way at the same time, without ``vectors`` and ``reader``; the results
        are the same.  If it fails or is interrupted, each sequence has the tokens that were computed so far.

        Raises ParameterError for ids outside of the vocabulary; ContextFullError, before anything is computed, if a
        sequence would become longer than ``n_ctx``; FreedError.
        """
        plain = not hidden and vectors is None and reader is None
        if type(batch) is dict and len(batch) == 1 and outputs is Outputs.LAST and plain:
            ((seq, tokens),) = batch.items()
            if type(tokens) is list and len(tokens) == 1:
                logits = self._appended(self._number(seq), tokens[0])
                if logits is not None:
                    return {seq: logits}
        if not isinstance(batch, Mapping) or not isinstance(outputs, Outputs):
            raise ParameterError(
                f"decode takes a dict of token ids by sequence, and Outputs; got {short_repr(batch)} and "
                f"{short_repr(outputs)}",
                got=(batch, outputs),
            )
        few = whole("few", few)
        left = {self._number(seq): self._checked(seq, tokens, self.length(seq)) for seq, tokens in batch.items()}
        given = {} if vectors is None else rows_of(vectors, left)
        n_copies = self.n_copies if vectors is None and reader is None else 1
        most = self._most(outputs, hidden=hidden)
        pieces = _pieces(left, given, self._steps_of(left, few, most, n_copies), outputs)
        if n_copies == 1 or len(pieces) == 1:
            computed = [self._compute(piece, reader, hidden=hidden) for piece in pieces]
        else:
            computed = self._compute_pipelined(n_copies, pieces, hidden=hidden)
        if outputs is Outputs.NONE:
            return {}
        parts: dict[int, list[Floats]] = {seq: [] for seq in left}
        for piece, found in zip(pieces, computed, strict=True):
            for seq, rows in found.items():
                if outputs is Outputs.ALL or seq in piece.ends:
                    parts[seq].append(rows)
        if outputs is Outputs.LAST:
            return {seq: found[0][0] for seq, found in parts.items()}
        return {seq: np.concatenate(found) for seq, found in parts.items()}

    def explain(self) -> Explanation:
        """The scheduler's explanation of the last step: which device computes which node, and why.

        Raises ParameterError before the first step.
        """
        with self.locked():
            if not self._steps:
                raise ParameterError("nothing to explain: this session has decoded no tokens yet")
            step = next(reversed(self._steps.values()))
            assert step.graph is not None
            return self.model.scheduler.explain(step.graph)

    def _steps_of(
        self, batch: Mapping[int, Sequence[int]], few: int, most: int, n_copies: int
    ) -> list[tuple[list[int], int, InEffect]]:
        """The steps of a batch, each of sequences with the same adapters, which are in effect now; see
        :func:`.steps_of`.

        ``n_copies``: how many are computed at the same time.  So that there are some, those of several sequences are
        divided, but not of a mixture of experts, whose results depend on the number of tokens.
        """
        parts = 1 if n_copies == 1 or self._has_experts else 2 * n_copies
        alike: dict[tuple[tuple[GraphChange, float | None], ...], dict[int, int]] = {}
        for seq, tokens in batch.items():
            alike.setdefault(tuple(self._in_effect(seq).items()), {})[seq] = len(tokens)
        padded = not self.model.keeps_states
        return [
            (*step, dict(changes))
            for changes, counts in alike.items()
            for step in divided(steps_of(counts, few, most, padded=padded), counts, parts)
        ]

    def _checked(self, seq: int, tokens: Sequence[int], after: int, source: Sequence[int] | None = None) -> list[int]:
        """The ids, which a sequence can take after its first ``after`` ones; ``source``: by default its own."""
        if self._reads_source and not (self._sources[seq] if source is None else source):
            raise ParameterError(
                f"sequence {seq} has no source text, which {self.model.architecture} models read first",
                got=seq,
                remedy=f"call encode(tokens, {seq}) of the session before",
            )
        found = listed_ids(tokens, self.model.n_vocab, f"sequence {seq}")
        free = self.n_ctx - after
        if len(found) > free:
            raise ContextFullError(
                f"sequence {seq} cannot take {len(found)} more tokens: {self.n_ctx - free} of the {self.n_ctx} of its "
                "context are used",
                got=len(found),
                wanted=free,
                remedy="create the session with a larger n_ctx" + (", or call shift()" if free < self.n_ctx else ""),
            )
        return found

    def _most(self, outputs: Outputs, *, hidden: bool = False) -> int:
        """The maximum number of tokens of a sequence in a step with these results."""
        if outputs is not Outputs.ALL or hidden:
            return self.micro_batch
        return max(1, min(self.micro_batch, LARGEST_RESULT // (4 * self.model.n_vocab)))

    def _appended(self, seq: int, token: int) -> Floats | None:
        """The logits after one more token of a sequence, by the step that computed its last one.

        None if that step does not serve this token: :meth:`decode` then chooses another.
        """
        last, held = self._last.get(seq), self._tokens[seq]
        if last is None or type(token) is not int or not 0 <= token < self.model.n_vocab or not held:
            return None
        step, until, patches = last
        length = len(held) + 1
        changes = self._in_effect(seq)
        if length > until or patches != tuple(changes) or (step.reads_lost_cells and self._filled[seq] >= length):
            return None
        one = replace(self._one, scales=changes) if changes else self._one
        with self.locked():
            if changes:
                self._compute_with(seq, changes)
            one.ids[0, 0], one.positions[0, 0], one.lengths[0] = token, length - 1, length
            self._filled[seq] = max(self._filled[seq], length)
            for cells in self._cells.values():
                if cells.window:
                    cells.advance(seq, length)
            logits: Floats = self._advance(step, one, {seq: [token]})[0]
        return logits.reshape(-1)

    def _compute(self, piece: Piece, reader: Reader | None, *, hidden: bool) -> dict[int, Floats]:
        """Computes one step; returns the results by sequence."""
        batch = piece.tokens
        with self.locked():
            names = () if reader is None else reader.names
            step, tokens = self._step_of(
                batch, piece.n, piece.changes, piece.outputs, hidden=hidden, collect=names, vectors=piece.vectors
            )
            results = self._advance(step, tokens, batch)
        if reader is not None:
            first, n_seq = step.shape.first, step.shape.n_seq
            by_name = dict(zip(step.collected, results[len(results) - len(step.collected) :], strict=True))
            values = [by_name[name].reshape(n_seq, -1, by_name[name].shape[-1]) for name in names]
            for seq, added in batch.items():
                place = self.length(seq) - len(added)
                reader.read(seq, place, added, [each[seq - first, : len(added)] for each in values])
        return _by_sequence(step, results, batch)

    def _compute_pipelined(self, n_copies: int, pieces: Sequence[Piece], *, hidden: bool) -> list[dict[int, Floats]]:
        """As :meth:`_compute` for each of the pieces; ``n_copies`` steps are under way at the same time."""
        computed: list[dict[int, Floats]] = [{} for _ in pieces]
        lengths = {seq: len(self._tokens[seq]) for piece in pieces for seq in piece.tokens}
        begun, done = [False] * len(pieces), [False] * len(pieces)

        def job(number: int) -> Callable[[int], Callable[[], None]]:
            piece = pieces[number]

            def prepare(copy: int) -> Callable[[], None]:
                begun[number] = True
                step, tokens = self._step_of(
                    piece.tokens, piece.n, piece.changes, piece.outputs, hidden=hidden, copy=copy
                )
                values = step.values(tokens)  # now, because they depend on which cells hold what
                for seq, added in piece.tokens.items():  # the next step may be of these sequences, too
                    self._changes[seq] += 1
                    self._tokens[seq].extend(added)

                def compute() -> None:
                    results = step.compute_with(self.model.pipeline.schedulers[copy], values)
                    computed[number] = _by_sequence(step, results, piece.tokens)
                    done[number] = True

                return compute

            return prepare

        with self.locked():
            try:
                self.model.pipeline.compute([job(number) for number in range(len(pieces))], n_copies)
            except BaseException:
                for seq, length in lengths.items():
                    own = [number for number, piece in enumerate(pieces) if seq in piece.tokens]
                    failed = next((place for place, number in enumerate(own) if not done[number]), len(own))
                    kept = length + sum(len(pieces[number].tokens[seq]) for number in own[:failed])
                    if any(begun[number] for number in own[failed:]):
                        self._cut(seq, kept if self.can_rewind(kept, seq) else 0)
                raise
        return computed

    def _advance(self, step: Step, tokens: Tokens, batch: dict[int, list[int]]) -> list[npt.NDArray[Any]]:
        """The results of a step, after which the sequences have the tokens of ``batch``."""
        try:
            results = step.compute(self.model.scheduler, tokens)
            for seq, added in batch.items():
                self._changes[seq] += 1
                self._tokens[seq].extend(added)
            return results
        except BaseException:
            if self.model.keeps_states:  # some blocks may have updated their state
                for seq in batch:
                    self._tokens[seq].clear()
            raise

    @one_thread_at_a_time
    def collect(
        self, tokens: Sequence[int], collect: Iterable[str], *, last: bool = False
    ) -> dict[str, npt.NDArray[Any]]:
        """Appends tokens to sequence 0, and returns the values of nodes by name.

        ``collect``: names such as ``blk.3.attn_out``, and patterns such as ``blk.*.l_out``; ``logits`` is
        ``result_output``.  A value has one row for each token, the first axis of the array; with ``last`` it is that of
        the last token alone.  Values that no token has, such as cells of the KV cache, are those after the last step.
        The devices compute groups of nodes around those that are asked for.

        Raises as :meth:`decode`, and ParameterError for a name that no node has.
        """
        checked, patterns = self._checked(0, tokens, self.length()), patterns_of(collect)
        outputs = Outputs.LAST if last else Outputs.ALL
        size = self._most(outputs)
        parts: list[dict[str, npt.NDArray[Any]]] = []
        pieces = [checked[start : start + size] for start in range(0, len(checked), size)]
        changes = self._in_effect(0)

        def longer(shape: Shape) -> Step:
            patches = [each.of_any_length() for each in changes if each in self.model.patches]
            return self.model.build(shape, self.memory, self._cells, self.n_ctx, (), patches)

        for piece in pieces:
            wanted = not last or piece is pieces[-1]
            with self.locked():
                step, inputs = self._step_of(
                    {0: piece},
                    len(piece),
                    changes,
                    outputs if wanted else Outputs.NONE,
                    collect=patterns if wanted else (),
                )
                axes = step.axes_with(longer) if wanted else {}
                results = self._advance(step, inputs, {0: piece})
            if wanted:
                values = zip(step.collected, results[len(results) - len(step.collected) :], strict=True)
                parts.append({name: of_tokens(value, axes[name], len(piece), last=last) for name, value in values})
        return parts[-1] if last else joined(parts, axes)

    @one_thread_at_a_time
    def prepared(self, tokens: Sequence[int], outputs: Outputs = Outputs.LAST, *, hidden: bool = False) -> Graph:
        """The graph that decodes ``tokens`` as the next ones of sequence 0, with its inputs set, for tests and tools.

        ``outputs``, ``hidden``: see :meth:`decode`.  Call it, and compute the graph, inside of :meth:`locked`.  After
        that, the session can only be freed.
        """
        checked = self._checked(0, tokens, self.length())
        step, inputs = self._step_of({0: checked}, len(checked), self._in_effect(0), outputs, hidden=hidden)
        assert step.graph is not None
        self.model.scheduler.allocate(step.graph)
        step.fill(inputs)
        return step.graph

    def _step_of(
        self,
        batch: dict[int, list[int]],
        n: int,
        changes: InEffect,
        outputs: Outputs,
        *,
        hidden: bool = False,
        collect: tuple[str, ...] = (),
        vectors: Mapping[int, Floats] | None = None,
        copy: int = 0,
    ) -> tuple[Step, Tokens]:
        """The step for these tokens, and what its inputs are made of.  The caller has locked the model.

        ``changes``: those that were in effect when the call began; some may have been removed since.  ``copy``: the
        number of the scheduler in the model's pipeline that will compute it.
        """
        first, n_seq = min(batch), max(batch) - min(batch) + 1
        n = n if self.model.keeps_states else in_steps(n)
        # Lists, because a call of NumPy takes longer than a few tokens do.
        ids, positions, lengths = [], [], []
        for seq in range(first, first + n_seq):
            tokens, held = batch.get(seq, []), len(self._tokens[seq])
            padding = n - len(tokens)
            ids.append(tokens + [0] * padding)
            positions.append([*range(held, held + len(tokens))] + [-1] * padding)
            lengths.append(held + len(tokens))
        longest = max(lengths[seq - first] for seq in batch)
        spans = tuple((window, cells.span(longest)) for window, cells in self._cells.items())
        there = self.model.patches
        changes = {each: scale for each, scale in changes.items() if each in there}
        step = self._step(Shape(first, n_seq, n, spans, outputs, hidden), collect, tuple(changes), copy)
        single = n_seq == n == 1 and outputs is Outputs.LAST and not copy
        if single and not hidden and not collect and vectors is None:
            until = min([self.n_ctx, *(cells.serves(longest) for cells in self._cells.values())])
            self._last[first] = step, until, tuple(changes)
        for seq in batch:
            self._compute_with(seq, changes)
            if not self._tokens[seq]:
                self._begin(seq)
            if step.reads_lost_cells:
                self._forget(seq)
            self._filled[seq] = max(self._filled[seq], lengths[seq - first])
            for cells in self._cells.values():
                cells.advance(seq, lengths[seq - first])
        rows = None if vectors is None else padded_rows(vectors, first, n_seq, n)
        return step, Tokens(np.array(ids), np.array(positions), np.array(lengths), rows, changes)

    def _step(self, shape: Shape, collect: tuple[str, ...], changes: tuple[GraphChange, ...], copy: int = 0) -> Step:
        key = copy, shape, collect, changes
        return self._steps.of(
            key, lambda: self.model.build(shape, self.memory, self._cells, self.n_ctx, collect, changes)
        )

    def largest(self) -> list[Graph]:
        """The graphs of the steps that need the most memory: of a prompt, of a few tokens of several sequences, of one,
        of a source text.

        They read all cells of the context.
        """
        spans = tuple((window, cells.ring) for window, cells in self._cells.items())
        whole = self.micro_batch if self.model.keeps_states else in_steps(self.micro_batch)
        few = [(self.n_seq, min(FEW, self.micro_batch))] if self.n_seq > 1 else []
        sizes = dict.fromkeys([(1, whole), *few, (self.n_seq, 1)])
        graphs = []
        for n_seq, n in sizes:
            graph = self._step(Shape(0, n_seq, n, spans, Outputs.LAST), (), self.model.patches).graph
            assert graph is not None
            graphs.append(graph)
        source = self._source_step(in_steps(self.n_ctx), self.model.patches) if self._reads_source else None
        return graphs if source is None else [graphs[0], source.graph, *graphs[1:]]

    # -- life --------------------------------------------------------------------------------------

    def free(self) -> None:
        """Releases the memory, after waiting for the step that another thread computes; its next one raises FreedError.

        Raises BusyError inside of :meth:`locked`, and BufferUseError while arrays share the memory.
        """
        with locked(self):
            if self.freed:
                return
            self.memory.free()
            self._steps.clear()
            self._source_steps.clear()
            self._last.clear()
            self.freed = True

    def freed_error(self) -> FreedError:
        """The error for calls after :meth:`free`."""
        return FreedError(f"{self!r} was freed", thing=self, remedy="create another one: model.session()")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.free()

    def __repr__(self) -> str:
        used = ", ".join(str(len(tokens)) for tokens in self._tokens)
        size = f"{self.memory.nbytes / 2**20:.1f} MiB of {self.memory.type.name}"
        return f"<Session of {self.model!r}: {used} of {self.n_ctx} tokens, {size}>"
