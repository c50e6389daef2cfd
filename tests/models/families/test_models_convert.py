"""Converting folders: odd configurations are refused by name, and odd files are neither waited for nor replaced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles.formula import save

import ggplug_models
from ggplug import quants, types
from ggplug.cli.streams import Ending, ended_by_signals
from ggplug.errors import FileKindError, ModelError, ParameterError
from ggplug.gguf import GGUFReader
from ggplug.system.files import replacing
from ggplug_models.converting.convert import FILE_TYPES

CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 32,
    "layer_norm_eps": 1e-12,
    "vocab_size": 6,
    "type_vocab_size": 2,
}
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "hello", "##s"]
TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "truncation": {"max_length": 16, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
    "padding": None,
    "added_tokens": [
        {
            "id": n,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for n, token in enumerate(TOKENS[:4])
    ],
    "normalizer": {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    },
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            "[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
            "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]},
        },
    },
    "decoder": None,
    "model": {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {token: n for n, token in enumerate(TOKENS)},
    },
}


def weights() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(5)
    n, ff = 64, 96
    layer = "encoder.layer.0"
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (6, n),
        "embeddings.token_type_embeddings.weight": (2, n),
        "embeddings.position_embeddings.weight": (32, n),
        "embeddings.LayerNorm.weight": (n,),
        "embeddings.LayerNorm.bias": (n,),
        f"{layer}.intermediate.dense.weight": (ff, n),
        f"{layer}.intermediate.dense.bias": (ff,),
        f"{layer}.output.dense.weight": (n, ff),
        f"{layer}.output.dense.bias": (n,),
        "pooler.dense.weight": (n, n),
    }
    for part in ("self.query", "self.key", "self.value", "output.dense"):
        shapes[f"{layer}.attention.{part}.weight"] = (n, n)
        shapes[f"{layer}.attention.{part}.bias"] = (n,)
    for part in ("attention.output", "output"):
        shapes[f"{layer}.{part}.LayerNorm.weight"] = shapes[f"{layer}.{part}.LayerNorm.bias"] = (n,)
    return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def save_weights(values: dict[str, np.ndarray], path: Path) -> None:
    kinds = {"float64": "F64", "float32": "F32", "int32": "I32"}
    save(path, {name: (kinds[each.dtype.name], each.shape, each.tobytes()) for name, each in values.items()})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The smallest encoder as Hugging Face keeps it."""
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    (made / "tokenizer.json").write_text(json.dumps(TOKENIZER), "utf-8")
    save_weights(weights(), made / "model.safetensors")
    return made


def left(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_small_folder_becomes_a_model(folder: Path, tmp_path: Path) -> None:
    path = ggplug_models.convert(folder, tmp_path / "out.gguf")
    with ggplug_models.load(path, ["CPU"]) as model:
        assert model.tokenizer.encode(["Hellos hello"]) == [[2, 4, 5, 4, 3]]
        assert model.embed(["hello"]).shape == (1, 64)


def test_the_type_of_matrices_is_a_type_or_its_name(folder: Path, tmp_path: Path) -> None:
    for kind in (types.Q8_0, "q8_0", "Q8_0"):
        with GGUFReader(ggplug_models.convert(folder, tmp_path / "out.gguf", kind)) as reader:
            assert reader.tensors["blk.0.attn_q.weight"].type is types.Q8_0
    for kind in (types.Q8_1, "q9_9", 8, None):
        with pytest.raises(ParameterError, match="type must be one of F32"):
            ggplug_models.convert(folder, tmp_path / "out.gguf", kind)


# -- odd configurations ----------------------------------------------------------------------------

ODD: list[Any] = [None, "seven", "", -1, 0, 0.5, 2**40, True, [], [1], {}, {"a": 1}, "NaN", "Infinity"]
CHANGED = {
    "config.json": [
        "model_type",
        "hidden_act",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
        "layer_norm_eps",
    ],
    "tokenizer.json": ["model", "model.vocab", "model.vocab.hello", "truncation.max_length", "added_tokens"],
}
FINE = {
    ("layer_norm_eps", "0"),
    ("layer_norm_eps", "0.5"),
    ("layer_norm_eps", "1099511627776"),
    ("added_tokens", "null"),
    ("added_tokens", "[]"),
    ("model.vocab.hello", "0"),
    ("model.vocab", "{}"),
    ("model.vocab", '{"a": 1}'),
}
"""Of the odd values those that make sense."""


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, keys in CHANGED.items() for key in keys])
def test_odd_values_are_errors_that_name_file_and_key(folder: Path, tmp_path: Path, name: str, key: str) -> None:
    original = {"config.json": CONFIG, "tokenizer.json": TOKENIZER}[name]
    *outer, last = key.split(".")
    for value in ODD:
        changed = json.loads(json.dumps(original))
        inner = changed
        for each in outer:
            inner = inner[each]
        inner[last] = value
        text = json.dumps(changed).replace('"NaN"', "NaN").replace('"Infinity"', "Infinity")
        (folder / name).write_text(text, "utf-8")
        if (key, json.dumps(value)) in FINE:
            continue
        with pytest.raises(ModelError, match=f"{name}.*{last}"):
            ggplug_models.convert(folder, tmp_path / "out.gguf")
        assert left(tmp_path) == ["model"]


