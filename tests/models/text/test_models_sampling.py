"""Samplers: what llama.cpp's leave of the same logits, the same tokens for a seed, and settings that make sense.

``tests/data/samplers.json`` was recorded from llama.cpp (commit 0c1e570) by ``llama_sampler_apply``, in single
precision.
"""

from __future__ import annotations

import copy
import json
import math
import pickle
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from paths import DATA

import ggplug_models
from ggplug.errors import ParameterError
from ggplug_models import load_tokenizer
from ggplug_models.generation.loop import greedy
from ggplug_models.sampling import LogitsError, Sampler, Sampling, StopStrings, breakers_of, penalties
from ggplug_models.sampling import candidates as steps
from ggplug_models.sampling.candidates import Candidates
from ggplug_models.sampling.mirostat import Mirostat

RECORDED: dict[str, Any] = json.loads((DATA / "samplers.json").read_text("utf-8"))
ROWS = [np.array(row, np.float32) for row in RECORDED["rows"]]
N_VOCAB = len(ROWS[0])

OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
"""The settings that leave everything as it is."""


def cases(*names: str) -> list[dict[str, Any]]:
    return [each for each in RECORDED["cases"] if each["step"].split()[0] in names]


def of(row: npt.NDArray[np.float32]) -> Candidates:
    return Candidates(np.arange(len(row)), row)


