"""Requests in one batch: each gets what it would get alone, and none is lost."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from ggplug.errors import FreedError, ParameterError
from ggplug_models.sampling import Sampler, Sampling
from ggplug_models.serve import Batcher, Finish, QueueFullError, Request

N_VOCAB = 50


def logits_after(tokens: Sequence[int]) -> npt.NDArray[np.float32]:
    """Logits that depend on every token before and on their order."""
    state = 7
    for token in tokens:
        state = (state * 31 + token + 1) % 1_000_003
    return np.random.default_rng(state).normal(0, 2, N_VOCAB).astype(np.float32)


class Held:
    """Sequences whose steps a test can hold and make fail."""

    def __init__(self, n_seq: int = 3, n_ctx: int = 40) -> None:
        self.n_ctx, self.n_seq = n_ctx, n_seq
        self.steps: list[dict[int, int]] = []
        self.begun, self.go = threading.Semaphore(0), threading.Event()
        self.go.set()
        self.failure: Exception | None = None
        self._held: list[list[int]] = [[] for _ in range(n_seq)]

    def tokens(self, seq: int) -> Sequence[int]:
        return tuple(self._held[seq])

    def keep_prefix(self, tokens: Sequence[int], seq: int) -> int:
        held = self._held[seq]
        most = min(len(held), len(tokens) - 1)
        common = next((i for i in range(most) if held[i] != tokens[i]), most)
        del held[common:]
        return common

    def decode(self, batch: Mapping[int, Sequence[int]]) -> dict[int, npt.NDArray[np.float32]]:
        self.begun.release()
        assert self.go.wait(30)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        self.steps.append({seq: len(tokens) for seq, tokens in batch.items()})
        for seq, tokens in batch.items():
            self._held[seq] += tokens
            assert len(self._held[seq]) <= self.n_ctx
        return {seq: logits_after(self._held[seq]) for seq in batch}


def alone(prompt: Sequence[int], sampler: Sampler, most: int, ends: Sequence[int] = ()) -> list[int]:
    history = list(prompt)
    while len(history) - len(prompt) < most:
        token = sampler(logits_after(history), history)
        if token in ends:
            break
        history.append(token)
    return history[len(prompt) :]


def sampler(seed: int) -> Sampler:
    return Sampler(Sampling(temperature=1.0, repeat_penalty=1.2, seed=seed))


@pytest.mark.parametrize("piece", [1, 4, 512])
def test_many_clients_at_once_get_what_each_would_get_alone(piece: int) -> None:
    random = np.random.default_rng(piece)
    prompts = [random.integers(0, N_VOCAB, random.integers(1, 25)).tolist() for _ in range(30)]
    found: dict[int, list[int]] = {}
    finishes = {}

    def client(number: int) -> None:
        request = Request(prompts[number], sampler(number), 12, ends=[3])
        batcher.submit(request)
        found[number] = list(request.tokens())
        finishes[number] = request.finish

    with Batcher(Held(), waiting=100, piece=piece) as batcher:
        threads = [threading.Thread(target=client, args=(n,)) for n in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        status = batcher.status
    for number, prompt in enumerate(prompts):
        wanted = alone(prompt, sampler(number), 12, [3])
        assert found[number] == wanted
        assert finishes[number] is (Finish.LENGTH if len(wanted) == 12 else Finish.STOP)
    assert (status.waiting, status.active, status.finished, status.failed) == (0, 0, 30, 0)
    assert status.generated_tokens == sum(map(len, found.values()))
    assert status.prompt_tokens + status.reused_tokens == sum(map(len, prompts))


def test_a_long_prompt_does_not_hold_up_the_others() -> None:
    sequences = Held(n_seq=2)
    sequences.go.clear()
    with Batcher(sequences, piece=4) as batcher:
        first = Request([1], sampler(1), 12)
        batcher.submit(first)
        assert sequences.begun.acquire(timeout=30)
        second = Request(list(range(1, 25)), sampler(2), 2)
        batcher.submit(second)
        sequences.go.set()
        assert list(first.tokens()) == alone([1], sampler(1), 12)
        assert list(second.tokens()) == alone(list(range(1, 25)), sampler(2), 2)
    both = [step for step in sequences.steps if len(step) == 2]
    assert [sorted(step.values()) for step in both[:6]] == [[1, 4]] * 6


def test_what_a_sequence_has_read_is_not_read_again() -> None:
    with Batcher(Held(n_seq=2)) as batcher:
        first = Request([5, 6, 7, 8], sampler(1), 3)
        batcher.submit(first)
        answer = list(first.tokens())
        again = Request([5, 6, 7, 8, *answer[:2], 9], sampler(2), 3)
        batcher.submit(again)
        assert list(again.tokens()) == alone(again.prompt, sampler(2), 3)
    assert first.reused == 0
    assert again.reused == 6


def test_a_client_that_leaves_frees_its_place_at_once() -> None:
    sequences = Held(n_seq=1)
    with Batcher(sequences) as batcher:
        leaving = Request([1], sampler(1))
        batcher.submit(leaving)
        tokens = leaving.tokens()
        next(tokens)
        tokens.close()  # type: ignore[attr-defined]
        assert leaving.cancelled
        waiting = Request([2], sampler(2), 2)
        batcher.submit(waiting)
        assert list(waiting.tokens()) == alone([2], sampler(2), 2)
        waiting_and_gone = Request([2], sampler(2), 2)
        waiting_and_gone.cancel()
        batcher.submit(waiting_and_gone)
        assert list(waiting_and_gone.tokens()) == []
        assert waiting_and_gone.finish is Finish.CANCELLED


def test_more_requests_than_may_wait_are_refused() -> None:
    sequences = Held(n_seq=1)
    sequences.go.clear()
    with Batcher(sequences, waiting=1) as batcher:
        requests = [Request([n], sampler(n), 1) for n in range(1, 4)]
        batcher.submit(requests[0])
        assert sequences.begun.acquire(timeout=30)
        batcher.submit(requests[1])
        with pytest.raises(QueueFullError, match="1 requests are waiting"):
            batcher.submit(requests[2])
        sequences.go.set()
        for request in requests[:2]:
            assert list(request.tokens()) == alone(request.prompt, sampler(request.prompt[0]), 1)


def test_a_text_ends_where_the_context_is_full() -> None:
    with Batcher(Held(n_ctx=8)) as batcher:
        request = Request([1, 2, 3, 4, 5, 6], sampler(1))
        batcher.submit(request)
        assert list(request.tokens()) == alone(request.prompt, sampler(1), 3)
        assert request.finish is Finish.LENGTH


def test_a_failed_computation_ends_its_texts_and_no_others() -> None:
    sequences = Held()
    with Batcher(sequences) as batcher:
        sequences.failure = MemoryError("no room")
        request = Request([1], sampler(1), 3)
        batcher.submit(request)
        with pytest.raises(MemoryError, match="no room"):
            list(request.tokens())
        after = Request([1], sampler(1), 3)
        batcher.submit(after)
        assert list(after.tokens()) == alone([1], sampler(1), 3)
        assert batcher.status.failed == 1


def test_a_sampler_that_fails_ends_its_own_text_alone() -> None:
    def failing(logits: npt.NDArray[np.float32], history: Sequence[int]) -> int:
        raise ParameterError("cannot choose")

    with Batcher(Held()) as batcher:
        bad, good = Request([1], failing, 3), Request([1], sampler(1), 3)
        batcher.submit(bad)
        batcher.submit(good)
        with pytest.raises(ParameterError, match="cannot choose"):
            list(bad.tokens())
        assert list(good.tokens()) == alone([1], sampler(1), 3)


def test_closing_ends_what_waits_and_what_is_computed() -> None:
    sequences = Held(n_seq=1)
    sequences.go.clear()
    batcher = Batcher(sequences)
    requests = [Request([1], sampler(1)), Request([2], sampler(2))]
    for request in requests:
        batcher.submit(request)
    assert sequences.begun.acquire(timeout=30)
    closing = threading.Thread(target=batcher.close)
    closing.start()
    sequences.go.set()
    closing.join(30)
    for request in requests:
        list(request.tokens())
        assert request.finish is Finish.CANCELLED
    with pytest.raises(FreedError, match="the batcher was closed"):
        batcher.submit(Request([1], sampler(1)))


@pytest.mark.parametrize(
    ("prompt", "most", "message"),
    [([], None, "the prompt has 0 tokens; there may be 1 to 40"), ([1] * 41, None, "the prompt has 41 tokens"),
     ([1], 0, "max_tokens must be at least 1, got 0")],
)  # fmt: skip
def test_requests_that_cannot_be_met_are_refused(prompt: list[int], most: int | None, message: str) -> None:
    with Batcher(Held()) as batcher, pytest.raises(ParameterError, match=message):
        batcher.submit(Request(prompt, sampler(1), most))
