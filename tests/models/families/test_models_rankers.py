"""Rerankers: scores of texts for a query, and the ways in which vectors of tokens are pooled."""

from __future__ import annotations

import json
import re
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from installed import device_or_skip
from oracles.formula import save
from oracles.packed import ORACLES, RANKERS
from paths import DATA

import ggplug_models
from ggplug.cli.app import app
from ggplug.errors import ContextFullError, FreedError, ModelError, ParameterError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug_models.embedding.pooling import Pooling
from ggplug_models.goldens import replay
from ggplug_models.tokenizers.encoders import TextTooLongError
from ggplug_models.tokenizers.long_text import LongText

NAMES = sorted(path.stem for path in RANKERS.glob("*-reranker.gguf"))
ENCODERS = [ORACLES / f"{name}.gguf" for name in ("nomic-bert", "jina-bert-v2", "modern-bert")]
DEVICES = [["CPU"], ["OpenCL0", "CPU"]]
PROMPT = "<Instruct>: fit\n{query}\n{document}\nfit?"
TEXTS = ["the cat", "a dog in the garden", "rain", "on and on and on"]


def recorded(path: Path) -> dict[str, Any]:
    with np.load(path.with_suffix(".npz")) as arrays:
        return dict(arrays)


@pytest.fixture(params=NAMES)
def ranker(request: pytest.FixtureRequest) -> Iterator[Any]:
    with ggplug_models.load(RANKERS / f"{request.param}.gguf", ["CPU"]) as loaded:
        yield loaded


def changed(source: Path, path: Path, keys: dict[str, Any], without: tuple[str, ...] = ()) -> Path:
    """The file with other values of keys, and without the tensors whose names begin so."""
    with GGUFReader(source) as reader, GGUFWriter(path) as writer:
        writer.add_metadata_of(reader, without=keys)
        for key, value in keys.items():
            if value is not None:
                writer.add(key, value)
        for name, info in reader.tensors.items():
            if not without or not name.startswith(without):
                writer.add_tensor(name, reader.data(name), info.type, info.ne)
    return path


# -- what others compute ---------------------------------------------------------------------------


