"""Folders of each family become the file that llama.cpp's converter makes of them, recorded in tests/data/folders."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
import tokenizers
from oracles import formula
from paths import DATA

import ggplug_models
from ggplug import quants, types
from ggplug.errors import ModelError, ParameterError
from ggplug.gguf import GGUFReader
from ggplug_models import load_tokenizer
from ggplug_models.converting import rope
from ggplug_models.converting.defaults import completed
from ggplug_models.converting.families import FAMILIES, family_of
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.tokens.splitting import NAMES as SPLITTING
from ggplug_models.metadata.values import Values
from ggplug_models.tokenizers.pre_tokenizers import BEHAVIORS, BY_NAME, PATTERNS, UNNAMED

FOLDERS = DATA / "folders"
NAMES = sorted(path.name for path in FOLDERS.iterdir() if path.is_dir())
OURS = {
    "bert.hidden_activation",
    *("tokenizer.ggml.pre_patterns", "tokenizer.ggml.pre_behaviors"),
    "tokenizer.huggingface.json",
    "tokenizer.ggml.cls_token_id",
    "minicpm3.attention.value_length",
    "mistral4.attention.temperature_scale",
    "exaone.attention.layer_norm_rms_epsilon",
    "qwen.attention.layer_norm_rms_epsilon",
    "modern-bert.attention.layer_norm_epsilon",
    "llama-embed.pooling_type",
    "orion.rope.freq_base",
    *("deepseek.expert_weights_norm", "qwen3moe.expert_weights_norm"),
    *("tokenizer.ggml.normalizer.form", "tokenizer.ggml.ignore_merges"),
    *("tokenizer.ggml.end_token_ids", "tokenizer.ggml.tokens_before", "tokenizer.ggml.prepend_scheme"),
    "tokenizer.ggml.fixed_token_ids",
}
"""Keys that ggplug adds: for encoders the activation, the whole tokeniser, and a token that llama.cpp names as BOS; for
MiniCPM 3 the width of values, which llama.cpp takes to be a part of the whole width; for Mistral Small 4 by how much
queries grow; for EXAONE 3, Qwen 1 and ModernBERT the
epsilon under the key that their models need; for Orion an unusual base of RoPE; for llama-embed the folder's pooling;
for mixtures whether expert weights are normalised, where that is not what llama.cpp does; for byte pairs what changes
tokens and llama.cpp has no keys for; the tokens that end texts, and those before texts, where they are more than
llama.cpp has keys for; which texts a space is put before, by Metaspace; the user-defined pieces of SentencePiece."""

OURS_OF = {
    "xverse": {f"tokenizer.ggml.{name}" for name in ("scores", "add_space_prefix", "add_bos_token")},
    **{name: {"tokenizer.ggml.token_strips"} for name in ("jina-bert-v3", "modern-bert", "nomic-bert-moe")},
}
"""Keys that ggplug adds for one folder: the order of XVERSE's merges, without which words have other tokens, and that
no tokens are around texts; that no token removes white space, although the model's name says so."""


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDERS / name / "expected.json").read_text("utf-8"))
    return found


def made(name: str, tmp_path: Path) -> Path:
    """The folder with its weights."""
    folder = tmp_path / name
    shutil.copytree(FOLDERS / name, folder)
    recorded = expected(name)
    formula.write_folder(folder, recorded["weights"], recorded["dtype"], recorded["files"])
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_metadata_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    path = ggplug_models.convert(made(name, tmp_path), tmp_path / "out.gguf", "F16")
    fields = gguf.GGUFReader(path).fields
    found = {
        key: ([kind.name for kind in each.types], each.contents())
        for key, each in fields.items()
        if not key.startswith(("GGUF.", "general.")) or key == "general.architecture"
    }
    wanted = expected(name)["metadata"]
    assert found.keys() - OURS - OURS_OF.get(name, set()) == wanted.keys()
    for key, (kinds, value) in wanted.items():
        assert (key, found[key]) == (key, (kinds, pytest.approx(value, rel=1e-6) if is_number(value) else value))
    in_blocks = any(each.endswith(formula.BLOCKS) for each in expected(name)["weights"])
    wanted_type = gguf.LlamaFileType.MOSTLY_MXFP4_MOE if in_blocks else gguf.LlamaFileType.MOSTLY_F16
    assert fields["general.file_type"].contents() == wanted_type


@pytest.mark.parametrize("name", NAMES)
def test_what_is_converted_can_be_loaded(name: str, tmp_path: Path) -> None:
    path = ggplug_models.convert(made(name, tmp_path), tmp_path / "out.gguf", "F16")
    with ggplug_models.load(path, ["CPU"], pack=False) as model:
        assert model.architecture == expected(name)["metadata"]["general.architecture"][1]


def is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, list) and bool(value) and isinstance(value[0], float))


@pytest.mark.parametrize("name", NAMES)
def test_tensors_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    path = ggplug_models.convert(made(name, tmp_path), tmp_path / "out.gguf", "F16")
    wanted = expected(name)["tensors"]
    found = {each.name: each for each in gguf.GGUFReader(path).tensors}
    assert found.keys() == wanted.keys()
    for key, (kind, ne, held) in wanted.items():
        each = found[key]
        assert (key, each.tensor_type.name, each.shape.tolist()) == (key, kind, ne)
        data = np.ascontiguousarray(each.data)
        if isinstance(held, list):
            np.testing.assert_allclose(data, held, rtol=1e-6)
        else:
            assert (key, hashlib.sha256(data.tobytes()).hexdigest()[:16]) == (key, held)


# -- types -----------------------------------------------------------------------------------------


def test_stored_values_come_through_in_every_plain_type(tmp_path: Path) -> None:
    folder = made("qwen3", tmp_path)
    name, shape = "model.layers.1.mlp.up_proj.weight", (48, 32)
    bits = np.frombuffer(formula.stored(formula.weights(name, shape), "BF16"), np.uint16)
    exact = (bits.astype(np.uint32) << 16).view(np.float32).reshape(shape)
    for kind, wanted in (("F32", exact), ("F16", exact.astype(np.float16)), ("BF16", bits.reshape(shape))):
        path = ggplug_models.convert(folder, tmp_path / f"{kind}.gguf", kind)
        with GGUFReader(path) as reader:
            info = reader.tensors["blk.1.ffn_up.weight"]
            assert info.type is types.by_name(kind)
            assert bytes(reader.data(info)) == wanted.tobytes()
            assert reader.tensors["blk.1.ffn_norm.weight"].type is types.F32


def test_quantised_matrices_are_those_of_the_reference(tmp_path: Path) -> None:
    path = ggplug_models.convert(made("llama2", tmp_path), tmp_path / "out.gguf", "Q8_0")
    values = formula.weights("model.layers.0.mlp.gate_proj.weight", (48, 32))
    with GGUFReader(path) as reader:
        info = reader.tensors["blk.0.ffn_gate.weight"]
        assert info.type is types.Q8_0
        assert bytes(reader.data(info)) == quants.quantize(values, types.Q8_0).tobytes()
        # rows of 48 elements are no whole number of blocks
        assert reader.tensors["blk.0.ffn_down.weight"].type is types.F16


def test_mixtures_are_made_by_quantising_and_leave_one_file(tmp_path: Path) -> None:
    folder = made("llama3", tmp_path)
    seen: list[tuple[int, int]] = []
    path = ggplug_models.convert(folder, tmp_path / "out.gguf", "q4_k_m", progress=lambda *at: seen.append(at))
    with GGUFReader(path) as reader:
        assert reader.metadata["general.file_type"] == gguf.LlamaFileType.MOSTLY_Q4_K_M
        assert reader.tensors["blk.0.attn_q.weight"].type is types.Q5_0  # rows of 32 elements: the next that fits
        assert reader.tensors["rope_freqs.weight"].type is types.F32
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]
    assert {name.name for name in tmp_path.iterdir()} == {"llama3", "out.gguf"}


def test_a_type_that_does_not_exist_is_answered_with_all_there_are(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"type must be one of F32, .*Q4_K_M.*, got 'Q9'"):
        ggplug_models.convert(tmp_path, tmp_path / "out.gguf", "Q9")


# -- errors of a folder name the file, and the key in it ----------------------------------------


