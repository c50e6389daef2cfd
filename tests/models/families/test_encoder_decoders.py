"""Encoder-decoders read a source text first, and write a text with attention to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from installed import device_or_skip
from oracles.packed import ORACLES

import ggplug_models
from ggplug.cli.app import app
from ggplug.errors import ContextFullError, ModelError, ParameterError
from ggplug_models import EncoderDecoder, LayerSplit, Outputs
from ggplug_models.goldens import nmse, replay
from ggplug_models.sampling import Chooses
from ggplug_models.serve.batcher import Counts
from ggplug_models.serve.loaded import loaded

NAMES = ["t5", "t5-gated"]


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(name: str) -> Iterator[EncoderDecoder]:
    with ggplug_models.load(ORACLES / f"{name}.gguf", ["CPU"]) as found:
        assert isinstance(found, EncoderDecoder)
        yield found


@pytest.fixture(scope="module")
def texts(name: str) -> list[tuple[list[int], list[int], np.ndarray]]:
    """Source texts and texts, with the logits that transformers compute for them."""
    with np.load(ORACLES / f"{name}.npz") as arrays:
        return [
            (arrays[f"source_{i}"].tolist(), arrays[f"tokens_{i}"].tolist(), arrays[f"logits_f32_{i}"])
            for i in range(3)
        ]


def test_logits_of_a_text_depend_on_its_source_text(model: EncoderDecoder, texts: list) -> None:
    for source, tokens, wanted in texts:
        assert nmse(model.logits(tokens, source), wanted) < 1e-10
    (source, _, _), (_, tokens, wanted) = texts[1:]
    assert nmse(model.logits(tokens, source), wanted) > 1e-3
    found = model.run(tokens, ["dec.blk.0.cross_out"], source=source)
    assert found["dec.blk.0.cross_out"].shape == (len(tokens), model.n_embd)


def test_sequences_with_source_texts_of_their_own_are_computed_together(model: EncoderDecoder, texts: list) -> None:
    parts: list[list[np.ndarray]] = [[], [], []]
    with model.session(64, n_seq=3, cache_type="f32") as session:
        for seq, (source, _, _) in enumerate(texts):
            session.encode(source, seq)
        for place in range(7):
            step = {seq: [tokens[place]] for seq, (_, tokens, _) in enumerate(texts) if place < len(tokens)}
            for seq, row in session.decode(step).items():
                parts[seq].append(row)
    for found, (_, _, wanted) in zip(parts, texts, strict=True):
        assert nmse(np.array(found), wanted[: len(found)]) < 1e-10


@pytest.mark.parametrize(("kind", "limit"), [("f16", 1e-5), ("bf16", 1e-3), ("q8_0", 1e-3), ("q4_0", 0.2)])
def test_caches_of_each_type_hold_both_texts(kind: str, limit: float, model: EncoderDecoder, texts: list) -> None:
    source, tokens, wanted = texts[2]
    with model.session(64, cache_type=kind, micro_batch=16) as session:
        session.encode(source)
        assert nmse(session.decode({0: tokens}, Outputs.ALL)[0], wanted) < limit


def test_a_session_goes_on_after_rewinding_copying_and_restoring(
    model: EncoderDecoder, texts: list, tmp_path: Path
) -> None:
    source, tokens, wanted = texts[2]
    with model.session(64, n_seq=2, cache_type="f32", micro_batch=16) as session:
        session.encode(source)
        session.decode({0: tokens[:30]})
        session.rewind(20)
        session.copy(0, 1)
        assert session.source(1) == tuple(source)
        assert nmse(session.decode({1: tokens[20:]}, Outputs.ALL)[1], wanted[20:]) < 1e-10
        session.save(tmp_path / "saved.gguf")
        session.encode(texts[1][0])
        session.clear(1)
        session.restore(tmp_path / "saved.gguf")
        assert session.source() == tuple(source)
        assert nmse(session.decode({0: tokens[20:]}, Outputs.ALL)[0], wanted[20:]) < 1e-10
        session.clear()
        assert session.source() == session.source(1) == ()
    with model.session(64, n_seq=2, cache_type="f32", micro_batch=16) as session:
        session.encode(source, 1)
        session.save(tmp_path / "only a source.gguf")
        session.clear()
        session.restore(tmp_path / "only a source.gguf")
        assert nmse(session.decode({1: tokens}, Outputs.ALL)[1], wanted) < 1e-10
        with pytest.raises(ParameterError, match="sequence 0 has no source text"):
            session.decode({0: tokens})


def test_a_source_text_is_read_once(model: EncoderDecoder, texts: list) -> None:
    source, tokens, wanted = texts[1]
    with model.session(64, cache_type="f32") as session:
        session.encode(source)
        with model.patch("enc.blk.0.l_out", lambda x: np.zeros_like(x)):
            session.encode(source)
            assert nmse(session.decode({0: tokens}, Outputs.ALL)[0], wanted) < 1e-10
            session.encode(texts[2][0])
            session.encode(source)
            assert nmse(session.decode({0: tokens}, Outputs.ALL)[0], wanted) > 1e-3


@pytest.mark.parametrize("kept", [0, 3])
def test_what_follows_a_text_with_nan_is_computed_as_without_it(model: EncoderDecoder, texts: list, kept: int) -> None:
    source, tokens, wanted = texts[1]
    with model.session(64, cache_type="f32") as session:
        session.encode(source)
        session.decode({0: tokens[:3]})
        with model.patch("dec.blk.0.l_out", lambda x: x * np.nan):
            assert np.isnan(session.decode({0: [7] * 30})[0]).all()
        session.rewind(kept)
        for place, token in enumerate(tokens[kept:], kept):
            assert nmse(session.decode({0: [token]})[0], wanted[place]) < 1e-10


def test_a_text_begins_with_the_token_that_the_file_names(model: EncoderDecoder, texts: list) -> None:
    (source, (start,), logits), (other, _, _), _ = texts
    assert model.start == start
    assert next(model.generate_ids(source, 1)) == logits[0].argmax()
    found = list(model.generate_ids(other, 4))
    text = [start]
    for token in found:
        assert token == model.logits(text, other)[-1].argmax()
        text.append(token)
    with model.session(48) as session:
        assert list(model.generate_ids(other, 4, session=session)) == found
        assert session.source() == tuple(other)


def test_generations_that_take_turns_in_a_sequence_keep_their_source_texts(model: EncoderDecoder, texts: list) -> None:
    # The most likely tokens of these models are the same for each source text, so logits are compared.
    (one, _, _), (other, _, _), _ = texts
    seen: dict[int, list[np.ndarray]] = {0: [], 1: []}

    def seeing(number: int) -> Chooses:
        def choose(logits: np.ndarray, history: Sequence[int]) -> int:
            seen[number].append(logits.copy())
            return 5 + len(history)

        return choose

    with model.session(48, cache_type="f32") as session:
        first = model.generate_ids(one, 4, session=session, choose=seeing(0))
        second = model.generate_ids(other, 4, session=session, choose=seeing(1))
        for _ in range(4):
            next(first), next(second)
    for number, source in enumerate((one, other)):
        assert nmse(np.array(seen[number]), model.logits([model.start, 6, 7, 8], source)) < 1e-10


def test_the_command_writes_what_the_model_writes(model: EncoderDecoder, name: str) -> None:
    wanted = "".join(model.generate("translate this", 6))
    arguments = ["run", str(ORACLES / f"{name}.gguf"), "-p", "translate this", "-n", "6", "--temperature", "0"]
    done = CliRunner().invoke(app, [*arguments, "--device", "CPU"])
    assert (done.exit_code, done.stdout) == (0, wanted + "\n"), done.output


def test_what_needs_a_source_text_says_so(model: EncoderDecoder) -> None:
    with model.session(16) as session:
        with pytest.raises(ParameterError, match="sequence 0 has no source text, which t5 models read first"):
            session.decode({0: [5]})
        with pytest.raises(ContextFullError, match="the source text of sequence 0 has 17 tokens; the context length"):
            session.encode([5] * 17)
        with pytest.raises(ParameterError, match="the source text of sequence 0"):
            session.encode([])
        with pytest.raises(ParameterError, match="the source text of sequence 0"):
            session.encode([model.n_vocab])
    with pytest.raises(ParameterError, match="has no source text"):
        model.embed_ids([[5, 6]])


def test_it_does_not_chat_and_is_not_served(model: EncoderDecoder, name: str) -> None:
    with pytest.raises(ModelError, match="t5 models write one text about a source text; they do not chat"):
        model.chat([{"role": "user", "content": "hello"}])
    with pytest.raises(ParameterError, match="reads a source text before it writes, which the server does not"):
        loaded(lambda: nullcontext(model), name, Counts()).__enter__()


def test_other_models_read_no_source_text() -> None:
    with (
        ggplug_models.load(ORACLES / "llama3.gguf", ["CPU"]) as llama,
        llama.session(16) as session,
        pytest.raises(ParameterError, match="llama models read no source text"),
    ):
        session.encode([5])


def test_the_source_text_lies_where_the_block_is_computed() -> None:
    device_or_skip("OpenCL0")
    report = replay(ORACLES / "t5-gated.gguf", ["OpenCL0", "CPU"], LayerSplit())
    assert report["ok"], report