@pytest.mark.parametrize("devices", DEVICES, ids=lambda names: names[0])
@pytest.mark.parametrize("name", NAMES)
def test_scores_are_those_of_transformers(name: str, devices: list[str]) -> None:
    device_or_skip(devices[0])
    golden = recorded(RANKERS / f"{name}.gguf")
    with ggplug_models.load(RANKERS / f"{name}.gguf", devices) as model:
        found = model.ranker.scores([golden[f"tokens_{i}"].tolist() for i in range(3)])
    np.testing.assert_allclose(found, [golden[f"score_f32_{i}"] for i in range(3)], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_vectors_and_logits_of_rerankers_are_those_of_transformers(name: str) -> None:
    report = replay(RANKERS / f"{name}.gguf", ["CPU"])
    assert report["nmse"] < 1e-10
    assert report["error"] is None or name == "modern-reranker"  # whose recorded vector is the mean, as it reads it


@pytest.mark.parametrize("devices", DEVICES, ids=lambda names: names[0])
@pytest.mark.parametrize("path", ENCODERS, ids=lambda path: path.stem)
def test_vectors_are_pooled_in_each_way(path: Path, devices: list[str]) -> None:
    device_or_skip(devices[0])
    golden = recorded(path)
    ways = {
        Pooling.MEAN: lambda rows: rows.mean(axis=0),
        Pooling.CLS: lambda rows: rows[0],
        Pooling.LAST: lambda rows: rows[-1],
    }
    with ggplug_models.load(path, devices) as model:
        for model.pooling, pooled in ways.items():
            ids = [golden[f"tokens_{i}"].tolist() for i in range(3)]
            wanted = [pooled(golden[f"embd_f32_{i}"]) for i in range(3)]
            np.testing.assert_allclose(model.embed_ids(ids, normalize=False), wanted, atol=1e-3)
        np.testing.assert_allclose(model.hidden_states(ids[1]), golden["embd_f32_1"], atol=1e-3)


def test_a_language_model_pools_as_its_attribute_says(data: Path) -> None:
    with ggplug_models.load(data / "qwen3.gguf", ["CPU"]) as model:
        rows = model.hidden_states([1, 2, 3, 4])
        for model.pooling, wanted in (
            (Pooling.MEAN, rows.mean(axis=0)),
            (Pooling.CLS, rows[0]),
            (Pooling.LAST, rows[-1]),
        ):
            np.testing.assert_allclose(
                model.embed_ids([[1, 2, 3, 4]], normalize=False)[0], wanted, rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize("devices", DEVICES, ids=lambda names: names[0])
def test_all_results_of_a_classifier_are_those_of_transformers(devices: list[str]) -> None:
    device_or_skip(devices[0])
    golden = recorded(RANKERS / "roberta-classifier.gguf")
    with ggplug_models.load(RANKERS / "roberta-classifier.gguf", devices) as model:
        assert model.labels == ("joy", "fear", "anger")
        found = model.ranker.outputs([golden[f"tokens_{i}"].tolist() for i in range(3)])
        np.testing.assert_allclose(found, [golden[f"score_f32_{i}"] for i in range(3)], rtol=0, atol=1e-5)
        texts = ["the cat", "rain"]
        ids = model.tokenizer.encode(texts)
        np.testing.assert_array_equal(model.classify(texts), model.ranker.outputs(ids))
        assert model.classify([]).shape == (0, 3)


# -- texts -----------------------------------------------------------------------------------------


def test_the_score_of_a_text_does_not_depend_on_the_others(ranker: Any) -> None:
    together = ranker.rank("the cat", TEXTS)
    assert together.dtype == np.float32
    alone = [ranker.rank("the cat", [text])[0] for text in TEXTS]
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(together, ranker.rank("the cat", TEXTS, batch=1), rtol=1e-4, atol=1e-5)
    assert len(set(np.round(together, 4).tolist())) == len(TEXTS)
    assert ranker.rank("the cat", []).shape == (0,)


def test_progress_counts_the_texts(ranker: Any) -> None:
    counts: list[int] = []
    ranker.rank("the cat", TEXTS, batch=3, progress=counts.append)
    assert sum(counts) == len(TEXTS)


def test_an_encoder_reads_the_query_and_the_text_between_its_special_tokens() -> None:
    with ggplug_models.load(RANKERS / "bge-reranker.gguf", ["CPU"]) as model:
        plain = model.tokenizer.plain
        assert model.pair("the cat", "rain") == [2, *plain("the cat"), 3, *plain("rain"), 3]
        with pytest.raises(ParameterError, match="no prompt that could say it"):
            model.rank("the cat", TEXTS, instruction="fit")


@pytest.mark.parametrize(("separator", "between"), [("[SEP]", 1), ("</s>", 2)])
def test_the_texts_are_separated_as_the_separator_s_family_does(tmp_path: Path, separator: str, between: int) -> None:
    with GGUFReader(RANKERS / "modern-reranker.gguf") as reader:
        tokens = list(reader.metadata["tokenizer.ggml.tokens"])  # type: ignore[call-overload]
    eos = tokens.index("<eos>")
    tokens[eos] = separator
    keys = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.seperator_token_id": eos,
        "tokenizer.ggml.add_eos_token": True,
    }
    with ggplug_models.load(changed(RANKERS / "modern-reranker.gguf", tmp_path / "a.gguf", keys), ["CPU"]) as model:
        plain = model.tokenizer.plain
        assert model.pair("the", "rain")[1:] == [*plain("the"), *[eos] * between, *plain("rain"), eos]


def test_texts_that_are_too_long_together_are_counted_and_refused_in_little_memory() -> None:
    with ggplug_models.load(RANKERS / "bge-reranker.gguf", ["CPU"]) as model:
        tracemalloc.start()
        try:
            with pytest.raises(TextTooLongError) as caught:
                model.pair("cat " * 3000, "rain " * 3000)
            assert tracemalloc.get_traced_memory()[1] < 20_000_000
        finally:
            tracemalloc.stop()
        plain = 3000 * len(model.tokenizer.plain("cat")) + 3000 * len(model.tokenizer.plain("rain"))
        assert (caught.value.got, caught.value.wanted) == (plain + 3, model.n_ctx)


def test_lone_surrogates_are_read_as_in_other_texts() -> None:
    with ggplug_models.load(RANKERS / "bge-reranker.gguf", ["CPU"]) as model:
        assert model.pair("\ud800", "a \udcff") == model.pair("?", "a ?")


def test_a_language_model_reads_the_prompt_of_its_file() -> None:
    with ggplug_models.load(RANKERS / "qwen3-reranker.gguf", ["CPU"]) as model:

        def ids(text: str) -> list[int]:
            return model.tokenizer.encode(text, parse_special=True)

        assert model.metadata["tokenizer.chat_template.rerank"] == PROMPT
        assert model.pair("a {document}", "the rain") == ids("<Instruct>: fit\na {document}\nthe rain\nfit?")
        assert model.pair("a", "b", "be \\1 short") == ids("<Instruct>: be \\1 short\na\nb\nfit?")
        assert model.pair("a {instruction}", "b", "{query} {document}") == ids(
            "<Instruct>: {query} {document}\na {instruction}\nb\nfit?"
        )
        assert model.rank("a", ["the rain"])[0] != model.rank("a", ["the rain"], instruction="be short")[0]
        assert 0 < model.rank("a", ["the rain"])[0] < 1


# -- what is refused -------------------------------------------------------------------------------


def test_a_model_without_a_classifier_is_no_reranker(data: Path, tmp_path: Path) -> None:
    paths = [data / "qwen3.gguf", data / "bert.gguf"]
    paths.append(changed(RANKERS / "bge-reranker.gguf", tmp_path / "a.gguf", {}, without=("cls",)))
    for path in paths:
        with ggplug_models.load(path, ["CPU"]) as model:
            assert not model.ranks
            with pytest.raises(ParameterError, match=r"its file has no classifier .cls\.\*., so it is no reranker"):
                model.rank("a", ["b"])


def test_arguments_of_rank_are_checked(ranker: Any) -> None:
    for arguments, message in (
        ((1, TEXTS), "query must be a string, got 1"),
        (("a", "text"), "rank takes a sequence of texts, got one string"),
        (("a", [1]), r"texts\[0\] must be a string, got int"),
        (("a", iter(TEXTS)), "texts must be a sequence"),
    ):
        with pytest.raises(ParameterError, match=message):
            ranker.rank(*arguments)
    with pytest.raises(
        ContextFullError, match=r"query and texts\[1\] have \d+ tokens together; .* at most 64"
    ) as caught:
        ranker.rank("a", ["b", "the rain on and on " * 40])
    assert caught.value.position == 1
    ranker.free()
    with pytest.raises(FreedError):
        ranker.rank("a", TEXTS)


def test_a_classifier_with_wrong_weights_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    with GGUFReader(RANKERS / "bge-reranker.gguf") as reader, GGUFWriter(path) as writer:
        writer.add_metadata_of(reader)
        for name, info in reader.tensors.items():
            values = reader.array(name)[:16] if name == "cls.output.weight" else reader.array(name)
            writer.add_tensor(name, np.ascontiguousarray(values), info.type)
    with ggplug_models.load(path, ["CPU"]) as model, pytest.raises(ModelError, match=r"cls\.output\.weight"):
        model.rank("a", TEXTS)


def test_other_kinds_of_pooling_of_a_classifier_are_refused(tmp_path: Path) -> None:
    path = changed(RANKERS / "bge-reranker.gguf", tmp_path / "a.gguf", {"bert.classifier.pooling_type": 3})
    with pytest.raises(ModelError, match=r"bert\.classifier\.pooling_type .*1 .mean. or 2 .first token."):
        ggplug_models.load(path, ["CPU"])


def test_an_encoder_that_does_not_pool_has_vectors_of_tokens_only(data: Path, tmp_path: Path) -> None:
    path = changed(data / "bert.gguf", tmp_path / "a.gguf", {"bert.pooling_type": 0})
    with ggplug_models.load(path, ["CPU"]) as model:
        with pytest.raises(ParameterError, match=r"are not pooled .pooling_type 0. .set model\.pooling"):
            model.embed_ids([[1, 2, 3]])
        rows = model.hidden_states([1, 2, 3])
        model.pooling = Pooling.MEAN
        np.testing.assert_allclose(model.embed_ids([[1, 2, 3]], normalize=False)[0], rows.mean(axis=0), atol=1e-5)


# -- prompts and lengths of vectors ----------------------------------------------------------------


@pytest.fixture
def prompted(tmp_path: Path) -> Path:
    """An encoder whose file has prompts, and lengths to which its vectors may be cut."""
    keys = {
        "nomic-bert.embedding.prompt.query": "ask ",
        "nomic-bert.embedding.prompt.document": "",
        "nomic-bert.embedding.dimensions": [16, 8],
    }
    return changed(ORACLES / "nomic-bert.gguf", tmp_path / "a.gguf", keys)


def test_a_prompt_is_put_before_each_text(prompted: Path) -> None:
    with ggplug_models.load(prompted, ["CPU"]) as model:
        assert model.prompts == {"query": "ask ", "document": ""}
        np.testing.assert_array_equal(model.embed(["me"], prompt="query"), model.embed(["ask me"]))
        long = LongText(lambda: ["m", "e"])
        np.testing.assert_array_equal(model.embed([long], prompt="query"), model.embed(["ask me"]))
        np.testing.assert_array_equal(model.embed(["me"], prompt="document"), model.embed(["me"]))
        with pytest.raises(ParameterError, match=r"prompt 'other' is unknown; the model's file has document, query"):
            model.embed(["me"], prompt="other")


def test_vectors_are_cut_to_the_lengths_of_the_file_and_scaled_after_it(prompted: Path) -> None:
    with ggplug_models.load(prompted, ["CPU"]) as model:
        assert model.dimensions == (8, 16)
        whole, cut = model.embed(["me"], normalize=False), model.embed(["me"], dimensions=8)
        np.testing.assert_allclose(cut, whole[:, :8] / np.linalg.norm(whole[:, :8]), rtol=1e-6)
        np.testing.assert_array_equal(model.embed(["me"], dimensions=32), model.embed(["me"]))
        for wrong, message in ((9, "must be one of 8, 16 or 32, got 9"), (0, "from 1 to 32"), (33, "from 1 to 32")):
            with pytest.raises(ParameterError, match=f"dimensions must be .*{message}|dimensions {message}"):
                model.embed(["me"], dimensions=wrong)


def test_wrong_prompts_and_lengths_in_a_file_are_refused(tmp_path: Path) -> None:
    for key, value in (("prompt.query", 7), ("dimensions", [33]), ("dimensions", [0]), ("dimensions", "8")):
        keys = {f"nomic-bert.embedding.{key}": value}
        path = changed(ORACLES / "nomic-bert.gguf", tmp_path / "b.gguf", keys)
        with pytest.raises(ModelError, match=rf"nomic-bert\.embedding\.{key}"):
            ggplug_models.load(path, ["CPU"])


def test_prompts_and_lengths_of_sentence_transformers_are_converted(minilm_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in minilm_folder.iterdir():
        if file.name != "config.json":
            (folder / file.name).symlink_to(file)
    config = json.loads((minilm_folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "matryoshka_dimensions": [64, 128]}))
    about = {"prompts": {"query": "ask: "}, "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").unlink(missing_ok=True)
    (folder / "config_sentence_transformers.json").write_text(json.dumps(about))
    with ggplug_models.load(ggplug_models.convert(folder, tmp_path / "a.gguf", "Q8_0"), ["CPU"]) as model:
        assert (model.prompts, model.dimensions) == ({"query": "ask: "}, (64, 128))


# -- folders -----------------------------------------------------------------------------------------

THEIRS = {
    r"blk\.(\d+)\.attn_qkv": r"model.layers.\1.attn.Wqkv",
    r"blk\.(\d+)\.attn_output": r"model.layers.\1.attn.Wo",
    r"blk\.(\d+)\.attn_norm": r"model.layers.\1.attn_norm",
    r"blk\.(\d+)\.ffn_up": r"model.layers.\1.mlp.Wi",
    r"blk\.(\d+)\.ffn_down": r"model.layers.\1.mlp.Wo",
    r"blk\.(\d+)\.ffn_norm": r"model.layers.\1.mlp_norm",
    "token_embd_norm": "model.embeddings.norm",
    "token_embd": "model.embeddings.tok_embeddings",
    "output_norm": "model.final_norm",
    "cls.output": "classifier",
    "cls.norm": "head.norm",
    "cls": "head.dense",
}
"""Names of tensors in transformers, by their names in files."""


def their_name(name: str) -> str:
    stem, end = name.rsplit(".", 1)
    return f"{next(re.sub(ours, theirs, stem) for ours, theirs in THEIRS.items() if re.fullmatch(ours, stem))}.{end}"


@pytest.fixture
def modern_folder(tmp_path: Path) -> Callable[..., Path]:
    """Makes the folder of the recorded ModernBERT with a classifier.

    ``settings``: other values in config.json.  ``more``: shapes of further tensors.
    """

    def make(settings: dict[str, Any], more: dict[str, tuple[int, ...]]) -> Path:
        folder = tmp_path / "model"
        shutil.copytree(DATA / "folders" / "modern-bert", folder)
        config = json.loads((folder / "config.json").read_text("utf-8"))
        config |= {
            "architectures": ["ModernBertForSequenceClassification"],
            "classifier_pooling": "mean",
            "id2label": {"0": "LABEL_0"},
            **settings,
        }
        (folder / "config.json").write_text(json.dumps(config), "utf-8")
        with GGUFReader(RANKERS / "modern-reranker.gguf") as reader:
            values = {their_name(name): np.array(reader.array(name), np.float32) for name in reader.tensors}
        table = values["model.embeddings.tok_embeddings.weight"]
        values["model.embeddings.tok_embeddings.weight"] = np.pad(
            table, ((0, config["vocab_size"] - len(table)), (0, 0))
        )
        values |= {name: np.ones(shape, np.float32) for name, shape in more.items()}
        save(folder / "model.safetensors", {name: ("F32", each.shape, each.tobytes()) for name, each in values.items()})
        return folder

    return make


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_the_folder_of_a_modern_bert_with_a_classifier_becomes_a_reranker(
    modern_folder: Callable[..., Path], kind: str, tmp_path: Path
) -> None:
    golden = recorded(RANKERS / "modern-reranker.gguf")
    path = ggplug_models.convert(modern_folder({}, {}), tmp_path / "a.gguf", kind)
    with ggplug_models.load(path, ["CPU"]) as model:
        found = model.ranker.scores([golden[f"tokens_{i}"].tolist() for i in range(3)])
        assert model.labels == ("LABEL_0",)
        assert model.rank("the cat", TEXTS).shape == (len(TEXTS),)
    wanted = [golden[f"score_f32_{i}"] for i in range(3)]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 if kind == "F32" else 0.05)


