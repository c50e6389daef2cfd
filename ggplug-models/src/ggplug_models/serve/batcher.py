"""Continuous batching (Yu et al. 2022, "Orca"): requests enter and leave the batch between two tokens.

What a request is answered depends on the request alone, bit by bit, as far as a device computes a token alike whatever
is computed beside it.  Devices do so for tokens that are written, one of each sequence, and for the tokens of a prompt
where there are at least :data:`LEAST` of them; but the kernels for the former and for the latter round differently.  So

- the tokens that are written and each piece of a prompt are steps of their own;
- a prompt is cut where the session would cut it (:attr:`Sequences.micro_batch`), and else only into pieces of at least
  :data:`LEAST` tokens;
- of what a sequence holds, only what was read as a prompt, in such pieces, is used for another request.

A mixture of experts has no such number: each expert gets some of a step's tokens, whatever number that is.  Its prompts
are cut where the session would cut them, and nowhere else (``least``).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ggplug.errors import FreedError, GGPlugError, ParameterError
from ggplug_models.checks.ids import in_common
from ggplug_models.generation.finish import Finish
from ggplug_models.serve.request import Request

Floats = npt.NDArray[np.float32]


LEAST = 32
"""Tokens of a prompt from which on it makes no difference how many are computed together."""


class QueueFullError(GGPlugError):
    """There are as many requests as may wait; ``got``: how many."""


class Sequences(Protocol):
    """What holds the sequences: a session of a language model, in which each keeps its own place."""

    n_ctx: int
    n_seq: int
    micro_batch: int

    def tokens(self, seq: int, /) -> Sequence[int]:
        """The tokens that a sequence has."""

    def keep_prefix(self, tokens: Sequence[int], seq: int, /) -> int:
        """Forgets all but what a sequence has in common with ``tokens``, less the last; tells how much is left."""

    def decode(self, batch: Mapping[int, Sequence[int]], /) -> Mapping[int, Floats]:
        """Reads tokens behind those of the sequences; by sequence the logits after the last one."""


class Status(NamedTuple):
    """How it goes: requests that wait and that are computed, and what was done since the batcher was made."""

    waiting: int
    active: int
    finished: int
    failed: int
    prompt_tokens: int
    reused_tokens: int
    generated_tokens: int


@dataclass
class _Slot:
    """A sequence at work.

    ``read``: tokens of its prompt that it has read; ``history``: those of prompt and answer; ``room``: how many may
    still come.
    """

    request: Request
    read: int
    history: list[int]
    room: int

    @property
    def writes(self) -> bool:
        return self.read == len(self.request.prompt)


@dataclass
class _Counts:
    finished: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0


@dataclass
class _Shared:
    """What other threads change; only under the condition."""

    waiting: deque[Request] = field(default_factory=deque)
    active: int = 0
    closed: bool = False


class Batcher:
    """Continues the texts of many requests, as many at once as ``sequences`` has.

    In each round every text that is being written gets one token, and prompts get about ``piece`` tokens together, so
    that a long prompt does not hold up the others.  A request takes the free sequence that has most of its prompt
    already.  ``waiting``: requests that may wait for a sequence.  ``least``: tokens of a prompt from which on it makes
    no difference how many are computed together; None if it always does.

    Its thread is the only one that uses ``sequences``; they belong to the caller, who frees them after :meth:`close`.
    """

    def __init__(self, sequences: Sequences, *, waiting: int = 64, piece: int = 128, least: int | None = LEAST) -> None:
        if waiting < 0 or piece < 1:
            raise ParameterError(f"waiting must be at least 0 and piece at least 1, got {waiting} and {piece}")
        self.sequences = sequences
        self._most_waiting = waiting
        self._piece = piece
        self._least = sequences.micro_batch if least is None else least
        self._slots: dict[int, _Slot] = {}
        self._reusable = [0] * sequences.n_seq
        """By sequence: how many of its tokens serve another request that begins with them."""
        self._counts = _Counts()
        self._shared = _Shared()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="ggplug batcher", daemon=True)
        self._thread.start()

    def check(self, count: int) -> None:
        """Raises ParameterError if there is never a place for so many requests together."""
        most = self.sequences.n_seq + self._most_waiting
        if count > most:
            raise ParameterError(
                f"a request for {count} texts never has a place: {most} can be written or wait", got=count, wanted=most
            )

    def submit(self, request: Request) -> None:
        """Takes a request; its tokens come by :meth:`Request.tokens`.

        Raises ParameterError for a prompt that is empty or longer than the context, QueueFullError, and FreedError
        after :meth:`close`.
        """
        length, n_ctx = len(request.prompt), self.sequences.n_ctx
        if not 1 <= length <= n_ctx:
            raise ParameterError(f"the prompt has {length} tokens; there may be 1 to {n_ctx}", got=length, wanted=n_ctx)
        if request.max_tokens is not None and request.max_tokens < 1:
            raise ParameterError(f"max_tokens must be at least 1, got {request.max_tokens}", got=request.max_tokens)
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
        """How it goes now."""
        with self._changed:
            c = self._counts
            waiting = self._forget_cancelled()
            return Status(
                waiting,
                self._shared.active,
                c.finished,
                c.failed,
                c.prompt_tokens,
                c.reused_tokens,
                c.generated_tokens,
            )

    def _forget_cancelled(self) -> int:
        """Ends requests that were cancelled while they waited; tells how many others wait.  Under the condition."""
        waiting = self._shared.waiting
        for request in [each for each in waiting if each.cancelled]:
            waiting.remove(request)
            request.deliver(Finish.CANCELLED)
            self._counts.finished += 1
        return len(waiting)

    @property
    def closed(self) -> bool:
        """Whether requests are refused, because of :meth:`close` or because the thread failed."""
        return self._shared.closed

    def close(self) -> None:
        """Ends all requests, as cancelled, and the thread."""
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
        finally:  # nobody may wait for a thread that is no more
            with self._changed:
                self._shared.closed = True
                for number in list(self._slots):
                    self._end(number, Finish.CANCELLED)
                while self._shared.waiting:
                    self._shared.waiting.popleft().deliver(Finish.CANCELLED)

    def _ready(self) -> bool:
        """Waits until there is work, and gives free sequences to requests; False once the batcher was closed."""
        for number, slot in list(self._slots.items()):
            if slot.request.cancelled:
                self._end(number, Finish.CANCELLED)
        with self._changed:
            self._changed.wait_for(lambda: self._shared.closed or self._shared.waiting or self._slots)
            if self._shared.closed:
                return False
            taken = []
            while self._forget_cancelled() and self._shared.active < self.sequences.n_seq:
                taken.append(self._shared.waiting.popleft())
                self._shared.active += 1
        for request in taken:  # which may take a while: others may wait for the condition
            self._admit(request)
        return True

    def _admit(self, request: Request) -> None:
        """Gives a request the free sequence with which it has most in common; of equals the emptiest."""
        try:
            number = self._prepared(request)
        except Exception as error:
            self._leave(request, error)
            return
        room = self.sequences.n_ctx - len(request.prompt) + 1
        most = room if request.max_tokens is None else min(room, request.max_tokens)
        self._slots[number] = _Slot(request, request.reused, list(request.prompt), most)
        self._counts.reused_tokens += request.reused

    def _prepared(self, request: Request) -> int:
        """The sequence for a request, which then has only what they have in common."""
        free = [number for number in range(self.sequences.n_seq) if number not in self._slots]
        held = {number: self.sequences.tokens(number)[: self._reusable[number]] for number in free}
        number = max(free, key=lambda n: (in_common(held[n], request.prompt), -len(held[n])))
        kept = self._usable(len(request.prompt), in_common(held[number], request.prompt))
        request.reused = self._reusable[number] = self.sequences.keep_prefix(request.prompt[: kept + 1], number)
        return number

    def _usable(self, length: int, common: int) -> int:
        """How many of the ``common`` first tokens of a prompt need not be read again."""
        end = self._end_of_block(min(common, length - 1), length)
        return min(common, max(end - self._least, end - 1 - (end - 1) % self.sequences.micro_batch))

    def _end_of_block(self, place: int, length: int) -> int:
        """Where the micro-batch ends that the token at ``place`` belongs to."""
        block = self.sequences.micro_batch
        return min((place // block + 1) * block, length)

    def _steps(self) -> Iterator[dict[int, list[int]]]:
        """The tokens that sequences read next, step by step."""
        writing = {number: slot.history[-1:] for number, slot in self._slots.items() if slot.writes}
        if writing:
            yield writing
        left = self._piece
        for number, slot in list(self._slots.items()):
            if slot.writes or slot.request.cancelled:
                continue
            tokens = self._next_piece(slot)
            if left < min(self._piece, len(tokens)):
                break
            left -= len(tokens)
            yield {number: tokens}

    def _next_piece(self, slot: _Slot) -> list[int]:
        """What is left of a micro-batch, in about equal parts of at most ``piece`` tokens, if these are not too few."""
        prompt, start = slot.request.prompt, slot.read
        left = self._end_of_block(start, len(prompt)) - start
        parts = max(1, min(-(-left // self._piece), left // self._least))
        return prompt[start : start + left // parts]

    def _compute(self, batch: dict[int, list[int]]) -> None:
        try:
            logits = self.sequences.decode(batch)
        except BaseException as error:
            # The sequences know what they have read; the texts end, and sequences that read nothing go on.
            for number in batch:
                self._end(number, error)
            return
        for number, tokens in batch.items():
            self._go_on(number, len(tokens), logits[number])

    def _go_on(self, number: int, count: int, logits: Floats) -> None:
        """Goes on with a sequence that has read so many tokens."""
        slot = self._slots[number]
        if not slot.writes:
            self._counts.prompt_tokens += count
            slot.read += count
            if slot.read % self.sequences.micro_batch == 0 or slot.read % self.sequences.micro_batch >= self._least:
                self._reusable[number] = slot.read
            if not slot.writes:
                return
        try:
            token = int(slot.request.choose(logits, slot.history))
        except BaseException as error:  # a sampler's fault ends its own text alone
            self._end(number, error)
            return
        if token in slot.request.ends:
            self._end(number, Finish.STOP)
            return
        slot.request.deliver(token)
        self._counts.generated_tokens += 1
        slot.history.append(token)
        slot.room -= 1
        if slot.room == 0:
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
        request.deliver(event)