def changed(folder: Path, file: str, **values: Any) -> None:
    """Keys get other values; ``None`` takes them out."""
    content = json.loads((folder / file).read_text("utf-8"))
    content |= values
    kept = {key: value for key, value in content.items() if value is not None}
    (folder / file).write_text(json.dumps(kept), "utf-8")


def test_an_unknown_model_type_is_answered_with_all_there_are(tmp_path: Path) -> None:
    folder = made("llama2", tmp_path)
    changed(folder, "config.json", model_type="unheard-of")
    with pytest.raises(ModelError, match=r"config\.json: model_type must be one of") as caught:
        ggplug_models.convert(folder, tmp_path / "out.gguf")
    assert all(kind in str(caught.value) for kind in FAMILIES)


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_that_is_needed_is_named_where_it_is_missing_or_odd(name: str, tmp_path: Path) -> None:
    folder = made(name, tmp_path)
    content = (folder / "config.json").read_bytes()
    whole = json.loads(content)
    family, _ = family_of(Values(whole))
    inner = family.inner if family.inner in whole else None
    defaults = completed(Values({}), (whole[inner] if inner else whole).get("model_type", whole["model_type"]))
    for setting in [*family.integers, *family.numbers]:
        *others, last = names = setting.rstrip("?").split("|")
        needed = not setting.endswith("?") and not any(name in defaults for name in names)
        odd: list[Any] = ["text", -1, *([None] if needed else [])]
        for value in odd:
            values = {**dict.fromkeys(others), last: value}
            changed(folder, "config.json", **({inner: {**whole[inner], **values}} if inner else values))
            with pytest.raises(ModelError, match=rf"config\.json: ({inner}: )?{last}"):
                ggplug_models.convert(folder, tmp_path / "out.gguf")
            (folder / "config.json").write_bytes(content)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_odd_settings_are_refused_or_do_not_matter(name: str, tmp_path: Path) -> None:
    folder = made(name, tmp_path)
    content = (folder / "config.json").read_bytes()
    whole = json.loads(content)
    for setting in whole:
        for value in (None, "text", -1, 0, 1.5, [], [None], {}, True):
            changed(folder, "config.json", **{setting: value})
            with suppress(ModelError):
                ggplug_models.convert(folder, tmp_path / "out.gguf")
            (folder / "config.json").write_bytes(content)


