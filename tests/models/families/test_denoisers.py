"""Models that predict masked tokens write the most certain ones first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from oracles.packed import ORACLES

import ggplug_models
from ggplug.cli.app import app
from ggplug.errors import ModelError, ParameterError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug_models import Denoiser
from ggplug_models.networks.denoiser import MASK
from ggplug_models.sampling import Sampler, Sampling

PROMPT = [69, 5, 17, 23, 8]


@pytest.fixture(scope="module", params=["dream", "llada"])
def model(request: pytest.FixtureRequest) -> Iterator[Denoiser]:
    with ggplug_models.load(ORACLES / f"{request.param}.gguf", ["CPU"]) as loaded:
        assert isinstance(loaded, Denoiser)
        yield loaded


def certainty(probabilities: np.ndarray, order: str) -> float:
    second, first = np.sort(probabilities)[-2:]
    if order == "entropy":
        return float(sum(p * np.log(p) for p in probabilities if p > 0))
    return float(first if order == "probability" else first - second)


def by_hand(model: Denoiser, count: int, per_step: int, block: int, order: str = "probability") -> list[int]:
    """Blocks one after the other, ``per_step`` tokens at a time, by probabilities."""
    tokens = [*PROMPT, *[model.mask] * count]
    for start in range(len(PROMPT), len(tokens), block):
        left = set(range(start, start + block))
        while left:
            logits = model.logits(tokens).astype(np.float64)
            logits[:, model.mask] = -np.inf
            found = {}
            for place in left:
                row = logits[place - 1 if model.shifts else place]
                probabilities = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
                found[place] = (certainty(probabilities, order), int(probabilities.argmax()))
            for place in sorted(left, key=lambda place: -found[place][0])[:per_step]:
                tokens[place] = found[place][1]
                left.remove(place)
    return tokens[len(PROMPT) :]


def test_files_say_whether_logits_are_for_the_next_token(model: Denoiser) -> None:
    assert model.shifts == (model.architecture == "dream")


@pytest.mark.parametrize("per_step", [1, 3])
def test_each_step_writes_the_tokens_that_are_most_certain(model: Denoiser, per_step: int) -> None:
    assert model.generate_ids(PROMPT, 12, steps=12 // per_step) == by_hand(model, 12, per_step, 12)


@pytest.mark.parametrize("order", ["entropy", "margin"])
def test_the_order_may_follow_from_all_probabilities(model: Denoiser, order: str) -> None:
    seen: list[int] = []
    found = model.generate_ids(PROMPT, 12, steps=6, order=order, progress=seen.append)
    assert found == by_hand(model, 12, 2, 12, order)
    assert seen == [2] * 6


def test_the_order_may_be_random_with_a_seed(model: Denoiser) -> None:
    texts = [model.generate_ids(PROMPT, 16, steps=8, order="random", seed=seed) for seed in (1, 1, 2, 3)]
    assert texts[0] == texts[1]
    assert len({tuple(each) for each in texts}) > 1
    with pytest.raises(ParameterError, match="order must be one of probability, entropy, margin, random, got 'best'"):
        model.generate_ids(PROMPT, 4, order="best")


def test_tokens_are_those_that_the_caller_chooses(model: Denoiser) -> None:
    texts: list[list[int]] = []

    def second(logits: np.ndarray, text: Sequence[int]) -> int:
        assert logits[model.mask] == -np.inf
        texts.append(list(text))
        return int(logits.argsort()[-2])

    (token,) = model.generate_ids(PROMPT, 1, choose=second)
    logits = model.logits([*PROMPT, model.mask])[len(PROMPT) - model.shifts]
    logits[model.mask] = -np.inf
    assert token == logits.argsort()[-2]
    assert texts == [PROMPT]
    drawn = [model.generate_ids(PROMPT, 12, choose=Sampler(Sampling(temperature=2, seed=seed))) for seed in (5, 5, 6)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_the_command_writes_what_the_model_writes(model: Denoiser) -> None:
    def run(name: str, *more: str) -> Result:
        arguments = ["run", str(ORACLES / f"{name}.gguf"), "-p", "the in", "--device", "CPU", "-n", "8", *more]
        return CliRunner().invoke(app, arguments)

    wanted = model.generate("the in", 8, steps=4, block=4, order="margin")
    options = ("--temperature", "0", "--steps", "4", "--block", "4", "--order", "margin")
    done = run(model.architecture, *options)
    assert (done.exit_code, done.stdout) == (0, wanted + "\n"), done.output
    for refused, message in (
        (run(model.architecture, "--lookup"), "writes its tokens in any order, without a draft"),
        (run(model.architecture, "--context", "32"), "without --context"),
        (run("llama3", "--steps", "4"), "writes one token after the other, so --steps cannot be used"),
    ):
        assert refused.exit_code != 0
        assert message in str(refused.exception or refused.output)


def test_a_block_is_complete_before_the_next_one_is_written(model: Denoiser) -> None:
    in_blocks = model.generate_ids(PROMPT, 12, steps=6, block=4)
    assert in_blocks == by_hand(model, 12, 2, 4)
    assert in_blocks != model.generate_ids(PROMPT, 12, steps=6)


def test_the_number_of_steps_need_not_divide_the_number_of_tokens(model: Denoiser) -> None:
    for steps in (1, 4, 7):
        assert model.mask not in model.generate_ids(PROMPT, 10, steps=steps, block=4)


def test_a_text_is_continued_up_to_its_first_end(model: Denoiser) -> None:
    ids = model.generate_ids(model.vocabulary.prompt("the in"), 10)
    ends = [n for n, token in enumerate(ids) if token in model.vocabulary.ends]
    wanted = model.vocabulary.decode(ids[: ends[0]] if ends else ids, skip_special=True)
    assert model.generate("the in", 10) == wanted


def test_the_text_must_fit_into_the_context(model: Denoiser) -> None:
    with pytest.raises(ParameterError, match="max_tokens must be"):
        model.generate_ids(PROMPT, model.n_ctx)


def test_a_file_without_a_mask_has_logits_but_writes_nothing(tmp_path: Path) -> None:
    with GGUFReader(ORACLES / "llada.gguf") as reader, GGUFWriter(tmp_path / "model.gguf") as writer:
        for key, value in reader.metadata.items():
            if key != MASK:
                writer.add(key, value)
        for name, info in reader.tensors.items():
            writer.add_tensor(name, np.array(reader.data(info)), info.type, info.ne)
        writer.write()
    with ggplug_models.load(tmp_path / "model.gguf", ["CPU"]) as loaded:
        assert isinstance(loaded, Denoiser)
        assert loaded.logits(PROMPT).shape == (len(PROMPT), loaded.n_vocab)
        with pytest.raises(ModelError, match=MASK):
            loaded.generate_ids(PROMPT, 3)