@pytest.mark.parametrize("n_vocab", [5, steps.GROUPS, 2 * steps.GROUPS, 50_257])
@pytest.mark.parametrize("count", [1, 40, steps.GROUPS // 4, steps.GROUPS // 4 + 1])
@pytest.mark.parametrize("among", ["all differ", "many are equal", "nearly all are forbidden"])
def test_the_best_are_those_that_sorting_all_finds(n_vocab: int, count: int, among: str) -> None:
    rng = np.random.default_rng(n_vocab)
    row = rng.standard_normal(n_vocab, np.float32)
    if among == "many are equal":
        row = row.round()
    elif among == "nearly all are forbidden":
        row[rng.random(n_vocab) < 0.999] = -np.inf
    found = steps.top_k(of(row), count)
    assert found.ids.tolist() == np.lexsort((np.arange(n_vocab), -row))[:count].tolist()
    assert found.logits.tolist() == row[found.ids].tolist()


@pytest.mark.parametrize("name", ["top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "temperature", "xtc"])
def test_each_step_leaves_what_llama_cpp_leaves(name: str) -> None:
    assert cases(name)
    for case in cases(name):
        numbers = [float(each) for each in case["step"].split()[1:]]
        if name == "top_k":
            numbers = [int(numbers[0])]
        if name == "xtc":
            numbers.append(np.random.default_rng(1))  # type: ignore[arg-type]
        found = getattr(steps, name)(of(ROWS[case["logits"]]), *numbers)
        assert sorted(found.ids.tolist()) == sorted(case["ids"]), case["step"]
        if case.get("scaled"):
            np.testing.assert_allclose(found.logits[:5], case["scaled"], rtol=1e-4)  # in single precision


@pytest.mark.parametrize("name", ["mirostat1", "mirostat2"])
def test_mirostat_leaves_what_llama_cpp_leaves(name: str) -> None:
    for case in cases(name):
        tau, eta = (float(each) for each in case["step"].split()[1:])
        found = Mirostat(int(name[-1]), tau, eta).within(of(ROWS[case["logits"]]), N_VOCAB)
        assert sorted(found.ids.tolist()) == sorted(case["ids"]), case["step"]


@pytest.fixture(scope="module")
def breakers() -> dict[int, list[tuple[int, ...]]]:
    kinds = [2, 3, 3, *[6] * 256, *[1] * (N_VOCAB - 259)]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": RECORDED["tokens"],
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.scores": np.array([0] * 259 + [-n for n in range(N_VOCAB - 259)], np.float32),
        "tokenizer.ggml.add_space_prefix": False,
    }
    return breakers_of(load_tokenizer(metadata), ["\n", ":", '"', "*", "ab c"])


@pytest.mark.parametrize("name", ["repetition", "dry"])
def test_penalties_are_those_of_llama_cpp(name: str, breakers: Any) -> None:
    for case in cases(name):
        row = ROWS[case["logits"]]
        first, second, third, last = (float(each) for each in case["step"].split()[1:])
        before = np.array(RECORDED["before"][case["before"]][-int(last) :])
        found = row.copy()
        if name == "dry":
            penalties.dry(found, before, first, second, int(third), breakers)
        else:
            penalties.repetition(found, before, repeat=first, presence=third, frequency=second)
        wanted = row.copy()
        for token, value in case["changed"].items():
            wanted[int(token)] = value
        np.testing.assert_allclose(found, wanted, rtol=1e-5, err_msg=str(case))


def words(size: int) -> npt.NDArray[np.int64]:
    """Fibonacci's word, in which much repeats, and never as before."""
    a, b = "0", "01"
    while len(b) < size:
        a, b = b, b + a
    return np.array([int(each) for each in b[:size]])


TEXTS: dict[str, Any] = {
    "one token": lambda size: np.zeros(size, np.int64),
    "two alternately": lambda size: np.arange(size) % 2,
    "a line again and again": lambda size: np.arange(size) % 7 % 5,
    "Fibonacci's word": words,
    "one long repetition": lambda size: np.tile(np.random.default_rng(1).integers(0, 3, size // 2), 2),
    "another token at the end": lambda size: np.append(np.zeros(size - 1, np.int64), 1),
    "any": lambda size: np.random.default_rng(2).integers(0, 3, size),
}


@pytest.mark.parametrize("allowed", [0, 1, 5])
@pytest.mark.parametrize("base", [1.0, 1.01, 2.0])
def test_dry_finds_the_longest_repetition_in_any_text(base: float, allowed: int) -> None:
    random = np.random.default_rng(3)
    texts = [random.integers(0, 3, random.integers(3, 40)) for _ in range(50)]
    for before in (*texts, *(text(size) for text in TEXTS.values() for size in (30, 70))):
        found = np.zeros(7, np.float32)
        penalties.dry(found, before, 1.0, base, allowed, {})
        wanted = np.zeros(7)
        for place in range(len(before) - 1):  # by the definition, one length after the other
            length = 0
            while length <= place and before[place - length] == before[-1 - length]:
                length += 1
            if length >= allowed and allowed < len(before):
                wanted[before[place + 1]] = min(wanted[before[place + 1]], -(base ** (length - allowed)))
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


class Counted(np.ndarray[Any, Any]):
    """An array that counts how many of its elements are taken out of it."""

    taken = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        Counted.taken += np.size(found)
        return np.asarray(found) if np.ndim(found) else found


def work_of_dry(before: npt.NDArray[np.int64], base: float, allowed: int) -> int:
    """Elements that are looked at, and lines of Python that run."""
    lines = 0

    def traced(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return traced if frame.f_code.co_filename == penalties.__file__ else None

    Counted.taken = 0
    given, before_it = before.view(Counted), sys.gettrace()
    sys.settrace(traced)
    try:
        penalties.dry(np.zeros(7, np.float32), given, 1.0, base, allowed, {})
    finally:
        sys.settrace(before_it)
    return Counted.taken + lines


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(("base", "allowed"), [(1.01, 2), (1.75, 2), (1.000001, 5000)])
def test_twice_the_text_is_at_most_about_twice_the_work_for_dry(text: str, base: float, allowed: int) -> None:
    small, large = (work_of_dry(TEXTS[text](size), base, allowed) for size in (8000, 16000))
    assert large < 2.2 * small
    assert large < 30 * 16000


# -- the chain -----------------------------------------------------------------------------------------


def chosen(sampling: Sampling, row: npt.NDArray[np.float32], count: int) -> list[int]:
    sampler = Sampler(sampling)
    history: list[int] = []
    for _ in range(count):
        history.append(sampler(row, history))
    return history


def test_tokens_come_as_often_as_their_probabilities_say() -> None:
    row = np.log(np.array([0.5, 0.25, 0.125, 0.0625, 0.0625], np.float32))
    counts = Counter(chosen(Sampling(**OFF, seed=11), row, 4000))
    wanted = np.exp(row) * 4000
    # Five standard deviations of a binomial distribution.
    assert all(abs(counts[n] - wanted[n]) < 5 * math.sqrt(wanted[n]) for n in range(5))


def test_a_seed_gives_the_same_tokens_again_and_another_one_gives_others() -> None:
    settings: dict[str, Any] = {"temperature": 1.5, "xtc_probability": 0.3, "xtc_threshold": 0.05, "min_p": 0.0}
    first = chosen(Sampling(**settings, seed=5), ROWS[1], 50)
    assert first == chosen(Sampling(**settings, seed=5), ROWS[1], 50)
    assert first != chosen(Sampling(**settings, seed=6), ROWS[1], 50)


def test_a_random_seed_is_reported() -> None:
    sampler = Sampler(Sampling(temperature=2.0))
    tokens = [sampler(ROWS[0], []) for _ in range(20)]
    again = Sampler(Sampling(temperature=2.0, seed=sampler.seed))
    assert [again(ROWS[0], []) for _ in range(20)] == tokens


def test_temperature_zero_takes_the_most_probable_token_whatever_else_is_set() -> None:
    for row in ROWS:
        for mirostat in (0, 1, 2):
            assert Sampler(Sampling(temperature=0.0, mirostat=mirostat))(row, []) == row.argmax()


def test_the_steps_work_together_in_their_order() -> None:
    row = ROWS[2].astype(np.float64)
    order = np.argsort(-row)[:30]
    probabilities = np.exp(row[order]) / np.exp(row[order]).sum()
    order = order[: int(np.searchsorted(np.cumsum(probabilities), 0.9)) + 1]
    order = order[row[order] >= row[order[0]] + math.log(0.02)]
    sampling = Sampling(top_k=30, top_p=0.9, min_p=0.02, temperature=0.5)
    found = Sampler(sampling).candidates(ROWS[2], [])
    assert found.ids.tolist() == order.tolist()
    np.testing.assert_allclose(found.logits, row[order] / 0.5)
    alone = Sampler(Sampling(top_k=30, top_p=0.9, order=("top_k",))).candidates(ROWS[2], [])
    assert len(alone.ids) == 30


def test_the_most_probable_tokens_of_many_are_found_without_sorting_all() -> None:
    random = np.random.default_rng(2)
    for scale in (0.1, 1.0, 6.0):
        row = np.round(random.normal(0, scale, 32_000), 1).astype(np.float32)  # with many equal ones
        order = np.argsort(-row, kind="stable")
        assert Sampler(Sampling(**{**OFF, "top_k": 40})).candidates(row, []).ids.tolist() == order[:40].tolist()
        cumulative = np.cumsum(np.exp(row[order].astype(np.float64)))
        count = int(np.searchsorted(cumulative / cumulative[-1], 0.9)) + 1
        found = Sampler(Sampling(**{**OFF, "top_p": 0.9})).candidates(row, []).ids
        assert abs(len(found) - count) <= 1  # the sum is in single precision
        assert found[: count - 1].tolist() == order[: count - 1].tolist()


def test_what_is_forbidden_is_not_what_xtc_leaves() -> None:
    forbidden = {0: -math.inf, 1: -math.inf}
    sampling = Sampling(**{**OFF, "xtc_probability": 1, "xtc_threshold": 0, "logit_bias": forbidden, "seed": 1})
    row = np.arange(8, dtype=np.float32)
    assert Sampler(sampling)(row, []) == 2  # the least probable one that is possible
    assert Sampler(sampling).candidates(row, []).ids[0] == 2


@pytest.mark.parametrize(
    "given", [{"typical_p": 0.2}, {"xtc_probability": 1, "xtc_threshold": 0.1, "min_p": 0, "top_p": 1.0}]
)
def test_a_temperature_of_zero_takes_the_best_of_what_is_left(given: dict[str, Any]) -> None:
    row = np.array([5, 4.9, 4.9, 4.9, 4.9, 4.8, 0], np.float32)
    sampling = Sampling(temperature=0, seed=0, **given)
    assert [Sampler(sampling)(row, [])] == Sampler(sampling).candidates(row, []).ids.tolist() != [0]


def test_mirostat_brings_the_information_to_its_target() -> None:
    random = np.random.default_rng(7)
    for version in (1, 2):
        sampler = Sampler(Sampling(**OFF, mirostat=version, mirostat_tau=3.0, seed=1))
        bits = []
        for _ in range(600):
            row = np.sort(random.normal(0, 2.5, 2000)).astype(np.float32)
            mu = sampler.mirostat.mu  # type: ignore[union-attr]
            sampler(row, [])
            bits.append((mu - sampler.mirostat.mu) / 0.1 + 3.0)  # type: ignore[union-attr]
        assert abs(np.mean(bits[100:]) - 3.0) < 0.2


def test_biases_are_added_and_can_forbid() -> None:
    row = np.zeros(5, np.float32)
    assert Sampler(Sampling(temperature=0.0, logit_bias={3: 1.0}))(row, []) == 3
    only = {token: -math.inf for token in range(5) if token != 2}
    assert set(chosen(Sampling(logit_bias=only), row, 20)) == {2}
    assert row.tolist() == [0] * 5
    for sampling in (
        Sampling(temperature=0.0, logit_bias=dict.fromkeys(range(5), -math.inf)),
        Sampling(logit_bias=dict.fromkeys(range(5), -math.inf)),
    ):
        with pytest.raises(ParameterError, match="no token can be chosen"):
            Sampler(sampling)(row, [])
    with pytest.raises(ParameterError, match="logit_bias has the token 7; token ids are 0 to 4"):
        Sampler(Sampling(logit_bias={7: 1.0}))(row, [])


def test_penalties_look_back_as_far_as_the_settings_say() -> None:
    row = np.array([2.0, 1.9, 1.8, 0.0], np.float32)
    history = [0, 1, 1]
    assert Sampler(Sampling(temperature=0.0, presence_penalty=1.0))(row, history) == 2
    assert Sampler(Sampling(temperature=0.0, presence_penalty=1.0, penalty_last_n=2))(row, history) == 0
    assert Sampler(Sampling(temperature=0.0, presence_penalty=1.0, penalty_last_n=0))(row, history) == 0
    assert Sampler(Sampling(temperature=0.0, frequency_penalty=0.5, penalty_last_n=-1))(row, history) == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (np.zeros(4), r"float32 of shape \(n_vocab,\), got float64 of shape \(4,\)"),
        (np.zeros((1, 4), np.float32), r"got float32 of shape \(1, 4\)"),
        ([0.0, 1.0], "got list"),
        (np.array([0, np.nan], np.float32), "NaN or infinity"),
        (np.array([0, np.inf], np.float32), "NaN or infinity"),
        (np.full(2, -np.inf, np.float32), "all are -inf"),
    ],
)
def test_logits_that_are_none_are_refused(row: Any, message: str) -> None:
    for temperature in (0.0, 0.8):
        with pytest.raises(ParameterError, match=message):
            Sampler(Sampling(temperature=temperature))(row, [])


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_the_most_likely_of_logits_that_are_no_numbers_is_no_token(number: float) -> None:
    with pytest.raises(LogitsError, match="the model's computation failed"):
        greedy(np.array([0, number, 1], np.float32), [])


def test_a_history_with_tokens_that_there_are_not_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"history\[1\] is 9; the token ids of the vocabulary are 0 to 3"):
        Sampler(Sampling(presence_penalty=1.0))(np.zeros(4, np.float32), [1, 9])


@pytest.mark.parametrize(
    "changed",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": "hot"},
        {"temperature": True},
        {"top_k": -1},
        {"top_k": 1.5},
        {"top_p": 1.1},
        {"top_p": -0.1},
        {"min_p": 2},
        {"typical_p": -1},
        {"top_n_sigma": -1},
        {"repeat_penalty": 0},
        {"presence_penalty": math.inf},
        {"penalty_last_n": -2},
        {"mirostat": 3},
        {"mirostat_tau": -1},
        {"xtc_probability": 1.5},
        {"dry_base": 0.5},
        {"dry_allowed_length": -1},
        {"seed": -1},
        {"seed": 1.0},
        {"seed": 2**64},
        {"logit_bias": [1]},
        {"logit_bias": {"a": 1.0}},
        {"logit_bias": {1: math.nan}},
        {"logit_bias": {1: math.inf}},
        {"logit_bias": {-1: 0.0}},
        {"order": ("top_k", "top_k")},
        {"order": ("sort",)},
        {"order": "top_k"},
        {"dry_breakers": "\n"},
        {"dry_breakers": ("",)},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused_by_name(changed: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(changed))):
        Sampling(**changed)


# -- strings that end a text ---------------------------------------------------------------------------


@pytest.mark.parametrize("strings", [["</s>"], ["stop", "top"], ["aab", "ab"], ["\n\n", "\nUser:"], []])
def test_text_ends_at_the_first_stop_string_however_it_comes_in_pieces(strings: list[str]) -> None:
    random = np.random.default_rng(1)
    for _ in range(300):
        parts = random.choice(["a", "b", "aab", "st", "op", "<", "/s>", "</", "\n", "User", ":", " "], 12)
        text = "".join(parts)
        places = [(text.find(each), -len(each), each) for each in strings if each in text]
        stop = StopStrings(strings)
        given = ""
        for part in parts:
            given += stop.push(part)
            # Nothing that could still be the beginning of a stop string was given too early.
            assert not any(each in given for each in strings)
        if stop.stopped is None:
            assert not places
            given += stop.finish()
            assert given == text
        else:
            place, _, first = min(places)
            assert given == text[:place]
            assert stop.stopped == first
            assert (stop.push("more"), stop.finish()) == ("", "")


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    stop = StopStrings(["</s>"])
    assert [stop.push(part) for part in ("a <", "/b> </", "x", "</s> c")] == ["a ", "</b> ", "</x", ""]


@pytest.mark.parametrize("strings", ["</s>", [""], [1]])
def test_stop_strings_that_are_none_are_refused(strings: Any) -> None:
    with pytest.raises(ParameterError, match="stop strings must be a list of strings"):
        StopStrings(strings)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda sampler: pickle.loads(pickle.dumps(sampler))])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"xtc_probability": 0.5, "xtc_threshold": 0.01},
        {"mirostat": 2},
        {"dynamic_range": 0.5},
        {"typical_p": 0.9},
        {"dry_multiplier": 0.8},
    ],
)
def test_a_copy_goes_on_as_the_sampler_itself(copied: Any, given: dict[str, Any]) -> None:
    settings = Sampling(seed=1, **{"top_k": 0, "min_p": 0, **given})
    alone = Sampler(settings)
    wanted = [alone(ROWS[0], [1, 2]) for _ in range(20)]
    first = Sampler(settings)
    found = [first(ROWS[0], [1, 2]) for _ in range(5)]
    second = copied(first)
    if copied is not copy.copy:  # which uses the same random numbers, as copies of one level do
        for _ in range(3):
            first(ROWS[0], [1, 2])
    assert found + [second(ROWS[0], [1, 2]) for _ in range(15)] == wanted


