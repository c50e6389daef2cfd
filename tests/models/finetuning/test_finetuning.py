"""Finetuning: losses and gradients by the run-time model, adapters and weights that the file's reader computes with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from installed import device_or_skip
from oracles.packed import ORACLES, model_file

import ggplug_models
from ggplug import opt
from ggplug.errors import GGUFError, ModelError, ParameterError, TrainingError
from ggplug.gguf import GGUFReader
from ggplug.quantizing import quantize_file
from ggplug_models import Decoder
from ggplug_models.adapters.lora import write_lora
from ggplug_models.finetuning import Learned, LoraTraining, Texts, WeightTraining, finetune, learned_text

Array = npt.NDArray[Any]


def texts_of(n_vocab: int) -> list[Learned]:
    """Three texts of different lengths, of which some tokens are learned."""
    random = np.random.default_rng(3)
    found = []
    for n in (19, 40, 7):
        learned = random.random(n) < 0.6
        learned[-1] = True
        found.append(Learned(random.integers(0, n_vocab, n).tolist(), learned.tolist()))
    return found


def loss_of(model: Decoder, texts: list[Learned]) -> float:
    """The mean of -log p over the learned tokens, in float64, by the model as it computes at run time."""
    surprises: list[float] = []
    for text in texts:
        logits = model.logits(text.ids[:-1]).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        surprises += [-logs[n, text.ids[n + 1]] for n in range(len(logits)) if text.learned[n + 1]]
    return float(np.mean(surprises))


def error(found: Array, wanted: Array) -> float:
    """The normalised mean squared error."""
    return float(np.mean((found.astype(np.float64) - wanted) ** 2) / np.mean(wanted.astype(np.float64) ** 2))


@pytest.fixture(scope="module")
def quantised(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finetuning") / "q4_0.gguf"
    quantize_file(data / "qwen3.gguf", path, "Q4_0")
    return path


@pytest.fixture
def q4_0(quantised: Path) -> Iterator[Decoder]:
    with ggplug_models.load(quantised, ["CPU"], pack=False) as loaded:
        yield loaded


@pytest.fixture
def f16(data: Path) -> Iterator[Decoder]:
    with ggplug_models.load(data / "qwen3.gguf", ["CPU"], pack=False) as loaded:
        yield loaded


# -- losses and gradients --------------------------------------------------------------------------


def test_the_loss_is_the_mean_over_the_tokens_that_are_learned(q4_0: Decoder) -> None:
    texts = texts_of(q4_0.n_vocab)
    with LoraTraining(q4_0) as training:
        for batch in (1, 2, 3):
            assert training.evaluate(Texts(texts, 40), batch).loss == pytest.approx(loss_of(q4_0, texts), rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "step", "tolerance"),
    [("F32", 0.01, 1e-3), ("Q4_0", 0.1, 0.05)],  # products with Q4_0 round what they read, which is no smooth function
)
def test_a_step_follows_the_gradient_of_the_run_time_loss(
    kind: str, step: float, tolerance: float, data: Path, tmp_path: Path
) -> None:
    quantize_file(data / "qwen3.gguf", tmp_path / "model.gguf", kind)
    model = ggplug_models.load(tmp_path / "model.gguf", ["CPU"], pack=False)
    texts = texts_of(model.n_vocab)
    dataset = Texts(texts, 40)
    with LoraTraining(model, 4, 4.0, optimiser=opt.SGD(1.0), clip=0) as training:
        random = np.random.default_rng(1)
        for name, tensor in training.parameters.items():
            if name.endswith("lora_b"):  # with B of zero, A would have no gradient
                tensor.set(random.standard_normal(tensor.shape) * 0.1)
        before = {name: tensor.numpy() for name, tensor in training.parameters.items()}
        training.step(dataset.data, dataset.labels)
        gradients = {name: before[name] - tensor.numpy() for name, tensor in training.parameters.items()}
    for names in ("lora_a", "lora_b"):
        length = np.sqrt(sum((each**2).sum() for name, each in gradients.items() if name.endswith(names)))
        found = []
        for moves in (-step, step):
            moved = {
                name: value + moves / length * gradients[name] if name.endswith(names) else value
                for name, value in before.items()
            }
            with model.adapt(write_lora(tmp_path / "moved.gguf", "qwen3", 4.0, moved)):
                found.append(loss_of(model, texts))
        assert (found[1] - found[0]) / (2 * step) == pytest.approx(length, rel=tolerance)


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("gemma2", ["blk.*", "token_embd.weight"]),  # logits with caps, windows, an output that is the embeddings, too
        ("mamba", ["blk.*"]),  # a recurrent state
        pytest.param("qwen3moe", ["blk.*"], marks=pytest.mark.long),  # experts
        pytest.param("gpt-oss", ["*attn_*"], marks=pytest.mark.long),  # sinks
        pytest.param("bloom", ["blk.*"], marks=pytest.mark.long),  # ALiBi; one matrix for queries, keys and values
        pytest.param("deepseek2", ["blk.*"], marks=pytest.mark.long),  # values that are a part of the keys
    ],
)
def test_an_adapter_in_training_and_at_run_time_has_the_same_logits(
    name: str, targets: list[str], tmp_path: Path
) -> None:
    with ggplug_models.load(model_file(name), ["CPU"], pack=False) as model:
        texts = texts_of(model.n_vocab)
        dataset = Texts(texts, 40)
        with LoraTraining(model, 2, 2.0, targets, opt.AdamW(1e-2), seed=1) as training:
            losses = [training.step(dataset.data, dataset.labels) for _ in range(3)]
            trained = training.predict(dataset.data).reshape(len(texts), 40, -1)
            file = training.write(tmp_path / "adapter.gguf")
        assert losses[0] == pytest.approx(loss_of(model, texts), rel=1e-5)
        assert losses[0] > losses[1] > losses[2]
        plain = model.logits(texts[0].ids[:-1])
        with model.adapt(file):
            logits = model.logits(texts[0].ids[:-1])
    assert error(trained[0, : len(logits)], logits) < 1e-10
    assert error(plain, logits) > 1e-4


@pytest.mark.parametrize("kind", ["F16", "BF16", "F32"])
def test_a_model_of_trained_weights_has_the_logits_of_the_training(kind: str, data: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "source.gguf", tmp_path / "trained.gguf"
    quantize_file(data / "qwen3.gguf", source, kind, allow_requantize=True)
    with ggplug_models.load(source, ["CPU"], pack=False) as model:
        texts = texts_of(model.n_vocab)
        dataset = Texts(texts, 40)
        with WeightTraining(model, optimiser=opt.AdamW(1e-3)) as training:
            assert training.step(dataset.data, dataset.labels) == pytest.approx(loss_of(model, texts), rel=1e-4)
            trained = training.predict(dataset.data)[: len(texts[0].ids) - 1]
            training.write(out)
            with pytest.raises(ParameterError, match="source"):
                training.write(source)
    with GGUFReader(source) as before, GGUFReader(out) as after:
        assert {n: (t.type, t.ne) for n, t in before.tensors.items()} == {
            n: (t.type, t.ne) for n, t in after.tensors.items()
        }
        assert all((before.data(before.tensors[n]) != after.data(t)).any() for n, t in after.tensors.items())
        assert before.metadata.keys() == after.metadata.keys()
    with ggplug_models.load(out, ["CPU"], pack=False) as model:
        assert error(trained, model.logits(texts[0].ids[:-1])) < 1e-8


def test_only_the_chosen_weights_are_trained(f16: Decoder) -> None:
    with WeightTraining(f16, ["*_norm.weight"]) as training:
        assert {name.split(".")[-2] for name in training.parameters} == {
            "attn_norm", "attn_q_norm", "attn_k_norm", "ffn_norm", "output_norm",
        }  # fmt: skip
    with LoraTraining(f16, targets=["blk.1.attn_?.weight"]) as training:
        assert sorted(training.parameters) == [f"blk.1.attn_{x}.weight.lora_{end}" for x in "kqv" for end in "ab"]


@pytest.mark.parametrize(
    ("value", "error", "said"), [(1e6, ModelError, "f16 needs numbers that f16 holds"), (np.nan, TrainingError, "NaN")]
)
def test_weights_that_a_file_cannot_hold_are_not_written(
    f16: Decoder, tmp_path: Path, value: float, error: type[Exception], said: str
) -> None:
    with WeightTraining(f16, ["blk.0.attn_q.weight"]) as training:
        (parameter,) = training.parameters.values()
        parameter.set(np.full(parameter.shape, value, np.float32))
        with pytest.raises(error, match=said):
            training.write(tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_the_file_of_the_model_is_not_overwritten(q4_0: Decoder, f16: Decoder, tmp_path: Path) -> None:
    with LoraTraining(q4_0) as adapter, WeightTraining(f16, ["blk.0.attn_q.weight"]) as weights:
        for training in (adapter, weights):
            (path,) = training.model.paths
            before = path.read_bytes()
            for write in (training.write, training.save):
                with pytest.raises(ParameterError, match="is the same file as"):
                    write(path)
            assert path.read_bytes() == before


def test_an_adapter_is_trained_on_top_of_others(f16: Decoder, tmp_path: Path) -> None:
    texts = texts_of(f16.n_vocab)
    dataset, files = Texts(texts, 40), [tmp_path / "first.gguf", tmp_path / "second.gguf"]
    with LoraTraining(f16, 2, optimiser=opt.AdamW(1e-2)) as training:
        training.step(dataset.data, dataset.labels)
        training.write(files[0])
    with f16.adapt(files[0]), LoraTraining(f16, 2, optimiser=opt.AdamW(1e-2)) as training:
        training.step(dataset.data, dataset.labels)
        loss = training.evaluate(dataset).loss
        training.write(files[1])
    with f16.adapt(files[0]), f16.adapt(files[1]):
        assert loss_of(f16, texts) == pytest.approx(loss, rel=1e-4)


@pytest.mark.long
def test_other_devices_find_the_same_losses(quantised: Path) -> None:
    losses = []
    for devices in (["CPU"], [device_or_skip("OpenCL0"), "CPU"]):
        with ggplug_models.load(quantised, devices, pack=False) as model:
            dataset = Texts(texts_of(model.n_vocab), 40)
            with LoraTraining(model, 2, optimiser=opt.AdamW(1e-2)) as training:
                losses.append([training.step(dataset.data, dataset.labels) for _ in range(4)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-2)
    assert losses[1][-1] < 0.9 * losses[1][0]


# -- from texts to a file --------------------------------------------------------------------------


def test_finetuning_learns_the_texts_and_evaluates_those_held_out(q4_0: Decoder, tmp_path: Path) -> None:
    texts = [learned_text(q4_0.tokenizer, f"one {n} two {n} three {n}") for n in range(8)]
    out, begun = tmp_path / "adapter.gguf", []
    found = finetune(q4_0, texts, out, epochs=6, batch=3, learning_rate=1e-2, held_out=0.25, begun=begun.append)
    assert begun == [found.before]
    assert [each.number for each in found.epochs] == [1, 2, 3, 4, 5, 6]
    before, last = found.before, found.epochs[-1]
    assert before is not None
    assert last.validation_loss is not None
    assert last.loss < 0.5 * found.epochs[0].loss
    assert last.validation_loss < 0.8 * before
    plain = loss_of(q4_0, texts)
    with q4_0.adapt(out):
        assert loss_of(q4_0, texts) < 0.5 * plain


def test_a_training_that_is_continued_is_the_same_bit_for_bit(q4_0: Decoder, tmp_path: Path) -> None:
    texts = [learned_text(q4_0.tokenizer, "abc " * n) for n in range(3, 9)]
    how: dict[str, Any] = {"epochs": 3, "batch": 2, "rank": 2, "seed": 4}
    whole = finetune(q4_0, texts, tmp_path / "whole.gguf", **how)
    kept = tmp_path / "checkpoint.gguf"

    def end(training: opt.Training, epoch: opt.Epoch) -> bool:
        return epoch.number == 2

    finetune(q4_0, texts, tmp_path / "part.gguf", checkpoint=kept, callbacks=[end], **how)
    rest = finetune(q4_0, texts, tmp_path / "rest.gguf", checkpoint=kept, **how)
    assert rest.before is None
    assert [each[:3] for each in rest.epochs] == [each[:3] for each in whole.epochs]
    assert (tmp_path / "rest.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    assert (tmp_path / "part.gguf").read_bytes() != (tmp_path / "whole.gguf").read_bytes()


def test_long_texts_are_read_in_pieces_and_chats_are_cut(q4_0: Decoder) -> None:
    whole = Learned(list(range(10)), [True] * 10)
    pieces = list(whole.pieces(4))
    assert [list(each.ids) for each in pieces] == [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8], [8, 9]]
    assert sum(map(len, pieces)) == len(whole) == 9
    assert list(whole.cut(4).ids) == [0, 1, 2, 3, 4]


def test_what_lies_after_the_context_is_counted(q4_0: Decoder, tmp_path: Path) -> None:
    chat = Learned(list(range(40)), [False] * 10 + [True] * 30)
    found = finetune(q4_0, [chat], tmp_path / "out.gguf", n_ctx=20, held_out=0)
    assert (found.before, found.cut) == (None, 19)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"targets": ["blk.9.*"]}, r"no weight of the model that an adapter can change matches 'blk\.9\.\*'"),
        ({"full": True}, "the weight .* has the type q._0; whole weights are trained in f32"),
        ({"full": True, "targets": ["x"]}, "no weight of the model that can be trained matches 'x'"),
        ({"rank": 0}, "rank must be"),
        ({"alpha": 0.0}, "alpha must be"),
        ({"n_ctx": 4096}, "n_ctx must be"),
        ({"held_out": 1.5}, "held_out must be"),
        ({"held_out": 1.0}, "all 2 texts would be held out"),
        ({"epochs": 0}, "epochs must be"),
        ({"batch": 0}, "batch must be"),
        ({"learning_rate": float("nan")}, "learning_rate must be"),
    ],
)
def test_what_cannot_be_trained_is_refused(how: dict[str, Any], said: str, q4_0: Decoder, tmp_path: Path) -> None:
    texts = [Learned([1, 2, 3], [True] * 3)] * 2
    with pytest.raises(ParameterError, match=said):
        finetune(q4_0, texts, tmp_path / "out.gguf", **how)
    assert not (tmp_path / "out.gguf").exists()


def test_models_that_read_a_source_text_are_refused(tmp_path: Path) -> None:
    with ggplug_models.load(ORACLES / "t5.gguf", ["CPU"]) as model:
        assert isinstance(model, Decoder)
        with pytest.raises(ParameterError, match="t5 models read a source text"):
            finetune(model, [Learned([1, 2, 3], [True] * 3)] * 2, tmp_path / "out.gguf")


def test_texts_without_anything_to_learn_are_refused(q4_0: Decoder, quantised: Path, tmp_path: Path) -> None:
    for texts in ([], [Learned([1, 2, 3], [False] * 3)], [Learned([1], [True])]):
        with pytest.raises(ParameterError, match="no token to learn within 512 tokens"):
            finetune(q4_0, texts, tmp_path / "out.gguf")
    with pytest.raises(ParameterError, match=r"q4_0\.gguf"):
        finetune(q4_0, [Learned([1, 2], [True] * 2)], quantised)


def test_tokens_outside_of_the_vocabulary_and_texts_that_say_nothing_of_a_token_are_refused(
    q4_0: Decoder, tmp_path: Path
) -> None:
    for wrong in (-1, q4_0.n_vocab):
        with pytest.raises(ParameterError, match=rf"piece 1\[2\] is {wrong}; the token ids of the vocabulary are"):
            finetune(q4_0, [Learned([1, 2, each], [True] * 3) for each in (3, wrong)], tmp_path / "out.gguf")
    for count in (2, 4):
        with pytest.raises(ParameterError, match=rf"of 3 tokens must say .* not of {count}"):
            Learned([1, 2, 3], [True] * count)


def test_a_file_that_is_no_checkpoint_of_this_training_is_refused(
    q4_0: Decoder, quantised: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, out = [Learned([1, 2, 3], [True] * 3)], tmp_path / "out.gguf"
    with pytest.raises(ModelError, match="is no checkpoint of a training"):
        finetune(q4_0, texts, out, checkpoint=quantised)
    (tmp_path / "text").write_text("text")
    with pytest.raises(GGUFError):
        finetune(q4_0, texts, out, checkpoint=tmp_path / "text")
    kept = tmp_path / "checkpoint.gguf"
    finetune(q4_0, texts, out, rank=2, checkpoint=kept)
    with pytest.raises(ModelError, match="of the shape"):
        finetune(q4_0, texts, out, rank=3, checkpoint=kept)
    with pytest.raises(ModelError, match=r"another training: .* alpha 16\.0', not .* alpha 160\.0'"):
        finetune(q4_0, texts, out, rank=2, alpha=160, checkpoint=kept)
    with pytest.raises(ModelError, match="is no parameter of this training"):
        finetune(q4_0, texts, out, rank=2, targets=["blk.0.attn_q.weight"], checkpoint=kept)
    with monkeypatch.context() as patching:
        patching.setattr(q4_0, "digest", "that of other weights")
        with pytest.raises(ModelError, match="is a checkpoint of another training"):
            finetune(q4_0, texts, out, rank=2, checkpoint=kept)


def test_a_loss_that_is_no_longer_finite_ends_the_training_without_a_file(q4_0: Decoder, tmp_path: Path) -> None:
    texts, kept = [Learned([1, 2, 3], [True] * 3)] * 4, tmp_path / "checkpoint.gguf"
    with pytest.raises(TrainingError, match="the loss is nan"):
        finetune(q4_0, texts, tmp_path / "out.gguf", learning_rate=1e30, epochs=9, checkpoint=kept)
    assert not (tmp_path / "out.gguf").exists()