def test_a_list_of_tokens_that_is_damaged_is_named_by_line(tmp_path: Path) -> None:
    folder = made("rwkv6", tmp_path)
    path = folder / "rwkv_vocab_v20230424.txt"
    lines = path.read_text("utf-8").splitlines()
    for odd in ("3", "3 'c'", "3 'c' 2", "3 c 1", "3 [1, 2] 2", "3 'c' one"):
        path.write_text("\n".join([*lines[:2], odd, *lines[3:]]), "utf-8")
        with pytest.raises(ModelError, match=r"rwkv_vocab_v20230424\.txt: line 3 must be a number, a token"):
            ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_a_line_of_plamo_that_is_no_token_is_named(tmp_path: Path) -> None:
    folder = made("plamo2", tmp_path)
    lines = (folder / "tokenizer.jsonl").read_text("utf-8").splitlines()
    for odd in ("{", "[]", '["a", 0.5]', '[1, 0.5, "NORMAL"]', '["a", "b", "NORMAL"]', '["a", NaN, "NORMAL"]'):
        (folder / "tokenizer.jsonl").write_text("\n".join([*lines[:2], odd, *lines[3:]]), "utf-8")
        with pytest.raises(ModelError, match=r"tokenizer\.jsonl: line 3 must be an array of a token"):
            ggplug_models.convert(folder, tmp_path / "out.gguf")
    (folder / "tokenizer.jsonl").write_text("\n".join(lines), "utf-8")
    changed(folder, "tokenizer_config.json", eos_token="<end>")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: eos_token must be one of the tokens of"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_a_rank_that_is_odd_is_named_by_line(tmp_path: Path) -> None:
    folder = made("qwen", tmp_path)
    lines = (folder / "qwen.tiktoken").read_text("utf-8").splitlines()
    for number, odd in ((3, "Ag== 7"), (3, "Ag=="), (3, "? 2"), (3, "AA== 2"), (3, "Ag== two")):
        (folder / "qwen.tiktoken").write_text("\n".join([*lines[: number - 1], odd, *lines[number:]]), "utf-8")
        with pytest.raises(ModelError, match=rf"qwen\.tiktoken: line {number} must be a token in base 64 and 2"):
            ggplug_models.convert(folder, tmp_path / "out.gguf")
    (folder / "qwen.tiktoken").write_text("\n".join([*lines, "eHl6 263"]), "utf-8")
    with pytest.raises(ModelError, match=r"line 264 has a token that no two others make"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_joined_matrices_that_have_no_equal_parts_are_refused(tmp_path: Path) -> None:
    for name, tensor, shape, named in (
        ("baichuan", "model.layers.0.self_attn.W_pack.weight", [97, 32], "97 rows of a tensor cannot be split into 3"),
        ("baichuan", "model.layers.0.self_attn.W_pack.weight", [99, 32], r"attn_q.weight. has ne .32, 33, 1, 1."),
        ("talkie", "model.blocks.0.attn.attn_key.weight", [30, 32], r"attn_k.weight. has ne .32, 30, 1, 1."),
    ):
        folder = made(name, tmp_path / tensor[-20:] / str(shape[0]))
        formula.write_folder(folder, {**expected(name)["weights"], tensor: shape}, "BF16", 1)
        with pytest.raises(ModelError, match=named):
            ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_a_group_of_heads_of_nemotron_that_does_not_divide_them_is_named(tmp_path: Path) -> None:
    folder = made("nemotron-nas", tmp_path)
    blocks = json.loads((folder / "config.json").read_text("utf-8"))["block_configs"]
    blocks[0]["attention"]["n_heads_in_group"] = 3
    changed(folder, "config.json", block_configs=blocks)
    with pytest.raises(
        ModelError, match=r"block_configs\[0\]: attention: n_heads_in_group must be a divisor of num_at"
    ):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_a_part_of_a_matrix_of_grok_is_refused(tmp_path: Path) -> None:
    folder, name = made("grok", tmp_path), "model.layers.0.block_sparse_moe.experts.0.w1.weight"
    formula.write_folder(folder, {**expected("grok")["weights"], name: [12, 32]}, "BF16", 1)
    with pytest.raises(ModelError, match=rf"'{name}' has .*12"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")
    weights = {
        each: [12, 32] if each.endswith(("w1.weight", "w3.weight")) else shape
        for each, shape in expected("grok")["weights"].items()
    }
    formula.write_folder(folder, weights, "BF16", 1)
    with pytest.raises(ModelError, match=r"has 12 rows, expected 24: matrices that are split between files"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_both_tables_of_jais_are_scaled_where_they_are_tied(tmp_path: Path) -> None:
    folder = made("jais", tmp_path)
    changed(folder, "config.json", tie_word_embeddings=None)
    shape = expected("jais")["weights"]["transformer.wte.weight"]
    table = formula.stored(formula.weights("transformer.wte.weight", shape), "BF16")
    values = (np.frombuffer(table, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    with GGUFReader(ggplug_models.convert(folder, tmp_path / "out.gguf")) as reader:
        for name, factor in (("token_embd", 14.6), ("output", 2.22 * 0.125)):
            held = np.frombuffer(reader.data(reader.tensors[f"{name}.weight"]), np.float32).reshape(shape)
            np.testing.assert_allclose(held, values * factor, rtol=1e-6)


def check_refused(folder: Path, place: list[Any], value: Any, named: str) -> None:
    """A folder whose ``tokenizer.json`` has another value at a place is refused by the words ``named``."""
    content = inner = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    for each in place[:-1]:
        inner = inner[each]
    inner[place[-1]] = value
    changed(folder, "tokenizer.json", **content)
    with pytest.raises(ModelError, match=rf"tokenizer\.json: {named}"):
        ggplug_models.convert(folder, folder.with_suffix(".gguf"))


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        (["model", "vocab", 5], ["the"], "model: vocab must be an array of at most 62 pairs of a token and its score"),
        (["model", "vocab", 5], ["the", "-3"], "model: vocab must be an array"),
        (["model", "unk_id"], -1, "model: unk_id must be an integer"),
        (["model", "type"], "WordLevel", "model: type must be one of WordPiece, Unigram"),
        (["normalizer", "precompiled_charsmap"], "=", "normalizer: precompiled_charsmap must be a table in base 64"),
        (["normalizer", "type"], "Lowercase", "normalizer: type must be one of Precompiled"),
        (["pre_tokenizer"], None, "pre_tokenizer must be Metaspace, or WhitespaceSplit and Metaspace"),
        (["pre_tokenizer", "pretokenizers", 1, "prepend_scheme"], "first", r".*\[1\]: prepend_scheme must be 'always'"),
        (
            ["model", "vocab", 5, 0],
            "the\u2581",
            r".*\[1\]: split must be false, because some tokens have spaces within",
        ),
    ],
)
def test_a_list_of_unigrams_that_is_odd_is_named(place: list[Any], value: Any, named: str, tmp_path: Path) -> None:
    check_refused(made("nomic-bert-moe", tmp_path), place, value, named)


@pytest.mark.parametrize("name", ["jina-bert-v3", "nomic-bert-moe"])
def test_texts_have_the_tokens_of_their_list_of_unigrams(name: str, tmp_path: Path) -> None:
    folder = made(name, tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ours = load_tokenizer(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    for text in ("the  quick Brown fox", " Box of a jug; lazy"):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids


def test_a_vocabulary_without_the_tokens_that_a_family_needs_is_refused(tmp_path: Path) -> None:
    folder = made("glm4moe", tmp_path)
    text = (folder / "tokenizer.json").read_text("utf-8")
    (folder / "tokenizer.json").write_text(text.replace("<|observation|>", "<|other|>"), "utf-8")
    with pytest.raises(
        ModelError, match=r"has no token '<\|observation\|>' in its vocabulary, which glm4moe models need"
    ):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("lfm2", "layer_types", ["conv"]),
        ("lfm2", "conv_bias", True),
        ("lfm2moe", "conv_bias", True),
        ("granitehybrid", "layer_types", ["mamba", "other"]),
        ("nemotron_h", "hybrid_override_pattern", "M?*"),
        ("kimi-linear", "linear_attn_config", {"full_attn_layers": [3]}),
        ("gemma3n", "activation_sparsity_pattern", [0.5, 0.5, 0.5, 1.0]),
        ("gemma4", "num_kv_shared_layers", "two"),
        ("hunyuan-moe", "moe_topk", [1, 2]),
        ("falcon-h1", "mlp_multipliers", [1.0]),
        ("jina-bert-v3", "lora_adaptations", None),
        ("jina-bert-v3", "position_embedding_type", "absolute"),
        ("jina-bert-v2", "position_embedding_type", "absolute"),
        ("nomic-bert", "n_positions", 4096),
        ("cohere2moe", "mlp_layer_types", ["sparse", "dense", "sparse", "sparse", "sparse"]),
        ("laguna", "layer_types", ["sliding_attention"] * 4),
        ("laguna", "num_attention_heads_per_layer", [4, 4]),
        ("laguna", "eos_token_id", [2, 4000]),
        ("mellum", "rope_parameters: sliding_attention: rope_theta", 100.0),
        ("granite_swa", "layer_rope_theta", [100.0, 50.0, 100.0, 100.0]),
        ("baichuan", "num_key_value_heads", 2),
        ("plamo", "n_shared_head", 7),
        ("chatglm", "kv_channels", 16),
        ("codeshell", "n_inner", 96),
        ("jais", "mup_width_scale", None),
        ("openelm", "ffn_multipliers", [0.7, "two"]),
        ("openelm", "num_kv_heads", [2]),
        ("deci", "num_key_value_heads_per_layer", [1, 0]),
        ("nemotron-nas", "block_configs", [{}]),
        ("dbrx", "ffn_config: moe_normalize_expert_weights", 2.0),
        ("dbrx", "ffn_config: moe_normalize_expert_weights", None),
        ("dbrx", "ffn_config: ffn_act_fn: name", "gelu"),
        ("dbrx", "ffn_config: moe_num_experts", 5),
        ("grok", "rope_type", "longrope"),
        ("hunyuan_vl", "rope_scaling: xdrope_section", [1, "two"]),
        ("mimo2", "hybrid_layer_pattern", [0, 1, 1]),
        ("mimo2", "swa_v_head_dim", 16),
        ("spark2_5", "rope_parameters: sliding_attention: partial_rotary_factor", 1.0),
    ],
)
def test_what_settings_say_of_blocks_is_checked(name: str, setting: str, value: Any, tmp_path: Path) -> None:
    folder = made(name, tmp_path)
    content = inner = json.loads((folder / "config.json").read_text("utf-8"))
    *outer, last = setting.split(": ")
    for each in outer:
        inner = inner[each]
    inner[last] = value
    changed(folder, "config.json", **content)
    with pytest.raises(ModelError, match=rf"config\.json: {setting}"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"use_mla": True}, "use_mla must be false: of this model type, only models without latent attention"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling: rope_type must be one of default: .*, got 'yarn'"),
    ],
)
def test_a_model_of_the_type_of_deepseek_ocr_with_another_attention_is_refused(
    values: dict[str, Any], named: str, tmp_path: Path
) -> None:
    folder = made("deepseek_vl_v2", tmp_path)
    settings = json.loads((folder / "config.json").read_text("utf-8"))["language_config"]
    changed(folder, "config.json", language_config={**settings, **values})
    with pytest.raises(ModelError, match=rf"config\.json: language_config: {named}"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_a_template_of_the_folder_is_kept_where_the_family_has_one(tmp_path: Path) -> None:
    folder = made("deepseek_vl_v2", tmp_path)
    changed(folder, "tokenizer_config.json", chat_template="{{ messages[0]['content'] }}")
    with GGUFReader(ggplug_models.convert(folder, tmp_path / "out.gguf")) as reader:
        assert reader.metadata["tokenizer.chat_template"] == "{{ messages[0]['content'] }}"


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"rope_type": "ntk"}, "rope_type"),
        ({"rope_type": "linear"}, "factor"),
        (
            {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": "16"},
            "original_max_position_embeddings",
        ),
        ({"rope_type": "llama3", "low_freq_factor": 4.0, "high_freq_factor": 1.0}, "high_freq_factor"),
        ({"rope_type": "llama3", "factor": "four"}, "factor"),
        ({"rope_theta": -1}, "rope_theta"),
    ],
)
def test_odd_positions_are_named(values: dict[str, Any], key: str, tmp_path: Path) -> None:
    folder = made("llama2", tmp_path)
    changed(folder, "config.json", rope_parameters=values)
    with pytest.raises(ModelError, match=rf"config\.json: rope_parameters: {key} (must|is missing)"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


SCALED = {
    "llama3": {"factor": 4.0, "original_max_position_embeddings": 16},
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "longrope": {"original_max_position_embeddings": 16, "long_factor": [1.5] * 4, "short_factor": [1.2] * 4},
    "dynamic": {"factor": 4.0},
}
CARRIED = {
    "llama3": {
        *("apertus", "arcee", "exaone", "exaone4", "exaone-moe", "granite", "granitemoe", "llama2", "llama3", "llama4"),
        *("granitehybrid", "granitehybrid-attention", "granitehybrid-dense", "minicpm", "mistral", "mistral3"),
        *("llama_bidirec", "mixtral", "nanbeige", "deci", "nemotron-nas"),
    },
    "longrope": {"minicpm", "minicpm3", "phi3", "phimoe"},
}
"""The folders whose architecture has the tensors of a scaling in llama.cpp: create_tensor(LLM_TENSOR_ROPE_...) in its
src/models, in a graph that reads them."""


@pytest.mark.parametrize("kind", SCALED)
def test_a_scaling_of_positions_comes_into_the_file_or_is_refused(kind: str) -> None:
    carried = set()
    for name in NAMES:
        config = json.loads((FOLDERS / name / "config.json").read_text("utf-8"))
        family, settings = family_of(Values(config, where="config.json"))
        scaled = {**settings.values, "rope_scaling": {"rope_theta": 500.0, "rope_type": kind, **SCALED[kind]}}
        settings = Values(scaled, where="config.json")
        with suppress(ModelError):
            rope.check(settings, family.architecture, family.scalings)
            keys = family.keys(settings, Folder(FOLDERS / name))
            found = {value for key, value in keys.items() if key.endswith("rope.scaling.type")}
            assert (name, found) == (name, {kind}) or kind not in ("linear", "yarn")
            carried.add(name)
    assert carried == CARRIED.get(kind, carried)
    assert ("falcon" in carried, "command-r" in carried) == (kind in ("linear", "yarn"), False)


def test_a_scaling_that_a_file_cannot_have_is_named_with_those_that_it_can(tmp_path: Path) -> None:
    folder = made("qwen2", tmp_path)
    changed(folder, "config.json", rope_parameters={"rope_theta": 500.0, "rope_type": "llama3", **SCALED["llama3"]})
    with pytest.raises(ModelError, match=r"rope_type must be one of default, linear, yarn: .*qwen2.*, got 'llama3'"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")
    changed(folder, "config.json", rope_parameters={"rope_type": "yarn", **SCALED["yarn"], "attention_factor": 2.0})
    with pytest.raises(ModelError, match=r"attention_factor must be such that .* multiplied by 1\.13863, .*got 2\.0"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")
    local = {"full_attention": {"rope_type": "linear", "factor": 2.0}, "sliding_attention": {"rope_type": "linear"}}
    changed(folder, "config.json", rope_parameters=local)
    with pytest.raises(ModelError, match=r"sliding_attention: rope_type must be default: .*, got 'linear'"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_every_architecture_that_reads_the_factors_of_llama_3_gets_them(tmp_path: Path) -> None:
    scaling = json.loads((FOLDERS / "llama3" / "config.json").read_text("utf-8"))["rope_parameters"]
    _, _, values = expected("llama3")["tensors"]["rope_freqs.weight"]
    for name in ("granite", "mixtral", "minicpm"):
        folder = made(name, tmp_path)
        changed(folder, "config.json", rope_parameters=scaling)
        with GGUFReader(ggplug_models.convert(folder, tmp_path / "out.gguf")) as reader:
            found = np.asarray(reader.data(reader.tensors["rope_freqs.weight"])).view(np.float32)
        np.testing.assert_allclose(found, values, rtol=1e-6)


def test_longrope_of_minicpm_keeps_the_length_that_it_was_trained_for(tmp_path: Path) -> None:
    folder = made("minicpm", tmp_path)
    changed(folder, "config.json", rope_scaling={"type": "longrope", **SCALED["longrope"]}, max_position_embeddings=64)
    metadata = read(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    assert metadata["minicpm.rope.scaling.original_context_length"] == 16
    assert metadata["minicpm.rope.scaling.attn_factor"] == pytest.approx((1 + np.log(4) / np.log(16)) ** 0.5)


def test_settings_of_older_files_say_the_same(tmp_path: Path) -> None:
    folder = made("llama3", tmp_path)
    new = ggplug_models.convert(folder, tmp_path / "new.gguf").read_bytes()
    scaling = json.loads((folder / "config.json").read_text("utf-8"))["rope_parameters"]
    base = scaling.pop("rope_theta")
    scaling |= {"type": scaling["rope_type"], "rope_type": None}
    changed(folder, "config.json", rope_parameters=None, rope_theta=base, rope_scaling=scaling)
    assert ggplug_models.convert(folder, tmp_path / "old.gguf").read_bytes() == new


def test_factors_of_longrope_that_do_not_fit_are_named(tmp_path: Path) -> None:
    folder = made("phi3", tmp_path)
    rope = json.loads((folder / "config.json").read_text("utf-8"))["rope_parameters"]
    changed(folder, "config.json", rope_parameters={**rope, "long_factor": [1.0, 2.0]})
    with pytest.raises(ModelError, match=r"long_factor must be an array of 4 positive numbers, got \[1.0, 2.0\]"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


# -- weights in several files ----------------------------------------------------------------------

INDEX = "model.safetensors.index.json"


def test_a_file_of_several_that_is_missing_is_named(tmp_path: Path) -> None:
    folder = made("mistral", tmp_path)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no model-00002-of-00003\.safetensors"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_what_an_index_says_is_checked(tmp_path: Path) -> None:
    folder = made("mistral", tmp_path)
    index = json.loads((folder / INDEX).read_text("utf-8"))["weight_map"]
    name = next(iter(index))
    for wrong, message in (
        ({**index, "odd": index[name]}, rf"{index[name]} has no tensor 'odd', which .*{INDEX} lists"),
        ({**index, name: "../config.json"}, rf"{INDEX}: weight_map: {name} must be the name of a file"),
        ({**index, name: 7}, rf"{INDEX}: weight_map: {name} must be a string"),
        ({}, f"{INDEX} lists no tensors"),
    ):
        changed(folder, INDEX, weight_map=wrong)
        with pytest.raises(ModelError, match=message):
            ggplug_models.convert(folder, tmp_path / "out.gguf")
    changed(folder, INDEX, weight_map=index)
    part = folder / index[name]
    part.write_bytes(part.read_bytes()[:-2])
    with pytest.raises(ModelError, match=f"{index[name]}.*cannot be read"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_files_of_several_are_not_replaced(tmp_path: Path) -> None:
    folder = made("mistral", tmp_path)
    for name in (INDEX, "model-00001-of-00003.safetensors", "tokenizer.model"):
        with pytest.raises(ParameterError, match="which would be overwritten"):
            ggplug_models.convert(folder, folder / name)


@pytest.mark.parametrize(
    "header",
    [
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}},
        {"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]}},
        {"a": 7},
        [],
    ],
)
def test_headers_that_lie_are_refused(tmp_path: Path, header: Any) -> None:
    folder = made("gpt2", tmp_path)
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


# -- vocabularies ----------------------------------------------------------------------------------


def read(path: Path) -> dict[str, Any]:
    with GGUFReader(path) as reader:
        return dict(reader.metadata)


LETTERS = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
SPLIT_TEXTS = (
    "It's 12345 a-b, OK?\r\n\n  \u00c9T\u00c9 abCd  \u65e5\u672c\u8a9e",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0661\u0662\u0663 e\u0301E\u0301 \u041f\u0440\u0438\u0432\u0435\u0442",
    "\u3000\u2028--\n",
)
"""With numbers, contractions, marks, line ends, spaces, capitals and other alphabets."""


def split(pattern: str, behavior: str = "Isolated", *, invert: bool = False) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def splits_alike(folder: Path, out: Path, *steps: dict[str, Any]) -> str:
    """The name of the steps, with which the converted file splits texts as the library does."""
    changed(folder, "tokenizer.json", pre_tokenizer={"type": "Sequence", "pretokenizers": [*steps, LETTERS]})
    found = read(ggplug_models.convert(folder, out))
    ours, theirs = load_tokenizer(found), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in SPLIT_TEXTS:
        assert [*ours.encode(text)] == theirs.encode(text, add_special_tokens=False).ids
    return str(found["tokenizer.ggml.pre"])


def patterns_of(name: str) -> tuple[Any, ...]:
    return next(patterns for patterns, known in SPLITTING.items() if known == name)


@pytest.mark.parametrize("escaped", [True, False])
@pytest.mark.parametrize("name", sorted({*SPLITTING.values()} - {"laguna"}))
def test_ways_of_splitting_are_known_by_their_patterns(name: str, escaped: bool, tmp_path: Path) -> None:
    patterns = patterns_of(name)
    shown = (each if escaped else each.replace(r"\r", "\r").replace(r"\n", "\n") for each in patterns)
    assert splits_alike(made("llama3", tmp_path), tmp_path / "out.gguf", *map(split, shown)) == name


@pytest.mark.parametrize("pattern", ["[-a ]+", ".", r"(.)\1", r"\b"])
@pytest.mark.parametrize("behavior", ["Isolated", "Contiguous", "MergedWithNext", "MergedWithPrevious"])
def test_a_file_without_a_name_of_llama_cpp_splits_as_its_folder_does(
    behavior: str, pattern: str, tmp_path: Path
) -> None:
    steps = split(pattern, behavior), {"type": "Digits", "individual_digits": behavior == "Isolated"}
    assert splits_alike(made("llama3", tmp_path), tmp_path / "out.gguf", *steps) == UNNAMED


LINES = split(r"(?:\r?\n)+(?!\r?\n)", "MergedWithNext")
DIGITS = {"type": "Digits", "individual_digits": True}
PUBLISHED: dict[str, list[dict[str, Any]]] = {
    "gpt-4o": [split(*patterns_of("gpt-4o"), "Removed", invert=True)],
    "laguna": [LINES, split(*patterns_of("qwen2"))],
    "starcoder": [DIGITS, split(*patterns_of("gpt-2"))],
    "deepseek-coder": [*map(split, patterns_of("deepseek-coder")[:-1]), DIGITS],
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_forms_of_splitting_have_the_names_of_llama_cpp(name: str, tmp_path: Path) -> None:
    assert splits_alike(made("llama3", tmp_path), tmp_path / "out.gguf", *PUBLISHED[name]) == name


def test_every_way_of_splitting_is_one_that_tokenisers_know() -> None:
    assert {*SPLITTING.values(), "dbrx", UNNAMED} <= BY_NAME.keys()


@pytest.mark.parametrize(
    ("patterns", "named"), [(None, "is missing"), (["("], "is not a valid"), ([], "must be an array")]
)
def test_patterns_that_split_nothing_are_refused_by_their_key(patterns: Any, named: str, tmp_path: Path) -> None:
    found = read(ggplug_models.convert(made("llama3", tmp_path), tmp_path / "out.gguf"))
    given = {**found, "tokenizer.ggml.pre": UNNAMED, PATTERNS: patterns}
    with pytest.raises(ModelError, match=rf"{PATTERNS} {named}"):
        load_tokenizer({key: value for key, value in given.items() if value is not None})
    for behaviors in (["isolated", "removed"], ["isolated"] * 3):
        with pytest.raises(ModelError, match=rf"{BEHAVIORS} must be one of isolated, .* for each of 2 patterns"):
            load_tokenizer({**given, PATTERNS: ["a", "b"], BEHAVIORS: behaviors})


def test_llama_3_words_without_whole_tokens_are_those_of_dbrx(tmp_path: Path) -> None:
    folder = made("llama3", tmp_path)
    model = json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]
    changed(folder, "tokenizer.json", model={**model, "ignore_merges": False})
    assert read(ggplug_models.convert(folder, tmp_path / "out.gguf"))["tokenizer.ggml.pre"] == "dbrx"


def test_an_unknown_way_of_splitting_is_refused(tmp_path: Path) -> None:
    folder = made("qwen2", tmp_path)
    for way in ({"type": "Whitespace"}, None):
        changed(folder, "tokenizer.json", pre_tokenizer=way)
        with pytest.raises(ModelError, match=r"tokenizer\.json: pre_tokenizer must be one with ByteLevel"):
            ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_merged_pieces_without_tokenizer_model_are_scored_by_their_merges(tmp_path: Path) -> None:
    folder = made("llama2", tmp_path)
    (folder / "tokenizer.model").unlink()
    words = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256)), "▁", "a", "b", "ab", "▁ab", "ba"]
    model = {
        "type": "BPE",
        "byte_fallback": True,
        "unk_token": "<unk>",
        "vocab": {word: n for n, word in enumerate(words)},
        "merges": [["a", "b"], ["▁", "ab"], ["b", "a"]],
    }
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": n, "content": words[n], "special": True, **flags} for n in range(3)]
    whole = {"model": model, "added_tokens": added, "normalizer": SPACES}
    (folder / "tokenizer.json").write_text(json.dumps(whole), "utf-8")
    found = read(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    assert found["tokenizer.ggml.model"] == "llama"
    place = found["tokenizer.ggml.tokens"].index
    scores, kinds = found["tokenizer.ggml.scores"], found["tokenizer.ggml.token_type"]
    assert [scores[place(word)] for word in ("ab", "▁ab", "ba", "a")] == [0, -1, -2, -3]
    assert [kinds[place(word)] for word in ("<unk>", "<s>", "<0x41>", "ab")] == [2, 3, 6, 1]
    assert found["tokenizer.ggml.tokens"][300] == "[PAD300]"
    assert kinds[300] == 5


def tokenizer_says(folder: Path, says: Callable[[Any], object]) -> tokenizers.Tokenizer:
    """Changes ``tokenizer.json``, which the library ``tokenizers`` then reads."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text("utf-8"))
    says(content)
    path.write_text(json.dumps(content), "utf-8")
    return tokenizers.Tokenizer.from_file(str(path))


COMPOSED_OR_NOT = [
    "e\u0301a \u00e9",
    "\u1112\u1161\u11ab \ud55c",
    "\u212b a\u0323\u0307",
    "\ufb01\uff21\u00bd the",
    "The lazy dog",
]
"""Texts that each normal form of Unicode changes in another way, and one that none changes."""


@pytest.mark.parametrize(
    ("name", "form"),
    [("qwen2", "NFC"), ("modern-bert", "NFC"), ("qwen2", "NFD"), ("llama3", "NFKC"), ("glm4", "NFKD"), ("gpt2", None)],
)
def test_texts_are_normalised_as_the_tokenizer_does(name: str, form: str | None, tmp_path: Path) -> None:
    folder = made(name, tmp_path)
    normalizer = {"type": "Sequence", "normalizers": [{"type": form}] if form else []}
    theirs = tokenizer_says(folder, lambda says: says.update(normalizer=normalizer))
    ours = load_tokenizer(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    for text in COMPOSED_OR_NOT:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids


def test_added_tokens_remove_the_white_space_that_the_tokenizer_says(tmp_path: Path) -> None:
    folder = made("qwen2", tmp_path)

    def strips(says: Any) -> None:
        for token, left, right in zip(says["added_tokens"], (0, 1, 0, 1), (0, 0, 1, 1), strict=True):
            token |= {"lstrip": bool(left), "rstrip": bool(right)}

    theirs = tokenizer_says(folder, strips)
    ours = load_tokenizer(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>"):
        text = f"fox \u3000\n{token}\u00a0 \tdog"
        assert ours.encode(text, parse_special=True) == theirs.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", ["qwen2", "glm4"])
def test_words_that_no_merges_make_are_whole_where_the_tokenizer_says_so(
    name: str, whole: bool, tmp_path: Path
) -> None:
    folder = made(name, tmp_path)

    def says_so(says: Any) -> None:
        says["model"]["ignore_merges"] = whole
        says["model"]["merges"].remove(["T", "he"])

    theirs = tokenizer_says(folder, says_so)
    ours = load_tokenizer(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    assert ours.encode("The dog") == theirs.encode("The dog", add_special_tokens=False).ids


REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        (["normalizer"], REPLACE, "normalizer: type must be one of NFC, NFD, NFKC, NFKD, got 'Replace'"),
        (
            ["normalizer"],
            {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
            r"normalizer: normalizers\[1\]: type must be one of NFC, NFD, NFKC, NFKD, got 'Lowercase'",
        ),
        (
            ["normalizer"],
            {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "NFC"}]},
            "normalizer must be one of NFC, NFD, NFKC, NFKD alone",
        ),
        (["model", "end_of_word_suffix"], "</w>", "model: end_of_word_suffix must be null, .* got '</w>'"),
        (["model", "continuing_subword_prefix"], "##", "model: continuing_subword_prefix must be null, .* got '##'"),
        (["model", "dropout"], 0.1, "model: dropout must be null or 0: .*, got 0.1"),
        (["added_tokens", 0, "single_word"], True, r"added_tokens\[0\]: single_word must be false: .*, got True"),
        (["added_tokens", 3, "content"], "\u00e9", r"added_tokens\[3\]: content must be a text that no other token"),
        (
            ["pre_tokenizer", "pretokenizers", 1],
            {"type": "Sequence", "pretokenizers": []},
            "pre_tokenizer must be .* ByteLevel at",
        ),
        (["added_tokens", 3], {"id": 165, "content": "\u00e9"}, r"added_tokens\[3\]: content must be no token of the"),
        (
            ["pre_tokenizer"],
            {"type": "ByteLevel", "add_prefix_space": True},
            "pre_tokenizer: add_prefix_space must be false: .* got True",
        ),
        (
            ["pre_tokenizer", "pretokenizers", 0],
            split("a", "Removed"),
            r"pre_tokenizer: pretokenizers\[0\]: behavior must be one of Isolated, .*, got 'Removed'",
        ),
        (
            ["pre_tokenizer", "pretokenizers", 0],
            split("a", "Removed", invert=True),
            "pre_tokenizer must be one that is known to keep all of a text",
        ),
        (
            ["pre_tokenizer", "pretokenizers", 0],
            {"type": "Punctuation", "behavior": "Contiguous"},
            r"pre_tokenizer: pretokenizers\[0\]: type must be one of Split, Digits, ByteLevel, got 'Punctuation'",
        ),
    ],
)
def test_what_changes_tokens_and_a_file_cannot_say_is_refused(
    place: list[Any], value: Any, named: str, tmp_path: Path
) -> None:
    check_refused(made("qwen2", tmp_path), place, value, named)


def test_a_token_for_unknown_bytes_is_refused_where_there_are_any(tmp_path: Path) -> None:
    folder = made("qwen2", tmp_path)
    tokenizer_says(folder, lambda says: says["model"].update(unk_token="!"))
    ggplug_models.convert(folder, tmp_path / "out.gguf")
    content = (folder / "tokenizer.json").read_text("utf-8")
    (folder / "tokenizer.json").write_text(content.replace('"\\u00e9":', '"other":'), "utf-8")
    with pytest.raises(ModelError, match=r"tokenizer\.json: model: unk_token must be null, .* got '!'"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}


def test_a_last_token_that_the_template_adds_ends_texts_and_the_other_ends_turns(tmp_path: Path) -> None:
    folder = made("llama3", tmp_path)
    names = ("<|begin_of_text|>", "<|end_of_text|>")
    single = [
        {"SpecialToken": {"id": names[0], "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": names[1], "type_id": 0}},
    ]
    ids = {each["content"]: each["id"] for each in json.loads((folder / "tokenizer.json").read_text())["added_tokens"]}
    special = {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in names}
    whole = {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": special}
    changed(folder, "tokenizer.json", post_processor=whole)
    found = read(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    tokens = found["tokenizer.ggml.tokens"]
    ids = {kind: tokens[found[f"tokenizer.ggml.{kind}_token_id"]] for kind in ("bos", "eos", "eot")}
    assert ids == {"bos": names[0], "eos": names[1], "eot": "<|eot_id|>"}
    assert found["tokenizer.ggml.add_bos_token"]
    assert found["tokenizer.ggml.add_eos_token"]


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, b"\x0a\x7f", b"\x0a\x02\x18\x09", b"\x0b"])
def test_what_is_no_sentencepiece_model_is_refused(content: bytes, tmp_path: Path) -> None:
    folder = made("llama2", tmp_path)
    (folder / "tokenizer.model").write_bytes(content)
    with pytest.raises(ModelError, match=r"tokenizer\.model cannot be read"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_the_template_comes_from_wherever_it_is_and_others_by_name(tmp_path: Path) -> None:
    folder = made("qwen2", tmp_path)
    templates = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    changed(folder, "tokenizer_config.json", chat_template=templates)
    found = read(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    assert found["tokenizer.chat_template"] == "d"
    assert found["tokenizer.chat_template.tool_use"] == "t"
    assert found["tokenizer.chat_templates"] == ["tool_use"]
    changed(folder, "tokenizer_config.json", chat_template=None)
    (folder / "chat_template.jinja").write_text("from a file ▁", "utf-8")
    assert read(ggplug_models.convert(folder, tmp_path / "out.gguf"))["tokenizer.chat_template"] == "from a file ▁"
    changed(folder, "tokenizer_config.json", chat_template=templates)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("r", "utf-8")
    found = read(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    assert found["tokenizer.chat_template"] == "from a file ▁"
    assert found["tokenizer.chat_template.rag"] == "r"
    assert found["tokenizer.chat_templates"] == ["rag"]


@pytest.mark.parametrize(("name", "kind"), [("gemma3", "gemma3"), ("mistral4", "mistral3")])
def test_a_model_that_sees_is_converted_by_its_part_that_reads(name: str, kind: str, tmp_path: Path) -> None:
    folder = made(name, tmp_path)
    plain = ggplug_models.convert(folder, tmp_path / "plain.gguf")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    outer = {"model_type": kind, "text_config": config, "bos_token_id": 1, "eos_token_id": [1, 106]}
    (folder / "config.json").write_text(json.dumps(outer), "utf-8")
    recorded = expected(name)
    content = {
        f"language_model.{each}": ("BF16", shape, formula.stored(formula.weights(each, shape), "BF16"))
        for each, shape in recorded["weights"].items()
    }
    content["vision_tower.odd.weight"] = ("BF16", (2,), bytes(4))
    formula.save(folder / "model.safetensors", content)
    seeing = ggplug_models.convert(folder, tmp_path / "seeing.gguf")
    with GGUFReader(plain) as first, GGUFReader(seeing) as second:
        assert [(each, bytes(first.data(info))) for each, info in first.tensors.items()] == [
            (each, bytes(second.data(info))) for each, info in second.tensors.items()
        ]


def with_head(name: str, tmp_path: Path, *, same: bool) -> Path:
    """A folder that has an output matrix, the table of embeddings or another one, and says that it is tied."""
    folder, content = made(name, tmp_path), {}
    for each, shape in {**expected(name)["weights"], "lm_head.weight": None}.items():
        table = "model.embed_tokens.weight" if same and each == "lm_head.weight" else each
        shape = shape or expected(name)["weights"]["model.embed_tokens.weight"]
        content[each] = ("BF16", tuple(shape), formula.stored(formula.weights(table, shape), "BF16"))
    formula.save(folder / "model.safetensors", content)
    changed(folder, "config.json", tie_word_embeddings=True)
    return folder


@pytest.mark.parametrize("name", ["qwen3", "gemma2"])
def test_a_tied_head_is_left_out_unless_its_values_are_not_those_of_the_embeddings(name: str, tmp_path: Path) -> None:
    for same in (True, False):
        folder = with_head(name, tmp_path / str(same), same=same)
        with GGUFReader(ggplug_models.convert(folder, tmp_path / "out.gguf")) as reader:
            found = {each: bytes(reader.data(info)) for each, info in reader.tensors.items()}
        assert ("output.weight" in found) is not same
        assert found.get("output.weight") != found["token_embd.weight"]


def test_a_tied_head_that_another_factor_makes_is_written(tmp_path: Path) -> None:
    folder, weights = made("falcon-h1", tmp_path), dict(expected("falcon-h1")["weights"])
    del weights["lm_head.weight"]
    formula.write_folder(folder, weights, "F32", 1)
    changed(folder, "config.json", tie_word_embeddings=True, embedding_multiplier=4.0, lm_head_multiplier=0.5)
    with GGUFReader(ggplug_models.convert(folder, tmp_path / "out.gguf")) as reader:
        table, head = (
            np.frombuffer(reader.data(reader.tensors[f"{name}.weight"]), np.float32)
            for name in ("token_embd", "output")
        )
    assert np.array_equal(table, 8 * head)


def test_factors_of_operands_do_not_act_on_biases(tmp_path: Path) -> None:
    folder, weights = made("falcon-h1", tmp_path), dict(expected("falcon-h1")["weights"])
    settings = json.loads((folder / "config.json").read_text("utf-8"))
    assert settings["attention_in_multiplier"] != 1
    for name in [each.removesuffix("weight") for each in weights if each.endswith("k_proj.weight")]:
        weights[f"{name}bias"] = weights[f"{name}weight"][:1]
    formula.write_folder(folder, weights, "F32", 1)
    with GGUFReader(ggplug_models.convert(folder, tmp_path / "out.gguf")) as reader:
        bias = np.frombuffer(reader.data(reader.tensors["blk.0.attn_k.bias"]), np.float32)
    stored = formula.weights("model.layers.0.self_attn.k_proj.bias", bias.shape)
    assert np.allclose(bias, settings["key_multiplier"] * stored)


def test_a_head_that_is_not_tied_must_be_there_unless_the_folder_is_of_embeddings(tmp_path: Path) -> None:
    folder, weights = made("qwen2", tmp_path), dict(expected("qwen2")["weights"])
    del weights["lm_head.weight"]
    formula.write_folder(folder, weights, "BF16", 1)
    changed(folder, "config.json", tie_word_embeddings=False)
    with pytest.raises(ModelError, match=r"has no tensor 'lm_head\.weight', although by tie_word_embeddings"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}', "utf-8")
    ggplug_models.convert(folder, tmp_path / "out.gguf")


@pytest.mark.parametrize("name", ["llama2", "deepseek3"])
def test_blocks_that_the_settings_do_not_count_are_refused(name: str, tmp_path: Path) -> None:
    folder = made(name, tmp_path)
    changed(folder, "config.json", num_hidden_layers=1, num_nextn_predict_layers=0)
    with pytest.raises(ModelError, match=r"'blk\.1\..*', but by the settings the model has 1 blocks"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("llama2", "hidden_act", "gelu"),
        ("gemma2", "hidden_activation", "relu"),
        *((name, "query_pre_attn_scalar", 12) for name in ("gemma2", "gemma3", "gemma-embedding")),
        ("gpt2", "activation_function", "relu"),
        ("nemotron_h", "mlp_hidden_act", "silu"),
        ("gpt2", "scale_attn_by_inverse_layer_idx", True),
        ("falcon", "alibi", True),
        ("bloom", "apply_residual_connection_post_layernorm", True),
        ("qwen2", "use_sliding_window", True),
        ("rnd1", "use_sliding_window", True),
        ("lfm2moe", "routed_scaling_factor", 2.0),
        ("llama_bidirec", "pooling", "cls"),
        ("cohere2", "layer_types", ["full_attention"] * 4),
        ("cohere2", "sliding_window_pattern", 3),
        ("afmoe", "global_attn_every_n_layers", 8),
        ("llama4", "no_rope_layer_interval", 2),
        ("gemma4", "use_bidirectional_attention", "all"),
        ("gpt-oss", "swiglu_limit", 3.0),
        ("llama4", "use_qk_norm", False),
        ("llama4", "no_rope_layers", [1, 1, 0, 1]),
        ("mamba2", "time_step_limit", [0.0, 0.1]),
        ("falcon-h1", "mamba_norm_before_gate", True),
        ("smollm3", "no_rope_layers", [1, 1, 1, 1]),
        ("deepseek3", "rope_interleave", False),
        ("llada", "block_type", "sequential"),
        ("llada", "clip_qkv", 8.0),
        ("plamo2", "mamba_enabled", False),
        ("nomic-bert", "prenorm", True),
        ("bitnet", "hidden_act", "relu2"),
        ("maple", "nope_on_global_attention", False),
        ("spark2_5", "gate_attn_act_mode", "tanh"),
        ("mimo2", "routed_scaling_factor", 2.5),
        ("jais", "mup_scale_qk_dot_by_d", False),
        ("refact", "multi_query", False),
        ("cohere2moe", "shared_expert_combination_strategy", "sum"),
        ("laguna", "moe_router_logit_softcapping", 30.0),
        ("nomic-bert-moe", "moe_normalize_expert_weights", True),
    ],
)
def test_a_setting_that_the_network_does_not_follow_is_refused(
    name: str, setting: str, value: Any, tmp_path: Path
) -> None:
    folder = made(name, tmp_path)
    changed(folder, "config.json", **{setting: value})
    with pytest.raises(ModelError, match=rf"config\.json: {setting} must be .*nothing else, got"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        *((name, "is_causal", False) for name in ("llama2", "qwen2", "gemma2", "qwen3_moe")),
        ("lfm2", "architectures", ["Lfm2BidirectionalModel"]),
    ],
)
def test_a_language_model_that_attends_to_later_tokens_is_refused(
    name: str, setting: str, value: Any, tmp_path: Path
) -> None:
    folder = made(name, tmp_path)
    changed(folder, "config.json", **{setting: value})
    with pytest.raises(ModelError, match=r"attention\.causal is false, but .* models attend to earlier tokens only"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_a_gemma_with_vision_that_attends_to_later_tokens_is_refused(tmp_path: Path) -> None:
    folder = made("gemma3", tmp_path)
    text = json.loads((folder / "config.json").read_text("utf-8")) | {"use_bidirectional_attention": True}
    changed(folder, "config.json", model_type="gemma3", text_config=text)
    with pytest.raises(ModelError, match="text_config: use_bidirectional_attention must be False"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_the_blocks_of_a_mistral_have_windows_where_its_settings_say_so(tmp_path: Path) -> None:
    folder = made("mistral", tmp_path)
    changed(folder, "config.json", sliding_window=12, layer_types=["sliding_attention", "full_attention"])
    with GGUFReader(ggplug_models.convert(folder, tmp_path / "out.gguf")) as reader:
        assert reader.metadata["llama.attention.sliding_window"] == 12
        assert reader.metadata["llama.attention.sliding_window_pattern"].tolist() == [True, False]


_YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    ("names", "setting", "scaling"),
    [
        ("deepseek2 deepseek3 deepseek32 glm-dsa", "factor", {"rope_type": "linear", "factor": 3.0}),
        ("deepseek2 deepseek3 deepseek32 glm-dsa mistral4", "mscale_all_dim", _YARN),
        ("deepseek2 glm-dsa", "mscale_all_dim", {**_YARN, "mscale": 1.0, "mscale_all_dim": 0}),
        ("deepseek2 glm-dsa", "mscale", {**_YARN, "mscale_all_dim": 0.7}),
        ("minicpm3 plm", "mscale_all_dim", {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0}),
    ],
)
def test_a_scaling_with_which_scores_of_latent_attention_grow_otherwise_is_refused(
    names: str, setting: str, scaling: dict[str, Any], tmp_path: Path
) -> None:
    for name in names.split():
        folder = made(name, tmp_path)
        changed(folder, "config.json", rope_parameters=scaling)
        with pytest.raises(ModelError, match=rf"config\.json: rope_parameters: {setting} must be "):
            ggplug_models.convert(folder, tmp_path / "out.gguf")


@pytest.mark.parametrize("name", ["minicpm3", "plm", "kimi-linear"])
@pytest.mark.parametrize("scaling", [{"rope_type": "linear", "factor": 3.0}, _YARN], ids=["linear", "yarn"])
def test_a_scaling_changes_no_scores_of_latent_attention_where_it_does_not_in_llama_cpp(
    name: str, scaling: dict[str, Any], tmp_path: Path
) -> None:
    folder = made(name, tmp_path)
    changed(folder, "config.json", rope_parameters=scaling)
    with ggplug_models.load(ggplug_models.convert(folder, tmp_path / "out.gguf"), ["CPU"], pack=False) as model:
        assert model.scale == model.d_k**-0.5


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("attn_config.alibi", False),
        ("attn_config.attn_type", "grouped_query_attention"),
        ("attn_config.prefix_lm", True),
        ("attn_config.qk_ln", True),
        ("attn_config.softmax_scale", 0.5),
        ("logit_scale", "inv_sqrt_d_model"),
    ],
)
def test_an_mpt_with_another_attention_is_refused(setting: str, value: Any, tmp_path: Path) -> None:
    folder = made("mpt", tmp_path)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    *outer, name = setting.split(".")
    (config[outer[0]] if outer else config)[name] = value
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(ModelError, match=rf"config\.json: {': '.join([*outer, name])} must be"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


@pytest.mark.parametrize(
    ("name", "usual"), [("qwen2_moe", False), ("olmoe", False), ("qwen3_vl_moe", True), ("rnd1", True)]
)
def test_expert_weights_are_normalised_as_the_settings_say(name: str, usual: bool, tmp_path: Path) -> None:
    folder = made(name, tmp_path)
    for value in (usual, not usual):
        config = json.loads((folder / "config.json").read_text("utf-8"))
        config.get("text_config", config)["norm_topk_prob"] = value
        (folder / "config.json").write_text(json.dumps(config), "utf-8")
        with ggplug_models.load(ggplug_models.convert(folder, tmp_path / "out.gguf"), ["CPU"], pack=False) as model:
            assert model.experts.normalized is value


def test_an_expert_that_is_missing_or_odd_is_named(tmp_path: Path) -> None:
    folder = made("qwen3_moe", tmp_path)
    weights = expected("qwen3_moe")["weights"]
    name = "model.layers.1.mlp.experts.2.up_proj.weight"
    others = {each: shape for each, shape in weights.items() if each != name}
    for changed_weights, message in (
        (others, r"expert 2 of blk\.1\.ffn_up_exps\.weight is missing; there are 3, up to 3"),
        ({**weights, name: [24, 16]}, rf"tensor '{name}' has the shape \[24, 16\] of BF16, but .* has \[24, 32\]"),
    ):
        formula.write_folder(folder, changed_weights, "BF16", 1)
        with pytest.raises(ModelError, match=message):
            ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_one_tensor_of_all_experts_is_that_of_each(tmp_path: Path) -> None:
    folder = made("qwen3_5_moe", tmp_path)
    apart = ggplug_models.convert(folder, tmp_path / "apart.gguf")
    content: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    joined: dict[str, list[np.ndarray]] = {}
    for name, shape in expected("qwen3_5_moe")["weights"].items():
        raw = formula.stored(formula.weights(name, shape), "BF16")
        if ".experts." in name:
            module, _, part = name.removesuffix(".weight").rpartition(".")
            joined.setdefault(f"{module.rpartition('.')[0]}.{part}", []).append(
                np.frombuffer(raw, np.uint16).reshape(shape)
            )
        else:
            content[name] = ("BF16", tuple(shape), raw)
    for name in [each for each in joined if each.endswith("gate_proj")]:
        module = name.removesuffix(".gate_proj")
        both = np.concatenate([np.stack(joined[f"{module}.{part}_proj"]) for part in ("gate", "up")], axis=1)
        for key, values in (("gate_up_proj", both), ("down_proj", np.stack(joined[f"{module}.down_proj"]))):
            content[f"{module}.{key}"] = ("BF16", values.shape, values.tobytes())
    formula.save(folder / "model.safetensors", content)
    together = ggplug_models.convert(folder, tmp_path / "together.gguf")
    with GGUFReader(apart) as first, GGUFReader(together) as second:
        held = [{each: bytes(of.data(info)) for each, info in of.tensors.items()} for of in (first, second)]
    assert held[0] == held[1]


# -- MXFP4 checkpoints -----------------------------------------------------------------------------

LEVELS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def in_floats(folder: Path, name: str) -> None:
    """Writes the weights of an MXFP4 folder as floats: columns are rows, of two levels in a byte the low one first."""
    weights = expected(name)["weights"]
    content: dict[str, tuple[str, Any, bytes]] = {}
    for each, shape in weights.items():
        if each.endswith(formula.BLOCKS):
            stem = each.removesuffix(formula.BLOCKS)
            pairs = formula.part_of_blocks(each, shape)
            exponents = formula.part_of_blocks(stem + formula.SCALES, shape[:-1]).astype(np.int32)
            levels = LEVELS[np.stack([pairs & 15, pairs >> 4], axis=-1)].reshape(*shape[:-1], 32)
            values = np.ldexp(levels, exponents[..., None] - 127).reshape(*shape[:-2], -1).swapaxes(1, 2)
            content[stem] = ("F32", values.shape, values.tobytes())
        elif not each.endswith(formula.SCALES):
            content[each] = ("BF16", shape, formula.stored(formula.weights(each, shape), "BF16"))
    formula.save(folder / "model.safetensors", content)


def test_an_mxfp4_checkpoint_computes_what_its_values_do_as_floats(tmp_path: Path) -> None:
    folder = made("gpt-oss-mxfp4", tmp_path)
    kept = ggplug_models.convert(folder, tmp_path / "kept.gguf")
    in_floats(folder, "gpt-oss-mxfp4")
    floats = ggplug_models.convert(folder, tmp_path / "floats.gguf")
    with GGUFReader(kept) as first, GGUFReader(floats) as second:
        for name, info in second.tensors.items():
            held = first.tensors[name]
            values = quants.dequantize(np.frombuffer(first.data(held), np.uint8), held.type)
            assert np.array_equal(values, np.frombuffer(second.data(info), np.float32)), name
            assert (held.type is types.MXFP4) == name.endswith("_exps.weight")
    logits = []
    for path in (kept, floats):
        with ggplug_models.load(path, ["CPU"], pack=False) as model:
            logits.append(model.session().decode({0: list(range(5, 30))})[0])
    assert np.abs(logits[0] - logits[1]).max() < 0.02 * np.abs(logits[1]).max()  # activations become Q8_0


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K_M"])
def test_mxfp4_experts_stay_as_they_are_in_files_of_other_types(kind: str, tmp_path: Path) -> None:
    path = ggplug_models.convert(made("gpt-oss-mxfp4", tmp_path), tmp_path / "out.gguf", kind)
    with GGUFReader(path) as reader:
        found = {
            name: hashlib.sha256(bytes(reader.data(info))).hexdigest()[:16] for name, info in reader.tensors.items()
        }
        assert reader.tensors["token_embd.weight"].type.is_quantized
    for name, (type, _, held) in expected("gpt-oss-mxfp4")["tensors"].items():
        assert type != "MXFP4" or found[name] == held


def test_a_part_of_an_mxfp4_tensor_that_is_missing_odd_or_nan_is_named(tmp_path: Path) -> None:
    folder = made("gpt-oss-mxfp4", tmp_path)
    weights = expected("gpt-oss-mxfp4")["weights"]
    stem = "model.layers.1.mlp.experts.down_proj"
    blocks, scales = stem + formula.BLOCKS, stem + formula.SCALES
    for changes, message in (
        ({scales: None}, rf"has '{blocks}', but no tensor '{scales}'"),
        ({blocks: None}, rf"has '{scales}', but no tensor '{blocks}'"),
        ({scales: [4, 32, 1]}, rf"'{blocks}' has the shape \[4, 32, 2, 16\] of U8, expected \[4, 32, 1, 16\] of U8"),
    ):
        some = {name: shape for name, shape in {**weights, **changes}.items() if shape is not None}
        formula.write_folder(folder, some, "BF16", 1)
        with pytest.raises(ModelError, match=message):
            ggplug_models.convert(folder, tmp_path / "out.gguf")
    formula.write_folder(folder, weights, "BF16", 1)
    raw = (folder / "model.safetensors").read_bytes()
    exponents = formula.part_of_blocks(scales, weights[scales]).tobytes()
    assert raw.count(exponents) == 1
    (folder / "model.safetensors").write_bytes(raw.replace(exponents, exponents[:3] + b"\xff" + exponents[4:]))
    with pytest.raises(ModelError, match=rf"'{scales}' has 255, which is NaN, at \[0, 1, 1\]"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


# -- FP8 checkpoints -------------------------------------------------------------------------------


def test_one_scale_for_a_matrix_is_read_where_the_settings_are_those_of_all_parts(tmp_path: Path) -> None:
    folder = made("mistral3", tmp_path)
    name = "language_model.model.layers.1.mlp.up_proj.weight"
    scale = f"{name}_scale_inv"
    weights = {**expected("mistral3")["weights"], scale: [], name.replace("weight", "activation_scale"): []}
    formula.write_folder(folder, weights, "BF16", 1)
    changed(folder, "config.json", quantization_config={"quant_method": "fp8", "activation_scheme": "static"})
    path = ggplug_models.convert(folder, tmp_path / "out.gguf")
    exact = formula.float8(name, weights[name]).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    with GGUFReader(path) as reader:
        held = np.frombuffer(reader.data(reader.tensors["blk.1.ffn_up.weight"]), np.float32)
    assert np.array_equal(held, (exact * formula.weights(scale, [])).ravel())


def test_scales_of_fp8_that_do_not_fit_are_named(tmp_path: Path) -> None:
    folder = made("qwen3-fp8", tmp_path)
    weights = expected("qwen3-fp8")["weights"]
    name = "model.layers.1.mlp.up_proj.weight"
    scale = f"{name}_scale_inv"
    for changes, message in (
        ({name: None}, rf"has '{scale}', but no tensor '{name}'"),
        ({scale: [3, 2]}, rf"'{scale}' has the shape \[3, 2\], expected \[3, 3\] for '{name}' of \[48, 32\]"),
    ):
        some = {each: shape for each, shape in {**weights, **changes}.items() if shape is not None}
        formula.write_folder(folder, some, "BF16", 1)
        with pytest.raises(ModelError, match=message):
            ggplug_models.convert(folder, tmp_path / "out.gguf")
    formula.write_folder(folder, weights, "BF16", 1)
    changed(folder, "config.json", quantization_config={"quant_method": "fp8", "weight_block_size": [0, 12]})
    with pytest.raises(ModelError, match=r"quantization_config: weight_block_size must be two positive integers"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")
    rotated = {"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"R4": {}}}}
    changed(folder, "config.json", quantization_config=rotated)
    with pytest.raises(ModelError, match=r"quantization_config: transform_config must be null"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")
