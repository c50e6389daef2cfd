"""Continuous batching (Yu et al. 2022, "Orca"): requests join and leave the batch between two tokens.

The answer to a request depends on the request only, bit by bit, as far as a device computes a token alike whatever
other tokens the step has.  Devices do so for generated tokens, one of each sequence, and for chunks of a prompt with at
least :data:`LEAST` tokens; but the kernels for the two round differently.  Therefore

- generated tokens are in one step (of those texts that have the same scales of adapters), and each chunk of a prompt in
  a step of its own;
- a prompt is cut at the micro-batches of the session (:attr:`Sequences.micro_batch`), and in between only into chunks
  of at least :data:`LEAST` tokens;
- only the tokens of a sequence that were computed as such chunks of a prompt are reused for another request.

For a mixture of experts, no such number exists, because each expert gets an arbitrary number of a step's tokens.  Its
prompts are cut at micro-batches only (``least``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ggplug.errors import DeviceLostError, FreedError, GGPlugError, ParameterError, in_one_line
from ggplug.hookspecs import HOOKS
from ggplug_models.checks.ids import in_common
from ggplug_models.generation.finish import Finish
from ggplug_models.serve.request import Event, Floats, Request
from ggplug_models.serve.slot_drafts import SlotDrafts
from ggplug_models.state.adapting import Lora
from ggplug_models.state.batching import FEW
from ggplug_models.state.session import Reader
from ggplug_models.state.steps import Outputs

LOG = logging.getLogger("ggplug.serve")

MOST_REPLAYS = 3
"""How often a text is computed again because of lost devices without getting one more token in between."""

LEAST = 32
"""Minimum number of tokens of a chunk of a prompt, so that results do not depend on the size of the chunk."""


class QueueFullError(GGPlugError):
    """The queue of waiting requests is full.  ``got``: its length."""


class Sequences(Protocol):
    """The sequences that a batcher uses; a :class:`~ggplug_models.state.session.Session` has them."""

    n_ctx: int
    n_seq: int
    micro_batch: int

    def tokens(self, seq: int, /) -> Sequence[int]:
        """The tokens of a sequence."""

    def keep_prefix(self, tokens: Sequence[int], seq: int, /) -> int:
        """Rewinds a sequence to its common prefix with ``tokens[:-1]``; returns the number of tokens that are left."""

    def decode(
        self, batch: Mapping[int, Sequence[int]], outputs: Outputs = ..., /, *, reader: Reader | None = ...
    ) -> Mapping[int, Floats]:
        """Appends tokens to sequences and computes them; returns the logits after the last or all tokens."""

    def clear(self, seq: int, /) -> None:
        """Removes the tokens of a sequence."""

    def is_adapted(self, lora: Lora | None, seq: int, /) -> bool:
        """Whether a sequence is computed with these scales of adapters."""

    def adapt(self, lora: Lora | None, seq: int, /) -> None:
        """Sets these scales; a sequence that was computed with others loses its tokens."""


@dataclass
class Counts:
    """Counters of the work with a model; a server that loads it again goes on counting.

    ``longest``: largest number of tokens of a sequence.  ``busy``: number of active slots, summed over all steps.
    ``drafts``: steps of a text with draft tokens, of which there were ``drafted``.  ``embedded_tokens``,
    ``embedded_steps``: tokens and batches for embeddings.  ``restored``: how often the model was loaded again because a
    device was lost; ``replayed``: texts that were computed again then.
    """

    finished: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    prompt_seconds: float = 0.0
    generating_seconds: float = 0.0
    steps: int = 0
    longest: int = 0
    busy: int = 0
    drafted: int = 0
    accepted: int = 0
    drafts: int = 0
    embedded_tokens: int = 0
    embedded_steps: int = 0
    restored: int = 0
    replayed: int = 0


@dataclass
class Status(Counts):
    """The counters, and the numbers of waiting and active requests."""

    waiting: int = 0
    active: int = 0


class SlotStatus(NamedTuple):
    """A slot: its number, its request (None: it is free), and the number of tokens that its sequence has."""

    number: int
    request: Request | None
    tokens: int


@dataclass
class _Slot:
    """A sequence with the request that it computes.

    ``prompt``: the tokens that are computed in chunks: those of the request, and after a shift or a loss all that there
    are.  ``read``: number of them that are computed.  ``history``: the tokens of prompt and answer.  ``remaining``:
    number of tokens that may still be generated.  ``keep``: number of tokens before those that shifts dropped.
    """

    request: Request
    prompt: list[int]
    read: int
    history: list[int]
    remaining: int
    keep: int = 0
    replays: int = 0
    """How often the text was computed again since its last token."""

    @property
    def reads_request(self) -> bool:
        """Whether ``prompt`` is the request's own."""
        return self.prompt is self.request.prompt

    @property
    def generates(self) -> bool:
        """Whether the prompt is computed, and so the next token is a generated one."""
        return self.read == len(self.prompt)

    @property
    def length(self) -> int:
        """The number of tokens that the sequence has after the next step."""
        return len(self.history) - self.request.dropped

    @property
    def text(self) -> list[int]:
        """The tokens that the next ones follow: all but those that were dropped."""
        dropped = self.request.dropped
        return self.history[: self.keep] + self.history[self.keep + dropped :] if dropped else self.history

    def shift(self) -> None:
        """Drops tokens, so that those that are left become the prompt."""
        shift, request = self.request.shift, self.request
        assert shift is not None
        self.keep, drop = shift.parts(self.length)
        request.dropped += drop
        self._read_again()

    def replay(self) -> bool:
        """Has all tokens computed again, as a prompt; False if that was tried often enough, or cannot be."""
        self.replays += 1
        if self.replays > MOST_REPLAYS or self.request.scored is not None:
            return False
        self._read_again()
        return True

    def _read_again(self) -> None:
        self.prompt = list(self.text)
        self.read = 0