OBJECTS = ["config.json", "tokenizer.json", "1_Pooling/config.json", "sentence_bert_config.json"]

CONTENTS = {
    "empty": b"",
    "a list": b"[]",
    "not JSON": b"{",
    "not UTF-8": b'{"a": "\xff"}',
    "deep": b"[" * 200_000,
    "deep objects": b'{"a":' * 200_000,
    "a number": b"1" * 10_000,
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("name", OBJECTS)
def test_what_is_no_object_is_refused_with_its_file(folder: Path, tmp_path: Path, name: str, content: bytes) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    with pytest.raises(ModelError, match=name):
        ggplug_models.convert(folder, tmp_path / "out.gguf")
    assert left(tmp_path) == ["model"]


def test_odd_weights_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    path = folder / "model.safetensors"
    for change, message in (
        ({"embeddings.LayerNorm.bias": np.float32(1.0)[()]}, "embeddings.LayerNorm.bias"),
        ({"embeddings.LayerNorm.bias": np.ones(64, np.int32)}, "embeddings.LayerNorm.bias"),
        ({"odd.weight": np.ones(64, np.float32)}, "odd.weight"),
        ({"embeddings.word_embeddings.weight": np.ones((3, 64), np.float32)}, "must be an integer from 0 to 2, got 3"),
        ({"embeddings.word_embeddings.weight": None}, "no token embeddings"),
    ):
        changed = {**weights(), **change}
        save_weights({name: np.asarray(value) for name, value in changed.items() if value is not None}, path)
        with pytest.raises(ModelError, match=message):
            ggplug_models.convert(folder, tmp_path / "out.gguf")
    for content in (b"", b"\xff" * 100, (2**63).to_bytes(8, "little") + b"{}", path.read_bytes()[:-100]):
        path.write_bytes(content)
        with pytest.raises(ModelError, match=r"model\.safetensors"):
            ggplug_models.convert(folder, tmp_path / "out.gguf")
    assert left(tmp_path) == ["model"]


# -- odd files -------------------------------------------------------------------------------------

unix = pytest.mark.skipif(sys.platform == "win32", reason="this system has no FIFOs, and links need a privilege")


@unix
@pytest.mark.parametrize("name", [*OBJECTS, "model.safetensors"])
def test_what_is_no_regular_file_is_not_read(folder: Path, tmp_path: Path, name: str) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    makers: dict[str, Callable[[], None]] = {
        "a FIFO": lambda: os.mkfifo(path),
        "a device": lambda: os.symlink("/dev/zero", path),
        "a folder": path.mkdir,
    }
    for kind, make in makers.items():
        path.unlink(missing_ok=True)
        make()
        with pytest.raises(ModelError, match=f"{name} is no regular file but {kind}"):
            ggplug_models.convert(folder, tmp_path / "out.gguf")
    assert left(tmp_path) == ["model"]


@unix
def test_the_target_is_written_through_links_and_never_replaces_a_device(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    os.mkfifo(out)
    os.symlink("/dev/full", tmp_path / "full")
    for target in (out, tmp_path / "full", Path("/dev/full"), tmp_path):
        with pytest.raises(FileKindError, match="no regular file"):
            ggplug_models.convert(folder, target)
    with pytest.raises(FileNotFoundError):
        ggplug_models.convert(folder, tmp_path / "missing" / "out.gguf")
    out.unlink()
    os.symlink("real.gguf", out)
    ggplug_models.convert(folder, out)
    assert os.readlink(out) == "real.gguf"
    assert left(tmp_path) == ["full", "model", "out.gguf", "real.gguf"]
    GGUFReader(tmp_path / "real.gguf").close()


@unix
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_what_is_read_is_not_replaced(folder: Path, tmp_path: Path, name: str) -> None:
    before = (folder / name).read_bytes()
    os.symlink(folder / name, tmp_path / "link")
    os.link(folder / name, tmp_path / "hard")
    for out in (folder / name, tmp_path / "link", tmp_path / "hard"):
        with pytest.raises(ParameterError, match="which would be overwritten"):
            ggplug_models.convert(folder, out)
    assert (folder / name).read_bytes() == before


def test_an_interruption_leaves_what_was_there(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"old")

    def interrupt(done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ggplug_models.convert(folder, out, progress=interrupt)
    assert left(tmp_path) == ["model", "out.gguf"]
    assert out.read_bytes() == b"old"


@unix
@pytest.mark.parametrize("number", [signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)])
def test_a_signal_to_end_leaves_no_half_of_a_file(tmp_path: Path, number: int) -> None:
    before = signal.getsignal(number)
    signal.signal(number, signal.SIG_DFL)

    def write() -> None:
        with ended_by_signals(), replacing(tmp_path / "new") as file:
            file.write(b"half")
            signal.raise_signal(number)

    try:
        with pytest.raises(Ending) as ending:
            write()
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert ending.value.code == 128 + number
    assert left(tmp_path) == []


@unix
def test_the_command_says_in_one_line_what_is_wrong_with_the_target(folder: Path, tmp_path: Path) -> None:
    script = 'ulimit -f 16; "$0" -P -m ggplug convert "$1" "$2" --type F32 >&-'
    for out, reason in (
        (tmp_path / "out.gguf", f"{tmp_path / 'out.gguf'}: File too large"),
        (Path("/dev/full"), "/dev/full is no regular file but a device"),
        (
            folder / "config.json",
            f"{folder / 'config.json'} is the same file as {folder / 'config.json'}, which would be overwritten",
        ),
    ):
        command = ["bash", "-c", script, sys.executable, str(folder), str(out)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (1, "")
        first, *more = done.stderr.splitlines()
        assert first == f"error: {reason}"
        assert all(line.startswith("  -> ") for line in more)
    assert left(tmp_path) == ["model"]


def test_the_file_types_are_those_that_can_be_encoded_with_the_numbers_of_llama_cpp() -> None:
    from gguf import LlamaFileType

    theirs = {member.name: int(member) for member in LlamaFileType} | {"MOSTLY_Q2_0": 41}  # newer than the package
    for name, number in FILE_TYPES.items():
        spellings = (f"ALL_{name}", f"MOSTLY_{name}", f"MOSTLY_{name}_S", f"MOSTLY_{name}_MOE")
        assert number in {theirs[each] for each in spellings if each in theirs}, name
    encoded = {kind.name.upper() for kind in quants.block_types() if quants.can_quantize(kind)}
    # llama.cpp has no files of these
    assert encoded - {"Q8_1", "Q8_K"} | {"F32", "F16", "BF16"} == set(FILE_TYPES)


# -- weights that types do not hold --------------------------------------------------------------------

QUERIES = "encoder.layer.0.attention.self.query.weight"


def with_weight(folder: Path, name: str, index: tuple[int, ...], value: float) -> Path:
    """The folder with one weight changed, in double precision where no float32 holds it."""
    changed = weights()
    if np.isfinite(value) and abs(value) > float(np.finfo(np.float32).max):
        changed[name] = changed[name].astype(np.float64)
    changed[name][index] = value
    save_weights(changed, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q5_1", "IQ4_NL", "MXFP4", "Q4_K_M"])
def test_a_weight_that_is_no_number_is_named_and_not_quantised(
    folder: Path, tmp_path: Path, kind: str, value: float
) -> None:
    with pytest.raises(ModelError, match=f"{QUERIES}' has (-?inf|nan) at .7, 33., expected finite") as refused:
        ggplug_models.convert(with_weight(folder, QUERIES, (7, 33), value), tmp_path / "out.gguf", kind)
    assert refused.value.tensor == QUERIES
    assert refused.value.index == (7, 33)  # type: ignore[attr-defined]
    assert str(folder / "model.safetensors") in str(refused.value)
    assert left(tmp_path) == ["model"]


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_types_that_have_such_values_keep_them(folder: Path, tmp_path: Path, kind: str, value: float) -> None:
    path = ggplug_models.convert(with_weight(folder, QUERIES, (7, 33), value), tmp_path / "out.gguf", kind)
    with GGUFReader(path) as reader:
        info = reader.tensors["blk.0.attn_q.weight"]
        found = quants.dequantize(reader.data(info), info.type).reshape(64, 64)
    np.testing.assert_array_equal(found[7, 33], value)
    assert np.isfinite(found).sum() == found.size - 1


@pytest.mark.parametrize(
    ("kind", "value", "holds"),
    [
        ("F16", 65504.0, True),
        ("F16", 65519.0, True),
        ("F16", 65520.0, False),
        ("F16", -1e38, False),
        ("BF16", 3e38, True),
        ("BF16", 3.4e38, False),
        ("F32", 3.4e38, True),
        ("Q8_0", 8.3e6, True),
        ("Q8_0", 8.4e6, False),
        ("Q4_0", -5.2e5, True),
        ("Q4_0", -5.3e5, False),
        ("Q4_1", 1e8, False),
        ("MXFP4", 1e30, True),
        ("F32", 1e39, False),
        ("Q8_0", -1e300, False),
    ],
)
def test_a_weight_that_is_too_large_for_a_type_is_named(
    folder: Path, tmp_path: Path, kind: str, value: float, holds: bool
) -> None:
    changed = with_weight(folder, QUERIES, (7, 33), value)
    if holds:
        with GGUFReader(ggplug_models.convert(changed, tmp_path / "out.gguf", kind)) as reader:
            info = reader.tensors["blk.0.attn_q.weight"]
            assert np.isfinite(quants.dequantize(reader.data(info), info.type)).all()
        return
    with pytest.raises(ModelError, match=rf"{QUERIES}' has .* at .7, 33., expected numbers that {kind} holds"):
        ggplug_models.convert(changed, tmp_path / "out.gguf", kind)
    assert left(tmp_path) == ["model"]