@pytest.mark.parametrize(
    ("settings", "more", "named"),
    [
        ({"classifier_activation": "relu"}, {}, "classifier_activation must be one of gelu, got 'relu'"),
        ({"classifier_pooling": "max"}, {}, "classifier_pooling must be one of mean, cls, got 'max'"),
        ({"id2label": {"0": "a", "2": "b"}}, {}, "id2label: 1 is missing"),
        ({}, {"head.norm.bias": (32,)}, "tensor 'head.norm.bias' is unknown in modern-bert models"),
        ({"architectures": ["ModernBertForTokenClassification"]}, {}, "tensor 'classifier.bias' is unknown"),
    ],
)
def test_a_classifier_that_files_cannot_hold_is_refused(
    modern_folder: Callable[..., Path], settings: dict[str, Any], more: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=named):
        ggplug_models.convert(modern_folder(settings, more), tmp_path / "a.gguf")


# -- the commands ----------------------------------------------------------------------------------


def embedded(*options: str) -> list[Any]:
    done = CliRunner().invoke(app, ["embed", *options, "--device", "CPU"], input="me\nme too\n")
    assert done.exit_code == 0, done.output
    return [json.loads(line)["embedding"] for line in done.stdout.splitlines()]


def test_the_command_embed_has_prompts_lengths_and_kinds_of_pooling(prompted: Path) -> None:
    with ggplug_models.load(prompted, ["CPU"]) as model:
        texts = ["me", "me too"]
        options = ("--prompt", "query", "--dimensions", "8")
        wanted = model.embed(texts, prompt="query", dimensions=8)
        np.testing.assert_allclose(embedded(str(prompted), *options), wanted, rtol=1e-6)
        rows = model.token_vectors(texts)
        for found, each in zip(embedded(str(prompted), "--pooling", "none"), rows, strict=True):
            np.testing.assert_allclose(found, each, rtol=1e-6)
        model.pooling = Pooling.CLS
        np.testing.assert_allclose(embedded(str(prompted), "--pooling", "cls"), model.embed(texts), rtol=1e-6)
    done = CliRunner().invoke(app, ["embed", str(prompted), "--pooling", "rank", "--device", "CPU"], input="me\n")
    assert done.exit_code == 2
    assert "--pooling rank is for rerankers" in done.output


