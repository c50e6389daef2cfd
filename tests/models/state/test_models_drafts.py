"""Drafts: several tokens in one step, and the same text as without."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from installed import SERVE
from oracles.packed import ORACLES, model_file

import ggplug_models
from ggplug.cli.app import app
from ggplug.errors import ModelError, ParameterError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug_models import Decoder, Outputs, Session
from ggplug_models.commands.options import draft_tokens_option
from ggplug_models.generation.drafts import MOST, DraftModel, Drafts, PromptLookup
from ggplug_models.generation.loop import generate, greedy
from ggplug_models.guessing.kinds import drafts_for
from ggplug_models.sampling import Chooses, Sampler, Sampling
from ggplug_models.state.batching import FEW

PROMPT = [int(x) for x in np.random.default_rng(5).integers(3, 290, 14)]
SAMPLERS: dict[str, Callable[[], Chooses]] = {
    "greedy": lambda: greedy,
    "drawn": lambda: Sampler(Sampling(temperature=1, seed=7)),
    "mirostat": lambda: Sampler(Sampling(mirostat=2, seed=7)),
    "penalties": lambda: Sampler(Sampling(repeat_penalty=1.3, xtc_probability=0.5, dry_multiplier=0.8, seed=7)),
}


class Known(Drafts):
    """Guesses a text that is known, with every fifth token wrong."""

    def __init__(self, text: Sequence[int], most: int = MOST) -> None:
        super().__init__(most)
        self.text = list(text)

    def guess(self, text: Sequence[int], most: int) -> list[int]:
        places = range(len(text), min(len(text) + most, len(self.text)))
        return [self.text[place] ^ (place % 5 == 0) for place in places]


@pytest.fixture(scope="module")
def windowed(data: Path) -> Iterator[Decoder]:
    """Gemma 3: five of six blocks have a window of 12, in rings of 64 cells."""
    with ggplug_models.load(data / "gemma3.gguf", ["CPU"]) as loaded:
        yield loaded


def written(model: Decoder, sampler: str, draft: Drafts | None, **how: Any) -> list[int]:
    with Session(model, 128, micro_batch=8, **how) as session:
        return list(generate(session, PROMPT, 80, choose=SAMPLERS[sampler](), draft=draft))


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("which", ["model", "windowed"])
def test_the_text_is_the_same_as_without_drafts(which: str, sampler: str, request: pytest.FixtureRequest) -> None:
    model: Decoder = request.getfixturevalue(which)
    plain = written(model, sampler, None)
    assert len(plain) == 80
    draft = Known(PROMPT + plain)
    assert written(model, sampler, draft) == plain
    assert draft.accepted > 30
    assert draft.drafted > draft.accepted
    assert written(model, sampler, PromptLookup(shortest=1)) == plain


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "gpt-oss-mxfp4"])
def test_a_step_of_a_few_tokens_gives_bit_by_bit_what_single_tokens_give(name: str) -> None:
    with ggplug_models.load(model_file(name), ["CPU"]) as model, Session(model, 64) as session:
        text = [token % model.n_vocab for token in PROMPT[: 2 * (MOST + 1)]]
        one = np.stack([session.decode({0: [token]})[0] for token in text])
        session.clear()
        halves = text[: MOST + 1], text[MOST + 1 :]
        assert np.array_equal(np.concatenate([session.decode({0: half}, Outputs.ALL)[0] for half in halves]), one)


def test_the_cpu_computes_products_of_so_few_columns_as_those_of_one() -> None:
    from ggplug_cpu.ops.mul_mat.kinds import DOT_COLUMNS

    assert min(DOT_COLUMNS.values()) >= MOST + 1


def test_right_guesses_save_steps(model: Decoder) -> None:
    plain = written(model, "greedy", None)
    draft = Known([*PROMPT, *plain])
    draft.text = [token ^ (place % 5 == 0) for place, token in enumerate(draft.text)]  # so that guesses are right
    with Session(model, 128) as session:
        decode, steps = session.decode, []
        session.decode = lambda batch, *asked: steps.append(batch) or decode(batch, *asked)  # type: ignore
        assert list(generate(session, PROMPT, 80, draft=draft)) == plain
    assert draft.accepted == draft.drafted == 59
    assert len(steps) == 1 + 20


def test_a_model_that_is_its_own_draft_guesses_right(model: Decoder) -> None:
    plain = written(model, "greedy", None, cache_type="f32")
    with DraftModel(model, 128, least=0, cache_type="f32") as draft:
        assert written(model, "greedy", draft, cache_type="f32") == plain
        assert draft.accepted == draft.drafted == 59
        draft.least = 1.0
        assert written(model, "greedy", draft, cache_type="f32") == plain
        assert draft.drafted == 59, "what is not certain is not guessed"


def test_a_text_longer_than_the_draft_remembers_goes_on_without(model: Decoder) -> None:
    plain = written(model, "greedy", None)
    with DraftModel(model, 40, least=0) as draft:
        assert written(model, "greedy", draft) == plain
        assert 0 < draft.drafted <= 40 - len(PROMPT) + 1


def test_a_text_that_ends_between_drafted_tokens_leaves_sampler_and_session_as_without(model: Decoder) -> None:
    whole = written(model, "drawn", None)
    for stop in (3, 4, 5):
        results = []
        for draft in (None, Known(PROMPT + whole)):
            sampler = SAMPLERS["drawn"]()
            with Session(model, 128) as session:
                pieces = generate(session, PROMPT, choose=sampler, draft=draft)
                first = [next(pieces) for _ in range(stop)]
                pieces.close()  # type: ignore[attr-defined]
                held = session.tokens()
                assert list(held) == PROMPT + first[:-1]
                again = list(generate(session, [*PROMPT, 5], 8, choose=sampler, draft=draft))
                ended = list(generate(session, PROMPT, end={whole[stop]}, choose=SAMPLERS["drawn"](), draft=draft))
                results.append((first, again, ended, session.tokens()))
        assert results[0] == results[1]


def test_a_generation_that_was_left_does_not_touch_what_another_one_read(model: Decoder) -> None:
    plain = written(model, "greedy", None)
    with Session(model, 128) as session:
        left = generate(session, PROMPT, draft=Known([token ^ 1 for token in PROMPT] + [*plain]))
        next(left)
        for _ in generate(session, [*PROMPT, 9], 3):
            pass
        held = session.tokens()
        left.close()  # type: ignore[attr-defined]
        assert session.tokens() == held


def test_the_context_is_filled_as_without_drafts(model: Decoder) -> None:
    with Session(model, 24) as session:
        plain = list(generate(session, PROMPT))
        assert len(plain) == 24 - len(PROMPT) + 1
        session.clear()
        assert list(generate(session, PROMPT, draft=Known(PROMPT + plain + plain))) == plain
        assert session.length() == 24


def test_lookup_goes_on_as_the_longest_and_latest_repetition_did() -> None:
    lookup = PromptLookup(4)
    assert lookup.guess([1, 2, 3, 9, 2, 3, 8, 5, 1, 2, 3], 4) == [9, 2, 3, 8]
    assert lookup.guess([1, 2, 3, 9, 2, 3, 8, 5, 1, 2, 3, 7, 2, 3], 2) == [7, 2]
    assert lookup.guess([4, 5, 6, 4, 5], 4) == [6, 4, 5, 6]
    assert lookup.guess([4, 5, 6, 7, 4], 4) == []
    assert PromptLookup(4, shortest=1).guess([4, 5, 6, 7, 4], 4) == [5, 6, 7, 4]
    assert lookup.guess([], 4) == lookup.guess([1], 4) == []


def test_guesses_that_are_no_tokens_are_left_out(model: Decoder) -> None:
    plain = written(model, "greedy", None)
    draft = Known([*PROMPT, *plain[:6], 10**6, *plain[7:]])
    assert written(model, "greedy", draft) == plain
    assert draft.next(PROMPT, 0, 300) == []


class Greedy(Drafts):
    """Changes the text that it is given."""

    def guess(self, text: Sequence[int], most: int) -> list[int]:
        assert isinstance(text, list)
        text[:] = [7] * 20
        return [7]


def test_a_draft_that_changes_its_copy_of_the_text_changes_no_text(model: Decoder) -> None:
    assert written(model, "penalties", Greedy()) == written(model, "penalties", None)


def test_a_draft_model_that_reads_a_source_text_is_refused() -> None:
    with (
        ggplug_models.load(model_file("t5"), ["CPU"]) as reading,
        pytest.raises(ModelError, match="read a source text"),
    ):
        DraftModel(reading)


@pytest.mark.parametrize("name", ["rwkv7-heads", "lfm2", "mamba"])
def test_models_with_states_are_refused_in_words(name: str, model: Decoder) -> None:
    with ggplug_models.load(ORACLES / f"{name}.gguf", ["CPU"]) as stateful, Session(stateful, 32) as session:
        with pytest.raises(ModelError, match="have a recurrent state, which cannot drop"):
            next(generate(session, [5], draft=PromptLookup()))
        with pytest.raises(ModelError, match="recurrent state"):
            DraftModel(stateful)
        assert session.length() == 0


def test_a_draft_model_with_another_vocabulary_is_refused_with_the_first_difference(
    model: Decoder, data: Path, tmp_path: Path
) -> None:
    path = tmp_path / "another.gguf"
    with GGUFReader(data / "qwen3.gguf") as reader, GGUFWriter(path, "qwen3") as writer:
        writer.add_metadata_of(reader)
        tokens = list(reader.metadata["tokenizer.ggml.tokens"])
        ours, tokens[7] = tokens[7], "else"
        writer.add("tokenizer.ggml.tokens", tokens)
        for name, info in reader.tensors.items():
            writer.add_tensor(name, reader.data(name), info.type, info.ne)
        writer.write()
    with ggplug_models.load(path, ["CPU"]) as other, DraftModel(other) as draft:
        with pytest.raises(ModelError, match="its token 7 is 'else'") as caught:
            list(model.generate_ids([5], 3, draft=draft))
        assert (caught.value.got, caught.value.wanted) == ("else", ours)
    done = CliRunner().invoke(app, ["run", str(data / "qwen3.gguf"), "-p", "a", "--draft", str(path)])
    assert done.exit_code != 0
    assert "different vocabulary" in str(done.exception or done.output)


def test_settings_out_of_range_are_named(model: Decoder) -> None:
    for wrong in (0, 1.5, True):
        with pytest.raises(ParameterError, match="most must be an integer"):
            PromptLookup(wrong)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="shortest"):
        PromptLookup(longest=2, shortest=3)
    with pytest.raises(ParameterError, match="least must be a number from 0 to 1"):
        DraftModel(model, least=1.5)


@pytest.mark.parametrize("how", [["--lookup"], ["--draft", "qwen3.gguf"]])
def test_the_command_prints_the_same_text_and_how_many_draft_tokens_were_accepted(how: list[str], data: Path) -> None:
    how = [str(data / each) if each.endswith(".gguf") else each for each in how]
    command = ["run", str(data / "qwen3.gguf"), "-p", "hello hello", "-n", "30", "--temperature", "0", "-v"]
    plain, done = (CliRunner().invoke(app, [*command, "--device", "auto", *more]) for more in ([], how))
    assert plain.exit_code == done.exit_code == 0, done.output
    assert done.stdout == plain.stdout
    assert "draft tokens accepted" in " ".join(done.stderr.split())
    assert "draft tokens" not in plain.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lookup", "--draft", "qwen3.gguf"], "--draft and --lookup cannot be combined"),
        (["--device", "auto,CPU"], "cannot be combined with other devices"),
        (["--split", "2,1"], "at least two devices"),
    ],
)
def test_options_that_exclude_each_other_are_refused(options: list[str], message: str, data: Path) -> None:
    given = [str(data / each) if each.endswith(".gguf") else each for each in options]
    done = CliRunner().invoke(app, ["run", str(data / "qwen3.gguf"), "-p", "a", *given])
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


@pytest.mark.parametrize("name", ["llama3", "gemma3", "qwen3", "falcon", "gpt2"])
@pytest.mark.parametrize("length", [9, 300])
def test_up_to_eight_tokens_of_a_step_have_the_bits_that_each_has_alone(name: str, length: int) -> None:
    tokens = [int(x) for x in np.random.default_rng(3).integers(3, 60, length + FEW)]
    with ggplug_models.load(model_file(name), ["CPU"]) as model:
        length = min(length, model.n_ctx - FEW)
        with model.session(length + FEW) as session:
            session.decode({0: tokens[:length]})
            alone = [session.decode({0: [token]})[0] for token in tokens[length : length + FEW]]
            for count in range(2, FEW + 1):
                session.rewind(length)
                found = session.decode({0: tokens[length : length + count]}, Outputs.ALL)[0]
                np.testing.assert_array_equal(found, np.stack(alone[:count]))


def test_a_step_has_at_most_eight_tokens_however_many_could_be_guessed(windowed: Decoder) -> None:
    draft = Known(PROMPT + written(windowed, "greedy", None), 100)
    counts: list[int] = []
    draft.guess = lambda text, most: counts.append(most) or []  # type: ignore[method-assign, func-returns-value]
    with Session(windowed, 128, micro_batch=64) as session:
        list(generate(session, PROMPT, 20, draft=draft))
    assert max(counts) == FEW - 1


@pytest.mark.parametrize("what", ["nonsense", None, 3])
def test_what_is_no_kind_of_drafts_is_refused_with_those_that_there_are(model: Decoder, what: Any) -> None:
    with pytest.raises(ParameterError, match="it is one of mtp, lookup, ngrams"), drafts_for(model, what):
        pass


def test_an_encoder_has_no_drafts(data: Path) -> None:
    with (
        ggplug_models.load(data / "bert.gguf", ["CPU"]) as encoder,
        pytest.raises(ModelError, match="generates no text"),
        drafts_for(encoder, "lookup"),
    ):
        pass


@pytest.mark.parametrize("command", ["run", SERVE])
def test_draft_tokens_without_drafts_are_refused(command: str, data: Path) -> None:
    found = CliRunner().invoke(app, [command, str(data / "qwen3.gguf"), "--draft-tokens", "2"])
    assert found.exit_code == 2
    assert "--draft-tokens needs --draft" in found.output


def test_commands_take_as_many_draft_tokens_as_a_step_may_have() -> None:
    limits = draft_tokens_option(lambda: None).__click_params__[0].type  # type: ignore[attr-defined]
    assert (limits.min, limits.max) == (1, FEW - 1)
