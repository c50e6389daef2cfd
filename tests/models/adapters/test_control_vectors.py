"""Control vectors.  The recorded logits are llama.cpp's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from oracles.packed import ORACLES
from paths import DATA

import ggplug_models
from ggplug.cli.app import app
from ggplug.errors import ModelError, ParameterError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug.quantizing import quantize_file
from ggplug_models import Decoder, EncoderDecoder
from ggplug_models.adapters.control_vector import ControlVector
from ggplug_models.commands.control_vector import prompts
from ggplug_models.directions import directions_of

MODEL, VECTOR = DATA / "qwen3.gguf", DATA / "adapters" / "qwen3-control.gguf"
RECORDED = np.load(VECTOR.with_suffix(".npz"))
IDS = RECORDED["ids"].tolist()
ADAPTER = DATA / "adapters" / "qwen3-lora.gguf"


def error(found: np.ndarray) -> float:
    wanted = RECORDED["logits"].astype(np.float64)
    return float(np.mean((found - wanted) ** 2) / np.mean(wanted**2))


def test_logits_with_a_control_vector_are_llama_cpps() -> None:
    with ggplug_models.load(MODEL, ["CPU"]) as model:
        before = model.logits(IDS)
        with model.steer(VECTOR, float(RECORDED["scale"])):
            assert error(model.logits(IDS)) < 1e-5
        np.testing.assert_array_equal(model.logits(IDS), before)
        assert error(before) > 0.01


def test_the_blocks_of_a_range_are_changed() -> None:
    with ggplug_models.load(MODEL, ["CPU"]) as model:
        with model.steer(VECTOR, 1.5, first=1, last=1), model.steer(VECTOR, 1.5, first=2):
            assert error(model.logits(IDS)) < 1e-5
        with pytest.raises(ModelError, match="no direction for these blocks"):
            model.steer(VECTOR, last=0)


@pytest.mark.parametrize("name", ["t5", "t5encoder"])
def test_blocks_of_an_encoder_and_of_a_decoder_are_steered(tmp_path: Path, name: str) -> None:
    with ggplug_models.load(ORACLES / f"{name}.gguf", ["CPU"]) as model:
        with GGUFWriter(tmp_path / "vector.gguf", arch="controlvector") as writer:
            writer.add_tensor("direction.1", np.full(model.n_embd, 3, np.float32))
            writer.write()

        def found() -> np.ndarray:
            if isinstance(model, EncoderDecoder):
                return model.logits([0, 7, 8], [5, 17, 42, 9])
            return model.hidden_states([5, 17, 42, 9])  # type: ignore[attr-defined, no-any-return]

        before = found()
        with model.steer(tmp_path / "vector.gguf", 0.5):
            steered = found()
        with model.patch("*blk.1.l_out", np.full(model.n_embd, 1.5), add=True):
            np.testing.assert_array_equal(steered, found())
        assert np.abs(steered - before).max() > 1e-3


def test_a_direction_without_an_output_that_it_changes_is_refused() -> None:
    with pytest.raises(ModelError, match=r"the model computes no node blk\.2\.l_out"):
        ControlVector(VECTOR, 64, 3, ["blk.0.l_out", "blk.1.l_out", "blk.2.l_outs"])


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"direction.1": 63}, "has ne"),
        ({"direction.3": 64}, "3 blocks"),
        ({"direction": 64}, "no direction.N"),
        ({}, "no direction for"),
    ],
)
def test_what_is_no_control_vector_of_the_model_is_refused(tmp_path: Path, tensors: dict[str, int], said: str) -> None:
    with GGUFWriter(tmp_path / "vector.gguf", arch="controlvector") as writer:
        for name, size in tensors.items():
            writer.add_tensor(name, np.zeros(size, np.float32))
        writer.write()
    with ggplug_models.load(MODEL, ["CPU"]) as model, pytest.raises(ModelError, match=said):
        model.steer(tmp_path / "vector.gguf")


def test_the_command_line_steers() -> None:
    def run(*options: Any) -> str:
        command = ["run", "--raw", "-p", "abc", "-n", "8", "--temperature", "0", "--device", "CPU", str(MODEL)]
        found = CliRunner().invoke(app, [*command, *options])
        assert found.exit_code == 0, found.output
        return found.output.splitlines()[0]

    assert run("--control-vector", f"{VECTOR}=0") == run()
    assert run("--control-vector", f"{VECTOR}=9") != run()


PAIRS = [
    ("a bird sings of light", "a bird is silent in rain"),
    ("seven green towers stand", "old stones lie under"),
    ("the river is warm and bright", "the river is cold"),
]


@pytest.mark.parametrize("method", ["pca", "mean"])
def test_directions_are_those_of_llama_cvector_generator(method: str, tmp_path: Path) -> None:
    # llama-cvector-generator --method mean, and --method pca --pca-iter 100, of llama.cpp 0c1e570, with -fa off and
    # this model as F32.  After the first 100 iterations it would go on with a matrix of which parts are overwritten.
    quantize_file(MODEL, tmp_path / "f32.gguf", "F32")
    for side, name in enumerate(("positive", "negative")):
        (tmp_path / name).write_text("\n\n".join(pair[side] for pair in PAIRS) + "\n")
    out = tmp_path / "vector.gguf"
    files = [str(tmp_path / name) for name in ("f32.gguf", "positive", "negative")]
    done = CliRunner().invoke(app, ["control-vector", *files, str(out), "--method", method, "--device", "CPU"])
    assert done.exit_code == 0, done.output
    with GGUFReader(out) as ours, GGUFReader(DATA / "adapters" / f"qwen3-made-{method}.gguf") as theirs:
        assert dict(ours.metadata) == dict(theirs.metadata)
        assert list(ours.tensors) == list(theirs.tensors)
        for name, info in theirs.tensors.items():
            found, wanted = ours.array(ours.tensors[name]), theirs.array(info)
            assert np.linalg.norm(found) == pytest.approx(1, rel=1e-5)
            if method == "pca":
                # Theirs has either sign, and some elements are overwritten by the lengths of the last steps: pca.hpp
                # reads a tensor that is no output of its graph, whose memory was used again.
                whole = np.abs(wanted) > 1e-6
                assert whole.mean() > 0.8
                found, wanted = found[whole], wanted[whole] * np.sign(found[whole] @ wanted[whole])
            np.testing.assert_allclose(found, wanted, atol=5e-4)
    with ggplug_models.load(tmp_path / "f32.gguf", ["CPU"]) as model, model.steer(out, 2.0):
        assert np.isfinite(model.logits(IDS)).all()


@pytest.mark.parametrize("method", ["pca", "mean"])
def test_a_direction_leads_from_the_second_texts_to_the_first(method: str) -> None:
    with ggplug_models.load(MODEL, ["CPU"]) as model:
        there = directions_of(model, PAIRS, method)
        back = directions_of(model, [(b, a) for a, b in PAIRS], method)
        assert len(there) == model.n_layer - 1
        texts = [[model.tokenizer.encode(text)[:13] for text in pair] for pair in PAIRS]
        for block, (a, b) in enumerate(zip(there, back, strict=True)):
            np.testing.assert_allclose(a, -b, atol=1e-4)
            name = f"blk.{block}.l_out"
            first, second = (np.concatenate([model.run(pair[side], [name])[name] for pair in texts]) for side in (0, 1))
            assert (first @ a).mean() > (second @ a).mean()


def test_texts_of_which_no_direction_can_be_made_are_refused(tmp_path: Path) -> None:
    with ggplug_models.load(MODEL, ["CPU"]) as model:
        with pytest.raises(ParameterError, match="do not differ in the output of block 0"):
            directions_of(model, [("abc", "abc")])
        with pytest.raises(ParameterError, match="at least one pair"):
            directions_of(model, [])
        with pytest.raises(ParameterError, match="method must be one of pca, mean"):
            directions_of(model, PAIRS, "ica")
        with pytest.raises(ParameterError, match="the texts of pair 1 must have 1 to"):
            directions_of(model, [PAIRS[0], ("", "abc")])
    (tmp_path / "one").write_text("abc\n")
    (tmp_path / "two").write_text("abc\n\ndef")
    files = [str(MODEL), str(tmp_path / "one"), str(tmp_path / "two"), str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["control-vector", *files])
    assert isinstance(done.exception, ParameterError)
    assert "one has 1 and" in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_prompts_have_the_new_lines_that_are_written_in_them() -> None:
    assert prompts("a\\nb\r\n\n\\\\n \\q\n") == ["a\nb", "\\n \\q"]


Effect = Callable[[Decoder], AbstractContextManager[Any]]

EFFECTS: dict[str, Effect] = {
    "nothing": lambda _: nullcontext(),
    "a vector": lambda model: model.steer(VECTOR, 2.0),
    "another scale": lambda model: model.steer(VECTOR, 3.0),
    "other blocks": lambda model: model.steer(VECTOR, 2.0, last=1),
    "a patch": lambda model: model.patch("blk.1.l_out", np.ones(1), add=True),
}


@pytest.mark.parametrize("computed", EFFECTS)
def test_a_session_is_restored_with_the_patches_and_control_vectors_that_it_was_saved_with_and_no_others(
    tmp_path: Path, computed: str
) -> None:
    saved = tmp_path / "saved.gguf"
    with ggplug_models.load(MODEL, ["CPU"]) as model, model.session(64, 2) as session:
        with EFFECTS[computed](model):
            session.decode({1: IDS})
            session.save(saved)
            wanted = session.decode({1: [7]})[1]
        for name, effect in EFFECTS.items():
            session.clear()
            with effect(model):
                if name != computed:
                    with pytest.raises(ModelError, match=r"1\.patches is .*, but the digests of the patches"):
                        session.restore(saved)
                else:
                    session.restore(saved)
                    np.testing.assert_array_equal(session.decode({1: [7]})[1], wanted)


def test_a_session_is_not_saved_if_no_file_can_say_what_it_was_computed_with(tmp_path: Path) -> None:
    saved = tmp_path / "saved.gguf"
    with ggplug_models.load(MODEL, ["CPU"]) as model, model.session(64) as session:
        session.decode({0: IDS})
        with model.patch("blk.1.l_out", lambda x: 2 * x):
            session.save(saved)
            with pytest.raises(ParameterError, match="files of sessions cannot say that"):
                session.restore(saved)
            session.decode({0: [7]})
        with pytest.raises(ParameterError, match="computed with several patches or control vectors, which no file"):
            session.save(saved)
        session.clear()
        with model.patch("blk.1.l_out", lambda x: 2 * x):
            session.decode({0: IDS})
        with pytest.raises(ParameterError, match="files of sessions cannot say that"):
            session.save(saved)


def test_patches_change_what_adapters_have_changed_whichever_were_made_first() -> None:
    def adapted(model: Decoder) -> AbstractContextManager[Any]:
        return model.adapt(ADAPTER)

    def patched(model: Decoder) -> AbstractContextManager[Any]:
        return model.patch("blk.*.ffn_out", np.full(1, 0.5, np.float32))

    found = []
    for first, second in ((adapted, patched), (patched, adapted)):
        with ggplug_models.load(MODEL, ["CPU"]) as model, first(model), second(model):
            found.append(model.logits(IDS))
    np.testing.assert_array_equal(*found)