def test_a_sampler_is_made_of_settings_and_a_constraint() -> None:
    with pytest.raises(ParameterError, match="sampling must be a Sampling"):
        Sampler({"seed": 1})  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="constraint must have the methods"):
        Sampler(constraint={"type": "object"})  # type: ignore[arg-type]


def test_what_breaks_repetitions_is_made_of_the_models_tokeniser(data: Path) -> None:
    with ggplug_models.load(data / "qwen3.gguf", ["CPU"]) as model:
        settings = Sampling(temperature=0, dry_multiplier=1.0)
        sampler = Sampler(settings)
        list(model.generate("a b a b a b", 6, choose=sampler))
        assert sampler.breakers == breakers_of(model.tokenizer, settings.dry_breakers) != {}


def test_the_stop_string_that_is_complete_first_counts_however_the_text_is_cut() -> None:
    for pieces in (["abb"], ["ab", "b"], ["a", "bb"], ["a", "b", "b"]):
        stop = StopStrings(["abb", "b"])
        assert "".join(map(stop.push, pieces)) + stop.finish() == "a", pieces
        assert stop.stopped == "b"
    stop = StopStrings(["b", "ab"])
    assert (stop.push("xab"), stop.stopped) == ("x", "ab")


def test_a_temperature_by_entropy_is_finite_where_all_tokens_are_equal() -> None:
    sampler = Sampler(Sampling(temperature=2, dynamic_range=0.1, dynamic_exponent=1e30, seed=1))
    for size in range(2, 40):
        assert 0 <= sampler(np.zeros(size, np.float32), []) < size
