"""Language models embed texts: several in one step, with the vectors that each has alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from oracles.packed import ORACLES, model_file

import ggplug_models
from ggplug.cli.app import app
from ggplug.errors import FreedError, ParameterError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug_models import Decoder, Outputs, Session
from ggplug_models.embedding.reading import TOGETHER, groups
from ggplug_models.embedding.vectors import normalized
from ggplug_models.state.cells import GRANULE, Cells

RNG = np.random.default_rng(5)
TEXTS = [RNG.integers(3, 60, n).tolist() for n in (9, 3, 70, 1, 12, 9, 64, 5, 9, 30, 2, 9)]


@pytest.fixture(scope="module")
def model(data: Path) -> Iterator[Decoder]:
    """Gemma 3: six blocks, five of them with a window of 12."""
    with ggplug_models.load(data / "gemma3.gguf", ["CPU"]) as model:
        yield model


def near(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.abs(a - b).max() < 1e-4 * np.abs(b).max())


def alone(model: Decoder, texts: list[list[int]]) -> np.ndarray:
    return np.concatenate([model.embed_ids([text], normalize=False) for text in texts])


def test_a_text_has_the_normed_vector_of_its_last_token(model: Decoder) -> None:
    found = model.embed_ids(TEXTS, normalize=False)
    with Session(model, 128, cache_type="f32") as session:
        for text, vector in zip(TEXTS, found, strict=True):
            session.clear()
            assert near(vector, session.decode({0: text}, Outputs.ALL, hidden=True)[0][-1])
    together = model.embed(["hello", "hello world"])
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    assert together.shape == (2, 64)


@pytest.mark.parametrize("size", [1e-30, 1.0, 3e37])
def test_vectors_have_the_length_1_whatever_length_they_had(size: float) -> None:
    given = np.array([[3 * size, 4 * size]], np.float32)
    found = normalized(given)
    assert np.allclose(found, [[0.6, 0.8]] if size > 1e-12 else given / 1e-12, rtol=1e-6)


@pytest.mark.parametrize("name", ["gpt-oss", "rwkv7-heads", "lfm2", "mamba", "mamba2"])
def test_texts_in_one_step_have_the_vectors_that_they_have_by_themselves(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ggplug_models.load(ORACLES / f"{name}.gguf", ["CPU"]) as model:
        texts = [text[: model.n_ctx] for text in TEXTS]
        wanted = alone(model, texts)
        done: list[int] = []
        steps: list[int] = []
        step = Session._compute

        def counted(session: Session, piece: Any, *how: Any, **more: Any) -> dict[int, Any]:
            steps.append(len(piece.tokens))
            return step(session, piece, *how, **more)

        monkeypatch.setattr(Session, "_compute", counted)
        assert near(model.embed_ids(texts, normalize=False, progress=done.append), wanted)
        assert sum(done) == len(texts)
        assert steps == done
        assert max(steps) >= 4
        assert near(model.embed_ids(texts, batch=2, normalize=False), wanted)


@pytest.mark.parametrize(("pooling", "wanted"), [(1, "mean"), (2, "first"), (3, "last")])
def test_vectors_are_pooled_as_the_file_says(pooling: int, wanted: str, data: Path, tmp_path: Path) -> None:
    path = tmp_path / "pooled.gguf"
    with GGUFReader(data / "qwen3.gguf") as reader, GGUFWriter(path, "qwen3") as writer:
        writer.add_metadata_of(reader)
        writer.add("qwen3.pooling_type", pooling)
        for name, info in reader.tensors.items():
            writer.add_tensor(name, reader.data(name), info.type, info.ne)
        writer.write()
    with ggplug_models.load(path, ["CPU"]) as model, Session(model, 128, cache_type="f32") as session:
        for text, vector in zip(TEXTS, model.embed_ids(TEXTS, normalize=False), strict=True):
            session.clear()
            every = session.decode({0: text}, Outputs.ALL, hidden=True)[0]
            assert near(vector, {"mean": every.mean(axis=0), "first": every[0], "last": every[-1]}[wanted])


def test_texts_that_are_computed_together_are_few_and_of_similar_length() -> None:
    rng = np.random.default_rng(0)
    lengths = [int(n) for n in rng.integers(1, 700, 200)]
    for batch, alike in ((32, False), (32, True), (3, False)):
        found = list(groups(lengths, batch, alike=alike))
        assert sorted(place for group in found for place in group) == list(range(200))
        for group in found:
            own = [lengths[place] for place in group]
            assert own[0] == max(own)
            assert len(group) == 1 or len(group) * own[0] <= TOGETHER
            assert len(group) <= batch
            assert own[0] - own[-1] <= (0 if alike else 64)
    assert [len(group) for group in groups([8] * 100, 32, alike=False)] == [32, 32, 32, 4]


def test_sequences_of_many_tokens_are_together_if_about_as_many(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, steps = Cells.rows, []
    monkeypatch.setattr(Cells, "rows", lambda cells, *given: steps.append(given[1]) or rows(cells, *given))
    with Session(model, 256, n_seq=4, cache_type="f32") as session:
        texts = {0: TEXTS[2] * 3, 1: TEXTS[6], 3: TEXTS[2]}
        found = session.decode(texts, few=512)
        assert {len(positions) for positions in steps} == {1, 3}
        assert all(int((row < 0).sum()) <= GRANULE for positions in steps for row in positions if row[0] >= 0)
        for seq, text in texts.items():
            session.clear(2)
            assert near(found[seq], session.decode({2: text})[2])


@pytest.mark.parametrize("name", ["rwkv7-heads", "mamba2", "lfm2"])
def test_states_are_computed_together_where_nothing_fills_up(name: str) -> None:
    with (
        ggplug_models.load(ORACLES / f"{name}.gguf", ["CPU"]) as model,
        Session(model, 64, n_seq=5, cache_type="f32") as session,
    ):
        text = TEXTS[2]
        session.decode({1: text[:7]})
        found = session.decode({0: text[5:9], 2: text[8:12], 3: text[2:6], 4: text[:3]})
        for seq, part in ((0, text[5:9]), (2, text[8:12]), (3, text[2:6]), (4, text[:3])):
            session.clear(seq)
            assert near(found[seq], session.decode({seq: part})[seq])
        session.clear(0)
        assert near(session.decode({1: text[7:9]})[1], session.decode({0: text[:9]})[0])


def test_what_is_no_text_is_named(model: Decoder) -> None:
    for wrong, message in (
        ([[5, 6], [5, 300]], r"ids\[1\]\[1\] is 300"),
        ([[5], []], r"ids\[1\] has no tokens"),
        (5, "ids must be a sequence"),
    ):
        with pytest.raises(ParameterError, match=message):
            model.embed_ids(wrong)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="batch must be"):
        model.embed_ids([[5]], batch=0)
    with pytest.raises(ParameterError, match="got one string"):
        model.embed("hello")
    with pytest.raises(ParameterError, match=r"texts\[1\] must be a string or a LongText, got int"):
        model.embed(["hello", 5])  # type: ignore[list-item]
    assert model.embed_ids([]).shape == (0, 64)


def test_a_text_without_tokens_is_named(data: Path) -> None:
    with (
        ggplug_models.load(data / "qwen3.gguf", ["CPU"]) as qwen,  # its files put no token before a text
        pytest.raises(ParameterError, match=r"texts\[1\] has no tokens: it is empty.*\(leave such texts out\)"),
    ):
        qwen.embed(["a", ""])


def test_a_text_of_more_ids_than_the_context_length_is_refused_as_by_an_encoder(model: Decoder) -> None:
    length = model.n_ctx
    assert model.embed_ids([[5] * length]).shape == (1, 64)
    with pytest.raises(ParameterError, match=rf"ids\[1\] has {length + 1} tokens; the context length .* is {length}"):
        model.embed_ids([[5], [5] * (length + 1)])


def test_a_model_that_was_freed_says_so(data: Path) -> None:
    model = ggplug_models.load(data / "qwen3.gguf", ["CPU"])
    model.free()
    with pytest.raises(FreedError, match="was freed"):
        model.embed(["hello"])


def test_the_command_embeds_lines_with_a_language_model(model: Decoder, data: Path) -> None:
    lines = ["hello world", "a", "hello"]
    done = CliRunner().invoke(app, ["embed", str(data / "gemma3.gguf"), "--device", "CPU"], input="\n".join(lines))
    assert done.exit_code == 0, done.output
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["text"] for each in found] == lines
    assert near(np.array([each["embedding"] for each in found]), model.embed(lines))


@pytest.mark.parametrize("name", ["phi3-longrope-long", "phi3-longrope-short"])
def test_how_a_text_is_rotated_depends_only_on_its_own_length(name: str) -> None:
    with ggplug_models.load(ORACLES / f"{name}.gguf", ["CPU"]) as model:
        assert isinstance(model, Decoder)
        limit = {"phi3-longrope-long": 4, "phi3-longrope-short": 256}[name]  # original_context_length in the file
        short, at, beyond, long = (RNG.integers(3, 60, n).tolist() for n in (3, limit, limit + 1, limit + 9))
        wanted = {}
        for text in (short, at, beyond, long):  # as sessions of their own lengths have them
            with Session(model, len(text), cache_type="f32") as session:
                wanted[len(text)] = session.decode({0: text}, hidden=True)[0]
        for texts in ([short], [short, long], [at, beyond], [long, at, short, beyond], [short, beyond, *[short] * 9]):
            for batch in (1, 2, 32):
                found = model.embed_ids(texts, batch=batch, normalize=False)
                for text, vector in zip(texts, found, strict=True):
                    assert near(vector, wanted[len(text)]), (len(text), [len(each) for each in texts], batch)


WITH_NAN = 7
"""A token whose vector is no number, as one that overflows would make others."""


@pytest.mark.parametrize("name", ["llama3", "gpt-oss", "gemma2", "lfm2", "mamba2", "rwkv7", "bert", "modern-bert"])
def test_a_text_in_a_batch_with_a_vector_of_nan_has_the_vector_that_it_has_by_itself(name: str, tmp_path: Path) -> None:
    path = model_file(name)
    with GGUFReader(path) as reader, GGUFWriter(tmp_path / "nan.gguf") as writer:
        writer.add_metadata_of(reader)
        for info in reader.tensors.values():
            values = np.array(reader.array(info))
            if info.name == "token_embd.weight":
                values[WITH_NAN] = np.nan
            writer.add_tensor(info.name, values.view(np.uint8).reshape(-1), info.type, info.ne)
        writer.write()
    texts = [[token for token in text if token != WITH_NAN] for text in TEXTS]
    with ggplug_models.load(tmp_path / "nan.gguf", ["CPU"]) as model:
        texts = [text[: model.n_ctx] for text in texts if text]
        wanted = np.concatenate([model.embed_ids([text]) for text in texts])
        broken = [[WITH_NAN, *text[1:]] for text in texts]
        found = model.embed_ids([text for both in zip(broken, texts, strict=True) for text in both])
        assert near(found[1::2], wanted)
        assert np.isnan(found[::2]).any(axis=1).all()