def test_the_command_prints_the_most_relevant_texts_first(ranker: Any) -> None:
    path = str(next(RANKERS.glob(f"{'qwen3' if ranker.architecture == 'qwen3' else 'bge'}-reranker.gguf")))
    with ggplug_models.load(path, ["CPU"]) as model:
        scores = model.rank("the cat", TEXTS)
    order = np.argsort(-scores).tolist()
    done = CliRunner().invoke(app, ["rerank", path, "the cat", "--device", "CPU"], input="\n".join(TEXTS))
    assert done.exit_code == 0, done.output
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert [(int(number), text) for _, number, text in lines] == [(n + 1, TEXTS[n]) for n in order]
    np.testing.assert_allclose([float(score) for score, _, _ in lines], scores[order], rtol=1e-3)
    asked = ["rerank", path, "the cat", "--device", "CPU", "--json", "--top", "2"]
    found = json.loads(CliRunner().invoke(app, asked, input="\n".join(TEXTS)).stdout)
    assert [each["line"] for each in found] == [n + 1 for n in order[:2]]


def test_the_command_needs_a_reranker(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from ggplug.cli.app import run

    assert run(["rerank", str(data / "bert.gguf"), "a"]) == 1
    assert "is a bert model, which has no classifier, so it is no reranker" in capfd.readouterr().err


def test_the_command_ranks_the_other_texts_where_some_are_too_long(capfd: pytest.CaptureFixture[str]) -> None:
    texts = ["the cat", "the rain on and on " * 40, "rain"]
    path = RANKERS / "bge-reranker.gguf"
    with ggplug_models.load(path, ["CPU"]) as model:
        scores = model.rank("the cat", [texts[0], texts[2]])
        with pytest.raises(TextTooLongError) as caught:
            model.pair("the cat", texts[1])
    done = CliRunner().invoke(app, ["rerank", str(path), "the cat", "--device", "CPU"], input="\n".join(texts))
    found = {int(number): float(score) for score, number, _ in (line.split("\t") for line in done.stdout.splitlines())}
    assert found == pytest.approx({1: scores[0], 3: scores[1]}, rel=1e-3)
    assert done.exit_code == 1
    assert isinstance(done.exception, TextTooLongError)
    assert f"1 of 3 texts are not ranked; together with the query line 2 has {caught.value.got} tokens" in str(
        done.exception
    )


def test_of_a_classifier_with_several_labels_one_is_chosen() -> None:
    path = RANKERS / "roberta-classifier.gguf"
    with ggplug_models.load(path, ["CPU"]) as model:
        logits = model.ranker.outputs(model.pairs("the cat", TEXTS))
        for number, label in enumerate(("joy", "fear", "anger")):
            np.testing.assert_allclose(model.rank("the cat", TEXTS, label=label), logits[:, number], rtol=1e-5)
            np.testing.assert_array_equal(
                model.rank("the cat", TEXTS, label=number), model.rank("the cat", TEXTS, label=label)
            )
        for wrong, message in (
            (None, "the classifier has 3 results, none of them for relevance; they are joy, fear, anger"),
            ("hate", "label 'hate' is none of the classifier's; they are joy, fear, anger"),
            (3, "label 3 is none"),
            (-1, "label -1 is none"),
            (True, "label True is none"),
        ):
            with pytest.raises(ParameterError, match=message):
                model.rank("the cat", TEXTS, label=wrong)
    asked = ["rerank", str(path), "the cat", "--device", "CPU"]
    for given in ("fear", "1"):
        done = CliRunner().invoke(app, [*asked, "--label", given], input="\n".join(TEXTS))
        lines = {int(line.split("\t")[1]): float(line.split("\t")[0]) for line in done.stdout.splitlines()}
        assert lines == pytest.approx(dict(enumerate(logits[:, 1].tolist(), 1)), rel=1e-3)
    refused = CliRunner().invoke(app, asked, input="\n".join(TEXTS))
    assert "they are joy, fear, anger" in str(refused.exception)


def test_a_language_model_answers_yes_with_the_score_of_its_label() -> None:
    with ggplug_models.load(RANKERS / "qwen3-reranker.gguf", ["CPU"]) as model:
        yes, no = (model.rank("the cat", TEXTS, label=label) for label in ("yes", "no"))
        np.testing.assert_allclose(yes + no, 1, rtol=1e-5)
        np.testing.assert_array_equal(model.rank("the cat", TEXTS), yes)
