"""Requests in one batch: each gets what it would get alone, and none is lost."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from oracles.packed import ORACLES

import ggplug_models
from ggplug.errors import FreedError, ParameterError
from ggplug.quantizing import quantize_file
from ggplug_models import Finish
from ggplug_models.benchmarks.synthetic import LlamaShape, write_llama
from ggplug_models.networks.decoder import Decoder
from ggplug_models.sampling import Sampler, Sampling
from ggplug_models.serve import Batcher, QueueFullError, Request
from ggplug_models.serve.batcher import LEAST
from ggplug_models.serve.request import Shift

pytest.importorskip("pydantic")

from ggplug_models.serve.writer import Writer

N_VOCAB = 50


def logits_after(tokens: Sequence[int]) -> npt.NDArray[np.float32]:
    """Logits that depend on every token before and on their order."""
    state = 7
    for token in tokens:
        state = (state * 31 + token + 1) % 1_000_003
    return np.random.default_rng(state).normal(0, 2, N_VOCAB).astype(np.float32)


class Held:
    """Sequences whose steps a test can hold and make fail."""

    def __init__(self, n_seq: int = 3, n_ctx: int = 40, micro_batch: int = 512) -> None:
        self.n_ctx, self.n_seq, self.micro_batch = n_ctx, n_seq, micro_batch
        self.steps: list[dict[int, int]] = []
        self.begun, self.go = threading.Semaphore(0), threading.Event()
        self.go.set()
        self.failure: Exception | None = None
        self._held: list[list[int]] = [[] for _ in range(n_seq)]
        self._lora: list[object] = [None] * n_seq

    def tokens(self, seq: int) -> Sequence[int]:
        return tuple(self._held[seq])

    def keep_prefix(self, tokens: Sequence[int], seq: int) -> int:
        held = self._held[seq]
        most = min(len(held), len(tokens) - 1)
        common = next((i for i in range(most) if held[i] != tokens[i]), most)
        del held[common:]
        return common

    def is_adapted(self, lora: object, seq: int) -> bool:
        return self._lora[seq] == lora

    def adapt(self, lora: object, seq: int) -> None:
        if not self.is_adapted(lora, seq):
            self._held[seq].clear()
        self._lora[seq] = lora

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
def test_many_clients_at_once_get_what_each_would_get_by_itself(piece: int) -> None:
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
    sequences = Held(n_seq=2, n_ctx=200)
    sequences.go.clear()
    with Batcher(sequences, piece=LEAST) as batcher:
        first = Request([1], sampler(1), 12)
        batcher.submit(first)
        assert sequences.begun.acquire(timeout=30)
        prompt = list(np.arange(5 * LEAST) % N_VOCAB)
        second = Request(prompt, sampler(2), 2)
        batcher.submit(second)
        sequences.go.set()
        assert list(first.tokens()) == alone([1], sampler(1), 12)
        assert list(second.tokens()) == alone(prompt, sampler(2), 2)
    begin = sequences.steps.index({1: LEAST})
    assert sequences.steps[begin - 1 : begin + 9] == [{0: 1}, {1: LEAST}] * 5


def test_each_token_is_computed_with_as_many_as_without_other_requests_or_with_enough() -> None:
    random = np.random.default_rng(1)
    prompts = [random.integers(0, N_VOCAB, random.integers(1, 250)).tolist() for _ in range(30)]
    prompts += [prompts[3] + prompts[4][:n] for n in (1, 20, 50)]
    sequences = Held(n_seq=3, n_ctx=400, micro_batch=100)
    with Batcher(sequences, waiting=100, piece=40) as batcher:
        requests = [Request(prompt, sampler(1), 2) for prompt in prompts]
        for request in requests:
            batcher.submit(request)
        for request in requests:
            assert list(request.tokens()) == alone(request.prompt, sampler(1), 2)
    assert all(len(step) == 1 or set(step.values()) == {1} for step in sequences.steps)
    pieces = [count for step in sequences.steps if len(step) == 1 for count in step.values() if count > 1]
    ends = [len(prompt) % 100 for prompt in prompts]
    assert {count for count in pieces if count < LEAST} <= {end for end in ends if end < LEAST}
    assert max(pieces) <= 40 + LEAST


def test_what_a_sequence_has_read_of_a_prompt_is_not_read_again() -> None:
    prompt = list(np.arange(3 * LEAST) % N_VOCAB)
    with Batcher(Held(n_seq=2, n_ctx=200)) as batcher:
        first = Request(prompt, sampler(1), 3)
        batcher.submit(first)
        answer = list(first.tokens())
        again, longer = Request(prompt, sampler(2), 3), Request([*prompt, *answer, *prompt[:LEAST]], sampler(2), 3)
        for request in (again, longer):
            batcher.submit(request)
            assert list(request.tokens()) == alone(request.prompt, sampler(2), 3)
    assert first.reused == 0
    assert again.reused == 2 * LEAST  # the last are read together, as they were
    assert longer.reused == 3 * LEAST  # answers were read one by one, which rounds otherwise


def test_a_block_that_is_too_short_is_read_again_as_a_whole() -> None:
    prompt = list(np.arange(64 + 5) % N_VOCAB)
    sequences = Held(n_seq=1, n_ctx=200, micro_batch=64)
    with Batcher(sequences) as batcher:
        requests = [Request(prompt, sampler(1), 1), Request(prompt, sampler(1), 1), Request(prompt * 2, sampler(1), 1)]
        for request in requests:
            batcher.submit(request)
            assert list(request.tokens()) == alone(request.prompt, sampler(1), 1)
    assert [request.reused for request in requests] == [0, 64, 64]
    assert sequences.steps == [{0: 64}, {0: 5}, {0: 5}, {0: 64}, {0: 10}]


def test_chunks_of_several_prompts_are_given_in_one_call_to_sequences_that_compute_them_at_the_same_time() -> None:
    sequences = Held(n_seq=4, n_ctx=200)
    sequences.go.clear()
    prompts = [[1], [*range(1, 31)], [*range(2, 32)], [3, 4, 5]]
    with Batcher(sequences, piece=30, at_once=2) as batcher:
        requests = [Request(prompt, sampler(n), 2) for n, prompt in enumerate(prompts)]
        for request in requests:
            batcher.submit(request)
            if request is requests[0]:
                assert sequences.begun.acquire(timeout=30)  # the others come into one round
        sequences.go.set()
        for n, request in enumerate(requests):
            assert list(request.tokens()) == alone(prompts[n], sampler(n), 2)
    together, short = next(step for step in sequences.steps if len(step) == 2 and 30 in step.values()), {3: 3}
    assert together == {1: 30, 2: 30}
    assert short in sequences.steps  # it would share a step with others


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


def test_a_request_that_was_cancelled_while_it_waited_frees_its_place_at_once() -> None:
    sequences = Held(n_seq=1)
    sequences.go.clear()
    with Batcher(sequences, waiting=1) as batcher:
        working, leaving, coming = (Request([n], sampler(n), 1) for n in range(1, 4))
        batcher.submit(working)
        assert sequences.begun.acquire(timeout=30)
        batcher.submit(leaving)
        leaving.cancel()
        assert batcher.status.waiting == 0
        batcher.submit(coming)
        assert list(leaving.tokens()) == []
        sequences.go.set()
        assert list(coming.tokens()) == alone([3], sampler(3), 1)
    assert batcher.status.finished == 3


def test_a_prompt_that_is_cancelled_is_read_no_further() -> None:
    sequences = Held(n_seq=1, n_ctx=200)
    sequences.go.clear()
    with Batcher(sequences, piece=LEAST) as batcher:
        leaving = Request([1] * 5 * LEAST, sampler(1), 1)
        batcher.submit(leaving)
        assert sequences.begun.acquire(timeout=30)
        leaving.cancel()
        sequences.go.set()
        assert list(leaving.tokens()) == []
    assert sequences.steps == [{0: LEAST}]


def test_events_come_to_a_listener() -> None:
    events: list[object] = []
    done = threading.Event()

    def listener(event: object) -> None:
        events.append(event)
        if isinstance(event, Finish):
            done.set()

    with Batcher(Held()) as batcher:
        batcher.submit(Request([1], sampler(1), 3, listener=listener))
        assert done.wait(30)
    assert events == [*alone([1], sampler(1), 3), Finish.LENGTH]


def test_what_was_computed_with_other_adapters_is_not_reused() -> None:
    prompt = [n % N_VOCAB for n in range(2 * LEAST)]
    with Batcher(Held(n_seq=1, n_ctx=3 * LEAST)) as batcher:
        reused = []
        for lora in ({}, {}, {"a": 1.0}, {"a": 1.0}, {"a": 0.5}):
            request = Request(prompt, sampler(1), 1, lora=lora)  # type: ignore[arg-type]
            batcher.submit(request)
            assert list(request.tokens()) == alone(prompt, sampler(1), 1)
            reused.append(request.reused > 0)
    assert reused == [False, True, False, True, False]


def test_sequences_that_cannot_be_prepared_fail_only_their_request(monkeypatch: pytest.MonkeyPatch) -> None:
    sequences = Held()
    with Batcher(sequences) as batcher:
        with monkeypatch.context() as patched:
            patched.setattr(sequences, "tokens", lambda seq: 1 / 0)
            request = Request([1], sampler(1), 3)
            batcher.submit(request)
            with pytest.raises(ZeroDivisionError):
                list(request.tokens())
        after = Request([1], sampler(1), 3)
        batcher.submit(after)
        assert list(after.tokens()) == alone([1], sampler(1), 3)


def test_a_text_ends_where_the_context_is_full() -> None:
    with Batcher(Held(n_ctx=8)) as batcher:
        request = Request([1, 2, 3, 4, 5, 6], sampler(1))
        batcher.submit(request)
        assert list(request.tokens()) == alone(request.prompt, sampler(1), 3)
        assert request.finish is Finish.LENGTH


def shifting(prompt: Sequence[int], sampler: Sampler, most: int, n_ctx: int, keep: int, drop: int) -> list[int]:
    """What :func:`alone` gives, where a full context drops tokens after the first ``keep``; 0: half of the others."""
    history, held = list(prompt), list(prompt)
    while len(history) - len(prompt) < most:
        if len(held) > n_ctx:
            del held[keep : keep + (drop or (len(held) - keep) // 2)]
        history.append(sampler(logits_after(held), history))
        held.append(history[-1])
    return history[len(prompt) :]


@pytest.mark.parametrize(("keep", "drop"), [(0, 0), (4, 0), (6, 3), (5, 1)])
def test_a_text_goes_on_without_a_part_of_the_context_when_it_is_full(keep: int, drop: int) -> None:
    prompt = [1, 2, 3, 4, 5, 6]
    with Batcher(Held(n_ctx=20), piece=3) as batcher:
        requests = [Request(prompt, sampler(n), 60, shift=Shift(keep, drop)) for n in range(4)]
        other = Request([7] * 9, sampler(9), 11)
        for request in [*requests, other]:
            batcher.submit(request)
        for number, request in enumerate(requests):
            assert list(request.tokens()) == shifting(prompt, sampler(number), 60, 20, keep, drop)
            assert request.finish is Finish.LENGTH
            assert request.dropped >= 60 + len(prompt) - 20 - 1
        assert list(other.tokens()) == alone([7] * 9, sampler(9), 11)
        assert batcher.status.longest <= 21


@pytest.mark.parametrize(("keep", "drop"), [(0, 0), (999, 0), (0, 999), (3, 10**30)])
def test_whatever_is_to_be_kept_a_full_context_drops_something(keep: int, drop: int) -> None:
    for length in (2, 3, 5, 40):
        kept, dropped = Shift(keep, drop).parts(length)
        assert kept >= 0
        assert 0 < dropped < length - kept


def test_a_text_without_a_maximum_goes_on_for_one_more_context() -> None:
    with Batcher(Held(n_ctx=8)) as batcher:
        request = Request([1, 2, 3, 4, 5, 6], sampler(1), shift=Shift(2))
        batcher.submit(request)
        assert len(list(request.tokens())) == 8


def test_a_failed_computation_ends_its_texts_and_no_others() -> None:
    sequences = Held()
    with Batcher(sequences) as batcher:
        sequences.failure = MemoryError("no memory")
        request = Request([1], sampler(1), 3)
        batcher.submit(request)
        with pytest.raises(MemoryError, match="no memory"):
            list(request.tokens())
        after = Request([1], sampler(1), 3)
        batcher.submit(after)
        assert list(after.tokens()) == alone([1], sampler(1), 3)
        assert batcher.status.failed == 1


def test_a_sampler_that_fails_ends_only_its_own_text() -> None:
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
    [
        ([], None, "the prompt has 0 tokens; 1 to 40 are allowed"),
        ([1] * 41, None, "the prompt has 41 tokens"),
        ([1], -1, "max_tokens must be at least 0, got -1"),
    ],
)
def test_requests_that_cannot_be_met_are_refused(prompt: list[int], most: int | None, message: str) -> None:
    with Batcher(Held()) as batcher, pytest.raises(ParameterError, match=message):
        batcher.submit(Request(prompt, sampler(1), most))


# -- what the batcher relies on --------------------------------------------------------------------


@pytest.fixture(scope="module", params=["Q4_0", "Q4_K_M", "Q8_0", "F16"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decoder]:
    folder = tmp_path_factory.mktemp("models")
    shape = LlamaShape(n_embd=256, n_ff=512, n_layer=2, n_head=4, n_head_kv=2, n_vocab=320, n_ctx=256)
    plain = write_llama(folder / "plain.gguf", shape, seed=1)
    path = plain if request.param == "F16" else folder / "quantised.gguf"
    if path is not plain:
        quantize_file(plain, path, request.param)
    with ggplug_models.load(path, ["CPU"]) as loaded:
        yield loaded


def test_eight_sequences_together_are_bit_by_bit_as_each_by_itself(model: Decoder) -> None:
    random = np.random.default_rng(0)
    prompts = [random.integers(3, 320, LEAST + 7 * n).tolist() for n in range(8)]
    with model.session(256) as one, model.session(256, 8) as many:
        for n, prompt in enumerate(prompts):
            many.decode({n: prompt})
        together = [many.decode({n: [9 + n + step] for n in range(8)}) for step in range(2)]
        for n, prompt in enumerate(prompts):
            one.clear()
            one.decode({0: prompt})
            for step in range(2):
                assert np.array_equal(one.decode({0: [9 + n + step]})[0], together[step][n])


def test_prompts_in_pieces_are_read_bit_by_bit_as_whole_ones(model: Decoder) -> None:
    prompt = np.random.default_rng(1).integers(3, 320, 150).tolist()
    with model.session(256, 3) as session:
        whole = session.decode({0: prompt})[0]
        for cuts in ([LEAST], [118], [40, 75, 109]):
            session.clear(2)
            for start, end in zip([0, *cuts], [*cuts, 150], strict=True):
                found = session.decode({2: prompt[start:end]})[2]
            assert np.array_equal(found, whole), cuts


def test_a_prompt_for_experts_is_answered_bit_by_bit_alike_whatever_a_sequence_had_read() -> None:
    """The kernel of an expert goes by the tokens that it gets, so cuts of a prompt show."""
    random = np.random.default_rng(1)
    with ggplug_models.load(ORACLES / "qwen3moe.gguf", ["CPU"]) as loaded:
        for _ in range(4):
            prompt = random.integers(3, loaded.n_vocab, 70).tolist()
            assert _logits_of(loaded, [prompt])[-1] == _logits_of(loaded, [prompt[:38], prompt])[-1]


def _logits_of(model: Decoder, prompts: Sequence[list[int]]) -> list[bytes]:
    """The first logits behind each prompt, in one sequence of a server."""
    seen: list[bytes] = []

    def choose(logits: npt.NDArray[np.float32], history: Sequence[int]) -> int:
        seen.append(logits.tobytes())
        return 5

    with contextlib.closing(Writer(model, slots=1, context=200)) as writer:
        for prompt in prompts:
            request = Request(prompt, choose, 1)
            writer.batcher.submit(request)
            list(request.tokens())
    return seen


def test_more_texts_than_ever_have_a_place_are_refused_with_both_numbers() -> None:
    with Batcher(Held(n_seq=2), waiting=3) as batcher:
        batcher.check(5)
        with pytest.raises(
            ParameterError, match="a request for 6 texts exceeds the capacity of 5 active and waiting texts"
        ):
            batcher.check(6)
