"""Sessions: sequences of tokens that a language model has read, and goes on with."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

import ggplug as gg
from ggplug.backend import Device
from ggplug.errors import ContextFullError, FreedError, ParameterError
from ggplug.graph import Graph
from ggplug.scheduler import Explanation, Scheduler
from ggplug.sharing import Claim, alone
from ggplug.types import Type
from ggplug_models.checks.arguments import check_sequence, whole
from ggplug_models.checks.ids import in_common, listed_ids
from ggplug_models.metadata.values import shown
from ggplug_models.state.cells import GRANULE, Cells
from ggplug_models.state.memory import Kind, Memory
from ggplug_models.state.session_files import Known, restore, save
from ggplug_models.state.steps import Asked, Shape, Step, Tokens
from ggplug_models.tokenizers import Tokenizer

Floats = npt.NDArray[np.float32]

CONTEXT = 4096
"""Tokens of a sequence at most, unless another number is asked for, or the model takes fewer."""

SEQUENCES = 1 << 16
"""Sequences of a session at most."""

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")

FEW = 8
"""Sequences that go on with at most so many tokens are computed together."""

LARGEST_RESULT = 64 << 20
"""Bytes of logits that a step returns at most, where it has several tokens."""


class LanguageModel(Known, Protocol):
    """What a session, and what goes on with one, asks of a language model; :class:`.Decoder` says what each is."""

    @property
    def n_ctx(self) -> int:
        """Tokens that a text may have."""

    @property
    def most_positions(self) -> int | None:
        """How many positions there are; None: any number."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What each block remembers."""

    @property
    def keeps_states(self) -> bool:
        """Whether there are blocks without a way back to earlier tokens."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The file's."""

    @property
    def scheduler(self) -> Scheduler:
        """What computes its graphs."""

    def is_long(self, n_ctx: int) -> bool:
        """Whether contexts of so many tokens are computed in another way than short ones."""

    def cells(self, n_seq: int, n_ctx: int, n_step: int) -> dict[int, Cells]:
        """By window of its blocks, where a session keeps positions."""

    def build(self, shape: Shape, memory: Memory, cells: Mapping[int, Cells], n_ctx: int) -> Step:
        """The graph of the steps of a shape."""

    def device_of(self, number: int) -> Device:
        """Where a block is computed."""

    def turn(self) -> Claim:
        """For a ``with`` block from setting inputs to reading results."""

    def call(self) -> Claim:
        """For a ``with`` block around a whole call."""

    def session(self, n_ctx: int | None = None, n_seq: int = 1, cache_type: str | Type = "f16") -> Session:
        """New sequences."""


