"""Continuous batching (Yu et al. 2022, "Orca"): requests enter and leave the batch between two tokens."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ggplug.errors import FreedError, GGPlugError, ParameterError
from ggplug_models.serve.request import Finish, Request

Floats = npt.NDArray[np.float32]


class QueueFullError(GGPlugError):
    """There are as many requests as may wait; ``got``: how many."""


class Sequences(Protocol):
    """What holds the sequences: a session of a language model, in which each keeps its own place."""

    n_ctx: int
    n_seq: int

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
    """A sequence at work.  ``left``: tokens that it has to read; ``history``: those of prompt and answer."""

    request: Request
    left: list[int]
    history: list[int]
    room: int
    prompt: bool = True


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
    closed: bool = False


class Batcher:
    """Continues the texts of many requests, as many at once as ``sequences`` has.

    In each step every text that is being written gets one token, and prompts get ``piece`` tokens together, so that a
    long prompt does not hold up the others.  A request takes the free sequence that has most of its prompt already.
    ``waiting``: requests that may wait for a sequence.

    Its thread is the only one that uses ``sequences``; they belong to the caller, who frees them after :meth:`close`.
    """

    def __init__(self, sequences: Sequences, *, waiting: int = 64, piece: int = 512) -> None:
        if waiting < 0 or piece < 1:
            raise ParameterError(f"waiting must be at least 0 and piece at least 1, got {waiting} and {piece}")
        self.sequences = sequences
        self._most_waiting = waiting
        self._piece = piece
        self._slots: dict[int, _Slot] = {}
        self._counts = _Counts()
        self._shared = _Shared()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="ggplug batcher", daemon=True)
        self._thread.start()

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
            free = self.sequences.n_seq - len(self._slots)
            if len(self._shared.waiting) >= self._most_waiting + max(free, 0):
                raise QueueFullError(f"{len(self._shared.waiting)} requests are waiting", got=len(self._shared.waiting))
            self._shared.waiting.append(request)
            self._changed.notify()

    @property
    def status(self) -> Status:
        """How it goes now."""
        with self._changed:
            c = self._counts
            return Status(
                len(self._shared.waiting), len(self._slots), c.finished, c.failed, c.prompt_tokens, c.reused_tokens,
                c.generated_tokens,
            )  # fmt: skip

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
        while self._ready():
            batch = self._batch()
            if not batch:
                continue
            try:
                logits = self.sequences.decode(batch)
            except BaseException as error:
                # The sequences know what they have read; the texts end, and sequences that read nothing go on.
                for number in batch:
                    self._end(number, error)
                continue
            for number, tokens in batch.items():
                self._read(number, len(tokens), logits[number])
        with self._changed:
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
            while self._shared.waiting and len(self._slots) < self.sequences.n_seq:
                request = self._shared.waiting.popleft()
                if request.cancelled:
                    request.deliver(Finish.CANCELLED)
                    self._counts.finished += 1
                else:
                    self._admit(request)
        return True

    def _admit(self, request: Request) -> None:
        """Gives a request the free sequence with which it has most in common; of equals the emptiest."""
        free = [number for number in range(self.sequences.n_seq) if number not in self._slots]
        held = {number: self.sequences.tokens(number) for number in free}
        number = max(free, key=lambda n: (_common(held[n], request.prompt), -len(held[n])))
        try:
            request.reused = self.sequences.keep_prefix(request.prompt, number)
        except Exception as error:
            request.deliver(error)
            self._counts.failed += 1
            return
        room = self.sequences.n_ctx - len(request.prompt) + 1
        most = room if request.max_tokens is None else min(room, request.max_tokens)
        self._slots[number] = _Slot(request, request.prompt[request.reused :], list(request.prompt), most)
        self._counts.reused_tokens += request.reused

    def _batch(self) -> dict[int, list[int]]:
        """The tokens that each sequence reads next."""
        left = self._piece
        batch = {}
        for number, slot in self._slots.items():
            tokens = slot.left[:left] if slot.prompt else slot.left
            if slot.prompt:
                left -= len(tokens)
            if tokens:
                batch[number] = tokens
        return batch

    def _read(self, number: int, count: int, logits: Floats) -> None:
        """Goes on with a sequence that has read so many tokens."""
        slot = self._slots[number]
        del slot.left[:count]
        if slot.prompt:
            self._counts.prompt_tokens += count
        if slot.left:
            return
        slot.prompt = False
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
        slot.left = [token]
        slot.room -= 1
        if slot.room == 0:
            self._end(number, Finish.LENGTH)

    def _end(self, number: int, event: Finish | BaseException) -> None:
        slot = self._slots.pop(number)
        if isinstance(event, Finish):
            self._counts.finished += 1
        else:
            self._counts.failed += 1
        slot.request.deliver(event)


def _common(held: Sequence[int], prompt: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    most = min(len(held), len(prompt))
    if list(held[:most]) == list(prompt[:most]):
        return most
    return next(n for n in range(most) if held[n] != prompt[n])
