"""What callers may not give is refused by name and changes nothing; what is large but makes sense has its answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggplug_models
from ggplug.errors import ParameterError
from ggplug_models import Drafts, LongText, Session
from ggplug_models.embedding.vectors import check_batch
from ggplug_models.sampling import Sampler, Sampling, StopStrings
from ggplug_models.sampling.parameters import SETTINGS

ODD: list[Any] = ["7", b"7", None, True, [1], 1.5, math.nan, math.inf, 10**400, -(10**400), 10**5000, -7, 3 + 0j]
"""No integers from 0 to 2**31 - 1."""

LOGITS = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
BEST = int(LOGITS.argmax())
ALL = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
LARGEST = float(np.finfo(np.float32).max)


def tokens(logits: Any = LOGITS, history: Any = (1, 2, 3), **settings: Any) -> list[int]:
    sampler = Sampler(Sampling(seed=1, **settings))
    return [sampler(np.asarray(logits, np.float32), history) for _ in range(3)]


# -- settings of samplers ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETTINGS)
def test_odd_settings_are_refused_by_name(name: str) -> None:
    kind, limits = SETTINGS[name]
    for value in ODD:
        if isinstance(value, float) and math.isfinite(value) and kind is float and value <= limits.most:
            continue
        with pytest.raises(ParameterError, match=rf"{name} must be (an integer|a number) .*, got ") as refused:
            Sampling(**{name: -1e7 if value == -7 else value})
        assert refused.value.wanted is not None


def test_numbers_of_numpy_are_numbers() -> None:
    found = Sampling(top_k=np.int64(5), temperature=np.float32(0.5), seed=np.uint64(3), logit_bias={np.int64(3): 1})  # type: ignore[arg-type]
    assert found == Sampling(top_k=5, temperature=0.5, seed=3, logit_bias={3: 1.0})
    assert [type(each) for each in (found.top_k, found.temperature, found.seed)] == [int, float, int]


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"logit_bias": {1: 10**400}}, r"logit_bias\[1\]"),
        ({"logit_bias": {1: "a"}}, r"logit_bias\[1\]"),
        ({"logit_bias": {10**5000: 1.0}}, "logit_bias's token"),
        ({"logit_bias": {None: 1.0}}, "logit_bias's token"),
        ({"logit_bias": 5}, "logit_bias must be a dict"),
        ({"dry_breakers": None}, "dry_breakers must be a tuple"),
        ({"dry_breakers": [1]}, "dry_breakers must be a tuple"),
        ({"order": None}, "order must be a tuple"),
        ({"order": ([],)}, "order must be a tuple"),
        ({"seed": 10**5000}, "seed must be an integer"),
        ({"seed": "1"}, "seed must be an integer"),
    ],
)
def test_odd_collections_are_refused_by_name(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(ParameterError, match=name):
        Sampling(**settings)


@pytest.mark.parametrize("temperature", [1e-30, 1e-38, 1e-39, 1e-45, 1e-300, 5e-324])
@pytest.mark.parametrize("settings", [ALL, {}], ids=["all", "few"])
def test_next_to_no_temperature_takes_the_most_probable_token(temperature: float, settings: dict[str, Any]) -> None:
    assert tokens(temperature=temperature, **settings) == [BEST] * 3


@pytest.mark.parametrize("settings", [ALL, {}, {"temperature": 0.0}, {"mirostat": 1}, {"mirostat": 2}], ids=str)
def test_a_bias_beyond_single_precision_decides(settings: dict[str, Any]) -> None:
    assert tokens(logit_bias={7: 1e39}, **settings) == [7] * 3
    assert tokens(logit_bias={7: 1.7e308}, **settings) == [7] * 3
    assert tokens(logit_bias={BEST: -1e39}, temperature=0.0)[0] == int(np.argsort(LOGITS)[-2])


@pytest.mark.parametrize("penalty", [1e-9, 1e38, LARGEST])
@pytest.mark.parametrize("temperature", [0.0, 0.1, 0.8])
def test_penalties_that_overflow_leave_numbers(penalty: float, temperature: float) -> None:
    row = LOGITS.copy()
    row[2], row[3] = 0, -1
    wanted = {1} if penalty < 1 and row[1] > 0 else set(range(1000)) - {3}
    assert set(tokens(row, repeat_penalty=penalty, temperature=temperature)) <= wanted
    assert 1 not in tokens(row, [1] * 100_000, frequency_penalty=1e6, penalty_last_n=-1, temperature=temperature)


def test_a_repetition_whose_penalty_overflows_is_not_continued() -> None:
    row = np.zeros(10, np.float32)
    row[1] = 1  # which would follow 1 2 3 once more
    for multiplier, base in ((1e38, 2.0), (LARGEST, LARGEST), (1.0, LARGEST)):
        found = tokens(row, [1, 2, 3] * 50, dry_multiplier=multiplier, dry_base=base, temperature=0.0)
        assert found == [0] * 3


def test_a_forbidden_token_stays_forbidden_whatever_is_added() -> None:
    row = np.full(10, -np.inf, np.float32)
    row[5] = 0
    assert tokens(row, [4, 4], logit_bias={4: 1e39}, presence_penalty=-1e6, frequency_penalty=-1e6) == [5] * 3


@pytest.mark.parametrize(
    "settings",
    [
        {},
        ALL,
        {"typical_p": 0.5, **ALL},
        {"top_n_sigma": 1.0},
        {"mirostat": 1},
        {"mirostat": 2},
        {"temperature": 0.1},
        {"temperature": 0.1, **ALL},
        {"repeat_penalty": 1.5},
        {"dynamic_range": 0.5, **ALL},
        {"xtc_probability": 1.0},
    ],
    ids=str,
)
def test_logits_as_far_apart_as_single_precision_goes_are_logits(settings: dict[str, Any]) -> None:
    row = np.array([LARGEST, -LARGEST, 0, 1] * 100)
    assert {token % 4 for token in tokens(row, (), **settings)} == {0}
    row = np.full(400, -LARGEST)
    assert len(tokens(row, (), **settings)) == 3  # all alike


@pytest.mark.parametrize(
    "settings",
    [
        {"mirostat": version, name: value}
        for version in (1, 2)
        for name in ("mirostat_tau", "mirostat_eta")
        for value in (0, 600, LARGEST)
    ]
    + [{"temperature": LARGEST}, {"dynamic_range": LARGEST, "dynamic_exponent": LARGEST}, {"top_n_sigma": LARGEST}],
    ids=str,
)
def test_settings_as_large_as_they_may_be_choose_tokens(settings: dict[str, Any]) -> None:
    assert all(0 <= token < 1000 for token in tokens(**settings))


@pytest.mark.parametrize(
    "history", [[1000], [-1], [2**70], ["a"], [1.5], [True], None, 5, "ab", [[1], [1, 2]]], ids=str
)
def test_a_history_that_is_none_is_refused(history: Any) -> None:
    with pytest.raises(ParameterError, match="history"):
        tokens(history=history, repeat_penalty=1.5)


# -- stop strings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("strings", [None, 5, [None], [b"a"], {"a": 1}], ids=str)
def test_stop_strings_that_are_none_are_refused(strings: Any) -> None:
    with pytest.raises(ParameterError, match="stop strings must be a list of strings"):
        StopStrings(strings)


def test_long_stop_strings_are_found_in_time_that_is_linear() -> None:
    stop = StopStrings(["a" * 50_000 + "b"])
    assert "".join(stop.push("a" * 1000) for _ in range(100)) == "a" * 50_000
    assert (stop.push("bc"), stop.stopped) == ("", "a" * 50_000 + "b")


def test_what_is_held_back_is_the_longest_beginning() -> None:
    random = np.random.default_rng(3)
    for _ in range(200):
        strings = ["".join(random.choice(["a", "b"], random.integers(1, 9))) for _ in range(3)]
        text = "".join(random.choice(["a", "b"], 20))
        wanted = max(
            (n for n in range(20) for each in strings if n < len(each) and text.endswith(each[:n])), default=0
        )  # of Python alone
        assert StopStrings(strings)._beginning(text) == wanted


# -- sessions ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(data: Path) -> Iterator[Any]:
    with ggplug_models.load(data / "gemma3.gguf", ["CPU"]) as model:
        yield model


@pytest.mark.parametrize("name", ["n_ctx", "n_seq", "micro_batch"])
def test_a_session_of_an_odd_size_is_refused_by_name(model: Any, name: str) -> None:
    for value in (*ODD, 0, 2**31, 2**62):
        if value is None and name == "n_ctx":
            continue
        with pytest.raises(ParameterError, match=f"{name} must be an integer"):
            model.session(**{name: value})


def test_more_rows_than_ids_can_name_are_refused_before_memory_is_allocated(model: Any) -> None:
    with pytest.raises(ParameterError, match="65536 sequences of 32832 cells has more than"):
        model.session(n_ctx=1 << 15, n_seq=1 << 16)


@pytest.mark.parametrize("kind", [5, None, b"f16", 1.5, True])
def test_a_cache_of_no_type_is_refused(model: Any, kind: Any) -> None:
    with pytest.raises(ParameterError, match=r"cache_type must be one of f32"):
        model.session(8, cache_type=kind)


CALLS: dict[str, Callable[[Session, Any], Any]] = {
    "length": lambda session, odd: session.rewind(odd),
    "keep": lambda session, odd: session.shift(odd, 1),
    "drop": lambda session, odd: session.shift(1, odd),
    "seq must be from 0 to": lambda session, odd: session.decode({odd: [1]}),
    "seq must": lambda session, odd: session.rewind(0, odd),
    "0 to 1": lambda session, odd: session.copy(0, odd),
}


@pytest.mark.parametrize("name", CALLS)
def test_odd_arguments_change_nothing_of_a_session(model: Any, name: str) -> None:
    with Session(model, 64, n_seq=2, cache_type="f32") as session:
        session.decode({0: [5, 6, 7]})
        for odd in ODD:
            if isinstance(odd, list):
                continue
            with pytest.raises(ParameterError, match=name):
                CALLS[name](session, odd)
        for batch in ([1], None, {0: None}, {0: [1.5]}, {0: [10**5000]}, {0: "ab"}):
            with pytest.raises(ParameterError):
                session.decode(batch)  # type: ignore[arg-type]
        with pytest.raises(ParameterError, match="and Outputs"):
            session.decode({0: [1]}, None)  # type: ignore[arg-type]
        with pytest.raises(ParameterError, match="tokens must be a sequence"):
            session.keep_prefix(None)  # type: ignore[arg-type]
        assert session.tokens(0) == (5, 6, 7)
        alone = model.logits([5, 6, 7, 8])[-1]
        np.testing.assert_allclose(session.decode({0: [8]})[0], alone, rtol=1e-3, atol=1e-3 * np.abs(alone).max())


def test_odd_numbers_of_tokens_and_odd_tokens_are_refused(model: Any) -> None:
    with model.session(32) as session:
        session.decode({0: [5, 6, 7]})
        for odd in ODD:
            if odd is not None:
                with pytest.raises(ParameterError, match=r"max_tokens must be an integer (of at least|from) 0"):
                    list(model.generate_ids([5], odd, session=session))
        for prompt in ([], None, [10**30], "ab", [1.5]):
            with pytest.raises(ParameterError, match="prompt"):
                list(model.generate_ids(prompt, 2, session=session))
        assert session.tokens() == (5, 6, 7)
        for token in (None, 999, -1, 1.5, "a"):
            with pytest.raises(ParameterError, match="the token that was chosen must be an integer from 0 to 299"):
                list(model.generate_ids([5], 2, session=session, choose=lambda logits, history, t=token: t))
        assert len(list(model.generate_ids([5], np.int64(2), session=session))) <= 2


@pytest.mark.parametrize("odd", [*ODD, 0], ids=lambda odd: type(odd).__name__)
def test_odd_numbers_of_texts_are_refused(odd: Any) -> None:
    with pytest.raises(ParameterError, match=r"batch must be an integer (of at least|from) 1"):
        check_batch(odd)


@pytest.mark.parametrize("odd", ["a", None, 1.0, b"7", -1, 10**9])
def test_what_is_no_token_is_refused_by_tokenisers(odd: Any, data: Path) -> None:
    tokenizer = ggplug_models.load_tokenizer(data / "qwen3.gguf")
    push = tokenizer.stream().push
    for ask in (tokenizer.piece, tokenizer.is_control, push, lambda token: tokenizer.decode([token])):
        with pytest.raises(ParameterError, match="token ids are 0 to"):
            ask(odd)


# -- what callers' own functions return ----------------------------------------------------------------


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("returned", ["CPU", None, 5, [], {"CPU": 1}], ids=str)
def test_a_placement_that_returns_no_device_says_what_it_returned(data: Path, returned: Any, pack: bool) -> None:
    with pytest.raises(ParameterError, match=r"placement must be .* for 'token_embd.weight' it returned ") as refused:
        ggplug_models.load(data / "qwen3.gguf", ["CPU"], placement=lambda name, devices: returned, pack=pack)
    assert repr(returned) in str(refused.value)
    assert "one of devices: CPU" in str(refused.value)


@pytest.mark.parametrize("given", ["CPU", 5, ["CPU"], dict], ids=str)
def test_what_is_called_has_to_be_a_function(data: Path, given: Any) -> None:
    with pytest.raises(ParameterError, match=r"placement must be a function .*, or a LayerSplit, got "):
        ggplug_models.load(data / "qwen3.gguf", ["CPU"], placement=given)
    with pytest.raises(ParameterError, match=r"progress must be None, or a function .*, got "):
        ggplug_models.load(data / "qwen3.gguf", ["CPU"], progress=given)
    with pytest.raises(ParameterError, match=r"progress must be None, or a function .*, got "):
        ggplug_models.convert(data / "folders", "never.gguf", progress=given)
    with pytest.raises(ParameterError, match=r"pieces must be a function .*, got "):
        LongText(given)
    for name in ("qwen3", "bert"):
        with (
            ggplug_models.load(data / f"{name}.gguf", ["CPU"]) as model,
            pytest.raises(ParameterError, match=r"progress must be None, or a function .*, got "),
        ):
            model.embed_ids([[3, 4]], progress=given)


@pytest.mark.parametrize("returned", [None, 5, b"ab", ["a", 5], [b"a"]], ids=str)
def test_a_long_text_whose_pieces_are_no_strings_is_refused(returned: Any) -> None:
    with pytest.raises(ParameterError, match="pieces of a LongText must be strings, got "):
        list(LongText(lambda: returned).read())


class Constrains:
    """A constraint whose ``allowed`` returns what it is made with."""

    def __init__(self, returned: Any) -> None:
        self.returned = returned

    def allowed(self) -> Any:
        return self.returned

    def accept(self, token: int) -> None:
        pass

    def begin(self) -> None:
        pass


@pytest.mark.parametrize(
    "returned",
    [None, "x", [True], np.ones(1000, int), np.ones(1000), np.ones((1000, 1), bool), np.bool_(True)],
    ids=lambda returned: f"{type(returned).__name__}",
)
def test_a_constraint_that_allows_in_another_way_is_refused(returned: Any) -> None:
    sampler = Sampler(Sampling(seed=1), constraint=Constrains(returned))
    with pytest.raises(ParameterError, match=r"allowed\(\) of the constraint must return an array of bool"):
        sampler(LOGITS, [1])


@pytest.mark.parametrize("name", ["allowed", "accept", "begin"])
def test_a_constraint_without_a_method_is_refused(name: str) -> None:
    lacking = Constrains(np.ones(1000, bool))
    setattr(lacking, name, None)
    with pytest.raises(ParameterError, match="constraint must have the methods"):
        Sampler(Sampling(), constraint=lacking)
    with pytest.raises(ParameterError, match="breakers must be a dict"):
        Sampler(Sampling(), breakers=name)  # type: ignore[arg-type]


class Guesses(Drafts):
    """A draft that guesses what it is made with."""

    def __init__(self, guessed: Any) -> None:
        super().__init__()
        self.guessed = guessed

    def guess(self, text: Any, most: int) -> Any:
        return self.guessed


NO_TOKENS = {
    "None": None,
    "int": 5,
    "str": "ab",
    "[None]": [None],
    "[float]": [1.5],
    "[str]": ["a"],
    "[list]": [[1]],
    "iterator": iter([3]),
}


@pytest.mark.parametrize("guessed", NO_TOKENS.values(), ids=NO_TOKENS)
def test_a_draft_that_guesses_no_tokens_is_refused(guessed: Any) -> None:
    with pytest.raises(ParameterError, match=r"(the result of guess\(\)|a draft token) must be "):
        Guesses(guessed).next([1, 2], 3, 100)


def test_what_a_draft_guesses_may_be_an_array() -> None:
    assert Guesses(np.array([5, 7, 200, 3])).next([1, 2], 4, 100) == [5, 7]