@dataclass
class _Shared:
    """What several threads change, with the condition held."""

    waiting: deque[Request] = field(default_factory=deque)
    calls: deque[tuple[Callable[[], Any], Future[Any]]] = field(default_factory=deque)
    active: int = 0
    closed: bool = False


class Batcher:
    """Generates the texts of many requests, one in each of ``sequences``.

    In each round, every text gets one more token, and prompts get about ``piece`` tokens together, so that a long
    prompt does not delay the other requests.  A request gets the free sequence that shares the longest prefix with its
    prompt.  ``waiting``: maximum number of requests that wait for a sequence.  ``least``: minimum number of tokens of a
    chunk of a prompt; None: prompts are cut at micro-batches only.  ``at_once``: how many chunks ``sequences`` compute
    at the same time; those of several prompts are then computed by one call, and end together if that fails.
    ``drafts``: guess tokens, for speculative decoding.  ``counts``: where work is counted.

    ``again``: makes sequences and drafts like these after a device was lost; None: cannot.  They are made when they are
    needed next.  ``replays``: whether the texts of that moment go on then; otherwise they end with the error.  A text
    that goes on is computed again as a prompt, which can round differently.

    A thread computes them; no other code may use ``sequences``, which the caller frees after :meth:`close`.
    """

    def __init__(
        self,
        sequences: Sequences,
        *,
        waiting: int = 64,
        piece: int = 128,
        least: int | None = LEAST,
        at_once: int = 1,
        drafts: SlotDrafts | None = None,
        counts: Counts | None = None,
        again: Callable[[], tuple[Sequences, SlotDrafts | None]] | None = None,
        replays: bool = False,
    ) -> None:
        if waiting < 0 or piece < 1:
            raise ParameterError(f"waiting must be at least 0 and piece at least 1, got {waiting} and {piece}")
        self.sequences = sequences
        self._most_waiting = waiting
        self._piece = piece
        self._drafts = drafts
        self._at_once = at_once
        self._least = sequences.micro_batch if least is None else least
        self._slots: dict[int, _Slot] = {}
        self._reusable = [0] * sequences.n_seq
        """By sequence, the number of its first tokens that other requests may reuse."""
        self._counts = counts or Counts()
        self._again = again
        self._replays = replays
        self._lost: DeviceLostError | None = None
        """Why ``sequences`` cannot be used any more."""
        self._flushes: set[Callable[[], None]] = set()
        self._shared = _Shared()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="ggplug batcher", daemon=True)
        self._thread.start()

    def check(self, count: int) -> None:
        """Raises ParameterError if ``count`` requests can never be accepted together."""
        most = self.sequences.n_seq + self._most_waiting
        if count > most:
            raise ParameterError(
                f"a request for {count} texts exceeds the capacity of {most} active and waiting texts",
                got=count,
                wanted=most,
            )

    def submit(self, request: Request) -> None:
        """Queues a request; :meth:`Request.tokens` yields its tokens.

        Raises ParameterError for a prompt that is empty or longer than the context, QueueFullError, and FreedError
        after :meth:`close`.
        """
        length, n_ctx = len(request.prompt), self.sequences.n_ctx
        if not 1 <= length <= n_ctx:
            raise ParameterError(f"the prompt has {length} tokens; 1 to {n_ctx} are allowed", got=length, wanted=n_ctx)
        if request.max_tokens is not None and request.max_tokens < 0:
            raise ParameterError(f"max_tokens must be at least 0, got {request.max_tokens}", got=request.max_tokens)
        with self._changed:
            if self._shared.closed:
                raise FreedError("the batcher was closed", thing=self)
            free = self.sequences.n_seq - self._shared.active
            waiting = self._forget_cancelled()
            if waiting >= self._most_waiting + free:
                raise QueueFullError(f"{waiting} requests are waiting", got=waiting)
            self._shared.waiting.append(request)
            self._changed.notify()

    @property
    def status(self) -> Status:
        """The current status."""
        with self._changed:
            waiting = self._forget_cancelled()
            return Status(**vars(self._counts), waiting=waiting, active=self._shared.active)

    @property
    def guesses(self) -> bool:
        """Whether there are drafts."""
        return self._drafts is not None

    @property
    def slots(self) -> list[SlotStatus]:
        """The current status of each slot; after :meth:`close` all are free and empty."""
        active = self._slots.copy()
        numbers = range(self.sequences.n_seq)
        return [
            SlotStatus(
                number,
                active[number].request if number in active else None,
                0 if self.closed or self._lost else len(self.sequences.tokens(number)),
            )
            for number in numbers
        ]

    def call(self, function: Callable[[], Any]) -> Future[Any]:
        """Has the thread call a function between two rounds, when it may use the sequences.

        The future has its result.  Raises FreedError after :meth:`close`.
        """
        found: Future[Any] = Future()
        with self._changed:
            if self._shared.closed:
                raise FreedError("the batcher was closed", thing=self)
            self._shared.calls.append((function, found))
            self._changed.notify()
        return found

    def check_free(self, number: int) -> None:
        """Raises ParameterError if there is no slot with this number, or if it computes a request; for :meth:`call`."""
        if not 0 <= number < self.sequences.n_seq:
            raise ParameterError(f"there is no slot {number}; slots are 0 to {self.sequences.n_seq - 1}", got=number)
        if number in self._slots:
            raise ParameterError(f"slot {number} computes a request", got=number, remedy="try again later")

    def reusable(self, number: int) -> int:
        """The number of the first tokens of a slot that other requests may reuse; for :meth:`call`."""
        return min(self._reusable[number], len(self.sequences.tokens(number)))

    def set_reusable(self, number: int, count: int) -> None:
        """Declares that other requests may reuse the first ``count`` tokens of a slot; for :meth:`call`."""
        self._reusable[number] = count

    def _forget_cancelled(self) -> int:
        """Removes cancelled requests from the queue; returns its length.  The caller holds the condition."""
        waiting = self._shared.waiting
        for request in [each for each in waiting if each.cancelled]:
            waiting.remove(request)
            request.deliver(Finish.CANCELLED)
            if request.flush is not None:
                request.flush()
            self._counts.finished += 1
        return len(waiting)

    @property
    def closed(self) -> bool:
        """Whether the batcher accepts no more requests, after :meth:`close` or because its thread failed."""
        return self._shared.closed

    def close(self) -> None:
        """Cancels all requests and ends the thread."""
        with self._changed:
            self._shared.closed = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Batcher:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._ready():
                for batch in self._steps():
                    self._compute(batch)
                    self._flush()
                    if self._lost is not None:
                        break
        finally:  # no reader may wait for a thread that has ended
            with self._changed:
                self._shared.closed = True
                for number in list(self._slots):
                    self._end(number, Finish.CANCELLED)
                while self._shared.waiting:
                    self._deliver(self._shared.waiting.popleft(), Finish.CANCELLED)
                while self._shared.calls:
                    self._shared.calls.popleft()[1].cancel()
            self._flush()

    def _ready(self) -> bool:
        """Waits until there is work, and assigns free sequences to requests; False if the batcher was closed."""
        for number, slot in list(self._slots.items()):
            if slot.request.cancelled:
                self._end(number, Finish.CANCELLED)
        self._flush()
        with self._changed:
            shared = self._shared
            self._changed.wait_for(lambda: shared.closed or shared.waiting or shared.calls or self._slots)
            if shared.closed:
                return False
            calls = [shared.calls.popleft() for _ in range(len(shared.calls))]
            taken = []
            while self._forget_cancelled() and self._shared.active < self.sequences.n_seq:
                taken.append(self._shared.waiting.popleft())
                self._shared.active += 1
        if self._lost is not None:
            try:
                self._restore()
            except Exception as error:
                LOG.error("the model cannot be loaded again: %s", in_one_line(error), exc_info=error)
                self._give_up(self._lost, taken, calls)
                return True
        for function, result in calls:
            try:
                result.set_result(function())
            except Exception as error:
                result.set_exception(error)
        for request in taken:  # without the condition, because it may take long
            if self._lost is None:
                self._admit(request)
            else:  # a call could not make the sequences again
                self._leave(request, self._lost)
        return True

    # -- after a device was lost -------------------------------------------------------------------

    def restore(self, error: DeviceLostError) -> None:
        """Makes the sequences again, because of an error of other code; for :meth:`call`.  Raises what that raises."""
        self._lose(error)
        self._restore()

    def _lose(self, error: DeviceLostError) -> None:
        """What the sequences held is lost: texts are computed again, or end with the error."""
        self._lost = error
        for number, slot in list(self._slots.items()):
            if self._replays and slot.replay():
                self._counts.replayed += 1
            else:
                self._end(number, error)

    def _restore(self) -> None:
        assert self._again is not None
        self.sequences, self._drafts = self._again()
        self._reusable = [0] * self.sequences.n_seq
        for number, slot in self._slots.items():
            self.sequences.adapt(slot.request.lora, number)
        self._counts.restored += 1
        self._lost = None

    def _give_up(
        self, error: DeviceLostError, taken: list[Request], calls: list[tuple[Callable[[], Any], Future[Any]]]
    ) -> None:
        """Ends everything with the error; the next request is another attempt."""
        for number in list(self._slots):
            self._end(number, error)
        for request in taken:
            self._leave(request, error)
        for _, result in calls:
            result.set_exception(error)

    # -- the texts ---------------------------------------------------------------------------------

    def _admit(self, request: Request) -> None:
        """Assigns a free sequence to a request: the one with the longest common prefix, then the fewest tokens."""
        try:
            number = self._prepared(request)
        except Exception as error:
            self._leave(request, error)
            return
        request.times.begun = time.perf_counter()
        self._report(request, request.reused)
        n_ctx, shifts = self.sequences.n_ctx, request.shift is not None
        free = n_ctx if shifts else n_ctx - len(request.prompt) + 1
        most = free if request.max_tokens is None else request.max_tokens if shifts else min(free, request.max_tokens)
        self._slots[number] = _Slot(request, request.prompt, request.reused, list(request.prompt), most)
        self._counts.reused_tokens += request.reused

    def _prepared(self, request: Request) -> int:
        """Chooses the sequence for a request, and rewinds it to their common prefix."""
        free = [number for number in range(self.sequences.n_seq) if number not in self._slots]
        held = {number: self._held(number, request.lora) for number in free}
        number = max(free, key=lambda n: (n == request.slot, in_common(held[n], request.prompt), -len(held[n])))
        self.sequences.adapt(request.lora, number)
        request.slot = number
        request.reused = self._rewound(number, request.prompt, [] if request.scored else held[number])
        return number

    def _held(self, number: int, lora: Lora | None) -> Sequence[int]:
        """The tokens of a sequence that a request with these scales of adapters may reuse."""
        if not self.sequences.is_adapted(lora, number):
            return ()
        return self.sequences.tokens(number)[: self._reusable[number]]

    def _rewound(self, number: int, prompt: Sequence[int], held: Sequence[int]) -> int:
        """Rewinds a sequence to what a prompt can use of its tokens ``held``; returns their number."""
        kept = self._usable(len(prompt), in_common(held, prompt))
        self._reusable[number] = self.sequences.keep_prefix(prompt[: kept + 1], number)
        return self._reusable[number]

    def _shift(self, number: int, slot: _Slot) -> None:
        """Drops a part of a full context; what is left is computed again, as a prompt."""
        held = self.sequences.tokens(number)[: self._reusable[number]]
        slot.shift()
        try:
            slot.read = self._rewound(number, slot.prompt, held)
        except Exception as error:
            self._end(number, error)

    def _usable(self, length: int, common: int) -> int:
        """How many of the first ``common`` tokens of a prompt of ``length`` tokens can be reused."""
        end = self._end_of_block(min(common, length - 1), length)
        return min(common, max(end - self._least, end - 1 - (end - 1) % self.sequences.micro_batch))

    def _end_of_block(self, place: int, length: int) -> int:
        """The end of the micro-batch that contains the token at ``place``."""
        block = self.sequences.micro_batch
        return min((place // block + 1) * block, length)

    def _steps(self) -> Iterator[dict[int, list[int]]]:
        """Yields the steps of a round: the next tokens, by sequence."""
        for number, slot in list(self._slots.items()):
            if slot.length > self.sequences.n_ctx:  # also of one that is computed again because a device was lost
                self._shift(number, slot)
        generating = {number: slot.history[-1:] for number, slot in self._slots.items() if slot.generates}
        if generating:
            yield generating
        left = self._piece * self._at_once
        together: dict[int, list[int]] = {}
        for number, slot in list(self._slots.items()):
            if slot.generates or slot.request.cancelled:
                continue
            tokens = self._next_chunk(slot)
            if left < min(self._piece, len(tokens)):
                break
            left -= len(tokens)
            if self._at_once > 1 and len(tokens) > FEW and slot.request.scored is None:
                together[number] = tokens  # of more tokens each is a step of its own
            else:
                yield {number: tokens}
        if together:
            yield together

    def _next_chunk(self, slot: _Slot) -> list[int]:
        """The next chunk of a prompt: the rest of a micro-batch is cut into equal chunks of about ``piece`` tokens."""
        prompt, start = slot.prompt, slot.read
        left = self._end_of_block(start, len(prompt)) - start
        parts = max(1, min(-(-left // self._piece), left // self._least))
        return prompt[start : start + left // parts]

    def _compute(self, batch: dict[int, list[int]]) -> None:
        begun = time.perf_counter()
        generating = all(self._slots[number].generates for number in batch)
        try:
            batch = self._with_drafts(batch) if generating and self._drafts is not None else batch
            logits = self._decoded(batch)
        except BaseException as error:
            if self._again is not None and isinstance(error, DeviceLostError):
                self._lose(error)
                return
            # The texts of this step end; sequences keep the tokens that they have computed, and other texts continue.
            for number in batch:
                self._end(number, error)
            return
        finally:
            seconds = time.perf_counter() - begun
            self._counts.steps += 1
            self._counts.busy += len(self._slots)
            self._counts.generating_seconds += seconds if generating else 0
            self._counts.prompt_seconds += 0 if generating else seconds
        for number, tokens in batch.items():
            if generating:
                self._check(number, tokens, logits[number])
            else:
                self._advance(number, len(tokens), logits[number])

    def _with_drafts(self, batch: dict[int, list[int]]) -> dict[int, list[int]]:
        """The generated tokens of a step, with draft tokens after them."""
        assert self._drafts is not None
        slots = {number: self._slots[number] for number in batch}
        most, n_ctx = self.sequences.micro_batch - 1, self.sequences.n_ctx
        guessed = self._drafts.next(
            {n: (slot.text, min(slot.remaining - 1, most, n_ctx - slot.length)) for n, slot in slots.items()}
        )
        for number, tokens in guessed.items():
            slots[number].request.drafted += len(tokens)
            self._counts.drafted += len(tokens)
            self._counts.drafts += bool(tokens)
        return {number: [*tokens, *guessed[number]] for number, tokens in batch.items()}

    def _decode(self, batch: dict[int, list[int]], *outputs: Outputs) -> Mapping[int, Floats]:
        if self._drafts is None or not self._drafts.names:
            return self.sequences.decode(batch, *outputs)
        return self.sequences.decode(batch, *outputs, reader=self._drafts)

    def _decoded(self, batch: dict[int, list[int]]) -> Mapping[int, Floats]:
        """Computes a step; what has drafts, or is a prompt that is scored, gets the logits after each of its tokens."""
        (number, *others) = batch
        slot = self._slots[number]
        if slot.generates:
            drafted = any(len(tokens) > 1 for tokens in batch.values())
            return self._decode(batch, Outputs.ALL) if drafted else self._decode(batch)
        if others or slot.request.scored is None or not slot.reads_request:
            return self._decode(batch)
        rows = self._decode(batch, Outputs.ALL)[number]
        slot.request.scored(rows)
        return {number: rows[-1]}

    def _check(self, number: int, tokens: list[int], logits: Floats) -> None:
        """Chooses the tokens after one that was generated and its draft tokens, up to the first that differs."""
        slot = self._slots[number]
        rows = logits.reshape(len(tokens), -1)
        for row, guess in zip(rows, [*tokens[1:], None], strict=True):
            self._advance(number, 1, row)
            if number not in self._slots:
                return
            if slot.history[-1] != guess:
                break
            slot.request.accepted += 1
            self._counts.accepted += 1
        if len(tokens) > 1:
            self.sequences.keep_prefix(slot.text, number)

    def _advance(self, number: int, count: int, logits: Floats) -> None:
        """Updates a sequence that has computed ``count`` tokens, and chooses its next token after the prompt."""
        slot = self._slots[number]
        if not slot.generates:
            self._counts.prompt_tokens += count
            slot.read += count
            if slot.read % self.sequences.micro_batch == 0 or slot.read % self.sequences.micro_batch >= self._least:
                self._reusable[number] = slot.read
            if slot.reads_request:
                slot.request.times.last = time.perf_counter()
                self._report(slot.request, slot.read)
            if not slot.generates:
                return
            slot.request.times.prompted = slot.request.times.prompted or slot.request.times.last
        if not slot.remaining:
            self._end(number, Finish.LENGTH)
            return
        try:
            token = int(HOOKS.timed("sampling", slot.request.choose)(logits, slot.history))
        except BaseException as error:  # an error of a sampler ends only its own text
            self._end(number, error)
            return
        if token in slot.request.ends:
            self._end(number, Finish.STOP)
            return
        self._counts.generated_tokens += 1
        slot.request.generated += 1
        slot.request.times.last = time.perf_counter()
        self._deliver(slot.request, token)
        slot.history.append(token)
        slot.replays = 0
        self._counts.longest = max(self._counts.longest, slot.length)
        slot.remaining -= 1
        if slot.remaining == 0:
            self._end(number, Finish.LENGTH)

    def _end(self, number: int, event: Finish | BaseException) -> None:
        self._leave(self._slots.pop(number).request, event)

    def _leave(self, request: Request, event: Finish | BaseException) -> None:
        with self._changed:
            self._shared.active -= 1
            if isinstance(event, Finish):
                self._counts.finished += 1
            else:
                self._counts.failed += 1
        self._deliver(request, event)

    # -- what listeners get ------------------------------------------------------------------------

    def _report(self, request: Request, processed: int) -> None:
        """Delivers how many tokens of the prompt are computed, if the request wants that."""
        if request.reports:
            self._deliver(request, request.progress(processed))

    def _deliver(self, request: Request, event: Event) -> None:
        request.deliver(event)
        if request.flush is not None:
            self._flushes.add(request.flush)

    def _flush(self) -> None:
        """Has listeners pass on what they got.  Not token by token: their threads would then run Python between two
        tokens of a step, while this thread waits."""
        while self._flushes:
            self._flushes.pop()()