class Session:
    """``n_seq`` sequences of up to ``n_ctx`` tokens each, with what ``model`` remembers of them.

    ``cache_type``: of keys and values, one of :data:`CACHE_TYPES`.  ``micro_batch``: tokens of a sequence that are
    computed together at most.  Graphs are made once for each shape of step and computed again from then on.

    A session takes turns with all else that computes with its model; it is itself used by one thread at a time, and
    another one gets BusyError.  After an interrupt each sequence has the tokens that it was read with so far, or none.
    Owns memory: :meth:`free`, or a ``with`` block.  Raises ParameterError, OutOfMemoryError, FreedError.
    """

    GRAPHS = 64
    """Graphs that are kept; the one used longest ago goes first."""

    def __init__(
        self,
        model: LanguageModel,
        n_ctx: int | None = None,
        n_seq: int = 1,
        cache_type: str | Type = "f16",
        micro_batch: int = 512,
    ) -> None:
        n_ctx = min(CONTEXT, model.n_ctx) if n_ctx is None else n_ctx
        name = cache_type.lower() if isinstance(cache_type, str) else None
        kind = gg.types.by_name(name) if name in CACHE_TYPES else cache_type
        if not isinstance(kind, Type) or kind.name not in CACHE_TYPES:
            there = ", ".join(CACHE_TYPES)
            raise ParameterError(f"cache_type is {shown(cache_type)}: there are {there}", got=cache_type, wanted=there)
        self.model = model
        self.n_ctx = whole("n_ctx", n_ctx, 1)
        most = model.most_positions
        if most is not None and self.n_ctx > most:
            raise ParameterError(
                f"n_ctx is {self.n_ctx}, and this {model.architecture} model has {most} positions, each a row of its "
                "table",
                got=self.n_ctx,
                wanted=most,
                remedy=f"take at most {most}, and no longer texts",
            )
        self.n_seq = whole("n_seq", n_seq, 1, SEQUENCES)
        self.micro_batch = min(whole("micro_batch", micro_batch, 1), self.n_ctx)
        self.freed = False
        self._entered_by = 0
        self._tokens: list[list[int]] = [[] for _ in range(self.n_seq)]
        self._changes = [0] * self.n_seq
        self._cells = model.cells(self.n_seq, self.n_ctx, self.micro_batch)
        self._steps: OrderedDict[Shape, Step] = OrderedDict()
        counts = {window: each.count for window, each in self._cells.items()}
        with model.call():
            devices = [model.device_of(number) for number in range(len(model.kinds))]
            self.memory = Memory(model.kinds, devices, self.n_seq, counts, kind)

    # -- sequences ---------------------------------------------------------------------------------

    def tokens(self, seq: int = 0) -> tuple[int, ...]:
        """The tokens of a sequence that are remembered."""
        return tuple(self._tokens[self._number(seq)])

    def length(self, seq: int = 0) -> int:
        """How many tokens a sequence has."""
        return len(self._tokens[self._number(seq)])

    def changes(self, seq: int = 0) -> int:
        """A number that grows when a sequence gets or loses tokens: whether somebody else went on with it."""
        return self._changes[self._number(seq)]

    @alone
    def clear(self, seq: int | None = None) -> None:
        """Forgets a sequence, or all."""
        for each in range(self.n_seq) if seq is None else (self._number(seq),):
            self._cut(each, 0)

    @alone
    def rewind(self, length: int, seq: int = 0) -> int:
        """Forgets the tokens of a sequence from number ``length`` on; tells how many are still remembered.

        That is 0 where what comes before is not remembered any more: windows slide, and states know no earlier token.
        """
        seq = self._number(seq)
        length = whole("length", length)
        if length > len(self._tokens[seq]):
            raise ParameterError(f"sequence {seq} has {len(self._tokens[seq])} tokens, not {length}", got=length)
        if length == len(self._tokens[seq]):
            return length
        keeps = not self.model.keeps_states and all(cells.keeps(seq, length) for cells in self._cells.values())
        self._cut(seq, length if keeps else 0)
        return len(self._tokens[seq])

    def keep_prefix(self, tokens: Sequence[int], seq: int = 0) -> int:
        """Rewinds a sequence to what it has in common with ``tokens``, less the last of these; tells how much that is.

        So all of ``tokens`` but these have to be decoded, and there is a result for the last.
        """
        held = self._tokens[self._number(seq)]
        check_sequence(tokens, "tokens")
        return self.rewind(max(min(in_common(held, tokens), len(tokens) - 1), 0), seq)

    @alone
    def copy(self, source: int, target: int) -> None:
        """Makes a sequence like another one, so that both go on from the same prefix."""
        source, target = self._number(source), self._number(target)
        if source == target:
            return
        with self.turn():
            self._cut(target, 0)  # it is empty until all is there
            for a, b in zip(self.memory.of_sequence(source), self.memory.of_sequence(target), strict=True):
                b.set_bytes(a.tobytes())
            for cells in self._cells.values():
                cells.copied(source, target)
            self._tokens[target] = list(self._tokens[source])

    def shift(self, keep: int, drop: int, seq: int = 0) -> None:
        """Makes room: forgets ``drop`` tokens behind the first ``keep``, and reads those that come after once more.

        So what follows is what the model says to the shorter text; that costs a prompt of that length.
        """
        seq = self._number(seq)
        held = self._tokens[seq]
        keep, drop = whole("keep", keep), whole("drop", drop)
        if keep + drop > len(held):
            raise ParameterError(f"{drop} tokens behind {keep} are not there: there are {len(held)}", got=(keep, drop))
        if not drop:
            return
        tokens = [*held[:keep], *held[keep + drop :]]
        again = tokens[self.rewind(keep, seq) :]
        if again:
            self.decode({seq: again}, Asked.NONE)

    @alone
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes all sequences to a file; see :mod:`ggplug_models.state.session_files`."""
        save(self, path)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Goes on from what :meth:`save` wrote, by a session of the same shape for the same model.

        Raises ModelError for another one, GGUFError.
        """
        restore(self, path)

    def overwritten(self, seq: int) -> list[int]:
        """For each kind of cells, before which position those of a sequence were overwritten."""
        empty = not self.length(seq)
        return [0 if empty else cells.lost(seq) for cells in self._cells.values()]

    def overwritable(self, length: int) -> list[tuple[int, int]]:
        """For each kind of cells the least and the most that :meth:`overwritten` is of a sequence of this length."""
        return [cells.losable(length) for cells in self._cells.values()]

    @alone
    def adopt(self, seq: int, tokens: Sequence[int], overwritten: Sequence[int]) -> None:
        """Takes as read what the memory of a sequence, which was empty, was set to; see :meth:`overwritten`."""
        self._cut(seq, 0)
        for cells, lost in zip(self._cells.values(), overwritten, strict=True):
            cells.clear(seq)
            cells.lose(seq, lost)
        self._tokens[seq] = [int(token) for token in tokens]

    def _number(self, seq: int) -> int:
        if not isinstance(seq, (int, np.integer)) or isinstance(seq, bool) or not 0 <= seq < self.n_seq:
            there = f"0 to {self.n_seq - 1}"
            raise ParameterError(f"there is no sequence {shown(seq)}, but {there}", got=seq, wanted=there)
        return int(seq)

    def _cut(self, seq: int, length: int) -> None:
        """Nothing but the tokens go, so that an interrupt finds a sequence as it was or as it will be."""
        if self.freed:
            raise self._freed_error()
        self._changes[seq] += 1
        del self._tokens[seq][length:]

    def _begin(self, seq: int) -> None:
        """What a sequence without tokens remembers: nothing."""
        for state in self.memory.states(seq):
            state.set_zero()
        for cells in self._cells.values():
            cells.clear(seq)

    # -- computing ---------------------------------------------------------------------------------

    def turn(self) -> Claim:
        """A turn with the model.  Raises FreedError."""
        if self.freed:
            raise self._freed_error()
        return self.model.turn()

    @alone
    def decode(
        self, batch: Mapping[int, Sequence[int]], asked: Asked = Asked.LAST, *, hidden: bool = False, few: int = FEW
    ) -> dict[int, Floats]:
        """Reads tokens behind those that sequences have; by sequence what comes of it.

        ``asked`` LAST: the logits after the last token, float32 [n_vocab]; ALL: after each, [n, n_vocab]; NONE: none.
        ``hidden``: the last block's vectors, normed, in their place.

        Sequences with at most ``few`` tokens, and about as many, are computed together, others one after the other, in
        pieces; of models with states those that are neighbours and have equally many.  If it fails, or is interrupted,
        each sequence has the tokens that were read so far.

        Raises ParameterError for ids that the model does not have; ContextFullError where a sequence has no room,
        before anything is computed; FreedError.
        """
        if not isinstance(batch, Mapping) or not isinstance(asked, Asked):
            raise ParameterError(
                f"decode takes a dict of token ids by sequence and an Asked, got {shown(batch)} and {shown(asked)}",
                got=(batch, asked),
            )
        few = whole("few", few)
        left = {self._number(seq): self._checked(seq, tokens) for seq, tokens in batch.items()}
        parts: dict[int, list[Floats]] = {seq: [] for seq in left}
        for chosen, n in self._pieces({seq: len(tokens) for seq, tokens in left.items()}, few, asked, hidden=hidden):
            now = {seq: left[seq][:n] for seq in chosen}
            last = {seq for seq in chosen if len(left[seq]) <= n}
            wanted = asked if asked is Asked.ALL or last else Asked.NONE
            for seq, found in self._compute(now, n, wanted, hidden=hidden).items():
                if asked is Asked.ALL or seq in last:
                    parts[seq].append(found)
            for seq in chosen:
                left[seq] = left[seq][n:]
        if asked is Asked.NONE:
            return {}
        if asked is Asked.LAST:
            return {seq: found[0][0] for seq, found in parts.items()}
        return {seq: np.concatenate(found) for seq, found in parts.items()}

    def explain(self) -> Explanation:
        """What the scheduler does in the step that was computed last: which device computes which node, and why.

        Raises ParameterError before the first step.
        """
        if not self._steps:
            raise ParameterError("no step was computed yet, so there is nothing to explain")
        step = next(reversed(self._steps.values()))
        assert step.graph is not None
        with self.turn():
            return self.model.scheduler.explain(step.graph)

    def _checked(self, seq: int, tokens: Sequence[int]) -> list[int]:
        found = listed_ids(tokens, self.model.n_vocab, f"sequence {seq}")
        room = self.n_ctx - len(self._tokens[seq])
        if len(found) > room:
            raise ContextFullError(
                f"sequence {seq} has {self.n_ctx - room} of {self.n_ctx} tokens, and no room for {len(found)} more",
                got=len(found),
                wanted=room,
                remedy="make the session with a larger n_ctx" + (", or call shift()" if room < self.n_ctx else ""),
            )
        return found

    def _pieces(self, counts: dict[int, int], few: int, asked: Asked, *, hidden: bool) -> list[tuple[list[int], int]]:
        """Which sequences are computed together, and how many tokens of each, step by step."""
        most = self.micro_batch
        if asked is Asked.ALL and not hidden:
            most = max(1, min(most, LARGEST_RESULT // (4 * self.model.n_vocab)))
        pieces: list[tuple[list[int], int]] = []
        together: list[int] = []
        for seq, count in sorted(counts.items()):
            if count > min(few, most):
                pieces += [([seq], min(most, count - start)) for start in range(0, count, most)]
                continue
            if together and not self._fit([counts[each] for each in together], count, seq - together[-1]):
                pieces.append((together, max(counts[each] for each in together)))
                together = []
            together.append(seq)
        if together:
            pieces.append((together, max(counts[each] for each in together)))
        return pieces

    def _fit(self, counts: list[int], count: int, distance: int) -> bool:
        """Whether a sequence that comes so far behind others is computed with them: the step is filled up for it.

        States would read what only fills up, and what lies between.
        """
        if self.model.keeps_states:
            return distance == 1 and count == counts[-1]
        return in_steps(max(*counts, count)) - min(*counts, count) <= GRANULE

    def _compute(self, batch: dict[int, list[int]], n: int, asked: Asked, *, hidden: bool) -> dict[int, Floats]:
        """One step: the tokens of ``batch``, at most ``n`` of each sequence."""
        first, n_seq = min(batch), max(batch) - min(batch) + 1
        with self.turn():
            step = self._filled(batch, n, asked, hidden=hidden)
            assert step.graph is not None
            try:
                self.model.scheduler.compute(step.graph)
                for seq, tokens in batch.items():
                    self._changes[seq] += 1
                    self._tokens[seq].extend(tokens)
            except BaseException:
                if self.model.keeps_states:  # they may be those of some of the blocks, or of all
                    for seq in batch:
                        self._tokens[seq].clear()
                raise
            if step.result is None:
                return {}
            found = step.result.numpy().reshape(n_seq, -1, step.result.ne[0])
        if asked is Asked.LAST:
            return {seq: found[seq - first] for seq in batch}
        return {seq: found[seq - first, : len(tokens)] for seq, tokens in batch.items()}

    @alone
    def prepared(self, tokens: Sequence[int]) -> Graph:
        """The graph that reads ``tokens`` as the first ones of sequence 0, its inputs set, for others to compute.

        What computes it belongs into a :meth:`turn`, and so does this call.  The session can only be freed then.
        """
        checked = self._checked(0, tokens)
        graph = self._filled({0: checked}, len(checked), Asked.LAST, hidden=False).graph
        assert graph is not None
        return graph

    def _filled(self, batch: dict[int, list[int]], n: int, asked: Asked, *, hidden: bool) -> Step:
        """The step of these tokens, allocated and with its inputs, in a turn."""
        first, n_seq = min(batch), max(batch) - min(batch) + 1
        n = n if self.model.keeps_states else in_steps(n)
        # Lists: each of NumPy's calls takes longer than a few tokens, in caches that hold weights.
        ids, positions, lengths = [], [], []
        for seq in range(first, first + n_seq):
            tokens, held = batch.get(seq, []), len(self._tokens[seq])
            filling = n - len(tokens)
            ids.append(tokens + [0] * filling)
            positions.append([*range(held, held + len(tokens))] + [-1] * filling)
            lengths.append(held + len(tokens))
        longest = max(lengths[seq - first] for seq in batch)
        spans = tuple((window, cells.span(longest)) for window, cells in self._cells.items())
        step = self._step(Shape(first, n_seq, n, spans, asked, hidden))
        assert step.graph is not None
        for seq in batch:
            if not self._tokens[seq]:
                self._begin(seq)
            for cells in self._cells.values():
                cells.advance(seq, lengths[seq - first])
        self.model.scheduler.allocate(step.graph)
        step.fill(Tokens(np.array(ids), np.array(positions), np.array(lengths)))
        return step

    def _step(self, shape: Shape) -> Step:
        step = self._steps.get(shape)
        if step is None:
            step = self._steps[shape] = self.model.build(shape, self.memory, self._cells, self.n_ctx)
            if len(self._steps) > self.GRAPHS:
                self._steps.popitem(last=False)
        else:
            self._steps.move_to_end(shape)
        return step

    # -- life --------------------------------------------------------------------------------------

    def free(self) -> None:
        """Gives the memory back, after waiting for the model's other threads."""
        self.memory.free()
        self._steps.clear()
        self.freed = True

    def _freed_error(self) -> FreedError:
        return FreedError(f"{self!r} was freed", thing=self, remedy="make another one: model.session()")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.free()

    def __repr__(self) -> str:
        used = ", ".join(str(len(tokens)) for tokens in self._tokens)
        size = f"{self.memory.nbytes / 2**20:.1f} MiB of {self.memory.type.name}"
        return f"<Session of {self.model!r}: {used} of {self.n_ctx} tokens, {size}>"


def in_steps(n: int) -> int:
    """Tokens of a sequence in a step, rounded up so that few different numbers occur."""
    if n <= FEW:
        return n
    step = min(max(8, 1 << (n - 1).bit_length() - 3), GRANULE)
    return -(-n // step) * step
