"""What conversions do with single settings: they follow them, or refuse them by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles import formula
from test_models_convert_families import changed, expected, made

import ggplug_models
from ggplug.errors import ModelError
from ggplug.gguf import GGUFReader
from ggplug_models.converting.families import family_of
from ggplug_models.metadata.values import Values

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}


def with_settings(name: str, tmp_path: Path, **settings: Any) -> Path:
    """A folder whose settings are changed; None takes one out."""
    folder = made(name, tmp_path)
    changed(folder, "config.json", **settings)
    return folder


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("afmoe", "mup_enabled", False),
        ("bert", "is_decoder", True),
        ("cohere2", "rotary_pct", 0.5),
        ("deepseek2", "n_group", 2),
        ("deepseek2", "partial_rotary_factor", 0.5),
        ("deepseek32", "rms_norm_eps", 0.1),
        ("dots1", "layer_types", ["sliding_attention"] * 2),
        ("ernie4_5-moe", "moe_norm_min", 1.0),
        ("falcon_mamba", "mixer_rms_eps", 0.1),
        ("flan-t5", "feed_forward_proj", "gated-silu"),
        ("gpt-oss", "swiglu_alpha", 1.0),
        ("kimi-linear", "moe_renormalize", False),
        ("kimi-linear", "num_expert_group", 2),
        ("llama4", "layer_types", ["full_attention"] * 4),
        ("minicpm3", "dim_model_base", 128),
        ("minicpm3", "scale_depth", 1.0),
        ("minicpm3", "scale_emb", 24),
        ("mistral4", "rope_interleave", False),
        ("modern-bert", "layer_types", ["full_attention"] * 3),
        ("nemotron_h", "mamba_hidden_act", "gelu"),
        ("nemotron_h_moe", "rms_norm_eps", 0.1),
        ("nemotron_h_moe", "time_step_min", 1.0),
        ("olmoe", "clip_qkv", 0.7),
        ("qwen2_vl", "use_sliding_window", True),
        ("smollm3", "use_sliding_window", True),
        ("smollm3", "layer_types", ["sliding_attention"] * 4),
        ("t5", "dense_act_fn", "gelu"),
        ("t5", "is_gated_act", True),
        ("t5encoder", "relative_attention_max_distance", 64),
    ],
)
def test_a_setting_that_files_have_no_key_for_is_refused(name: str, setting: str, value: Any, tmp_path: Path) -> None:
    refused = "no_rope_layers" if name == "llama4" else setting
    with pytest.raises(ModelError, match=rf"config\.json: {refused} must be .*nothing else, got"):
        ggplug_models.convert(with_settings(name, tmp_path, **{setting: value}), tmp_path / "out.gguf")


YARN_OF_4 = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
ROPE_IN_SEVERAL_PLACES = [
    (
        "llama3",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0}, "rope_scaling": YARN_OF_4},
        "rope.scaling.factor",
        4,
    ),
    ("llama3", {"rope_parameters": YARN_OF_4, "rope_scaling": None}, "rope.scaling.factor", 4),
    ("llama3", {"rope_scaling": YARN_OF_4}, "rope.scaling.original_context_length", 32),
    (
        "llama3",
        {"rope_scaling": YARN_OF_4, "original_max_position_embeddings": 16},
        "rope.scaling.original_context_length",
        16,
    ),
    (
        "llama3",
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "max_position_embeddings": 48},
        "rope.scaling.original_context_length",
        48,
    ),
    ("nemotron", {"rope_scaling": {"rope_type": "default", "factor": 2.0}}, "rope.scaling.type", "none"),
    ("nemotron", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope.scaling.factor", 2),
    (
        "phi3",
        {
            "rope_scaling": {
                "rope_type": "longrope",
                "long_factor": [2.0] * 4,
                "short_factor": [1.0] * 4,
                "factor": 8.0,
            },
            "original_max_position_embeddings": 16,
        },
        "rope.scaling.attn_factor",
        (1 + np.log(8) / np.log(16)) ** 0.5,
    ),
]
"""Of settings of RoPE in several places those count that count in transformers."""


@pytest.mark.parametrize(
    ("name", "settings", "key", "value"),
    [
        (
            "cohere2",
            {"rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 0.5}},
            "rope.dimension_count",
            8,
        ),
        (
            "gemma3",
            {"layer_types": ["full_attention", "sliding_attention"]},
            "attention.sliding_window_pattern",
            [0, 1],
        ),
        ("gemma3", {"layer_types": None, "sliding_window_pattern": 2}, "attention.sliding_window_pattern", [1, 0]),
        ("granitehybrid", {"layer_types": ["linear_attention", "full_attention"]}, "attention.head_count_kv", [0, 2]),
        ("granitehybrid-attention", {"position_embedding_type": "nope"}, "rope.scaling.finetuned", False),
        ("granitehybrid-dense", {"intermediate_size": 40}, "feed_forward_length", 16),
        ("ministral3", {"sliding_window": 12}, "attention.sliding_window", 12),
        ("mpt", {"layer_norm_epsilon": 0.5}, "attention.layer_norm_epsilon", 0.5),
        (
            "minimax_m2",
            {"rotary_dim": None, "rope_parameters": {"partial_rotary_factor": 0.25}},
            "rope.dimension_count",
            4,
        ),
        ("minimax_m2", {"scoring_func": None}, "expert_gating_func", 2),
        ("starcoder2", {"layer_norm_epsilon": 0.5, "norm_epsilon": 0.25}, "attention.layer_norm_epsilon", 0.25),
        *ROPE_IN_SEVERAL_PLACES,
    ],
)
def test_a_setting_is_a_key_of_the_file(
    name: str, settings: dict[str, Any], key: str, value: Any, tmp_path: Path
) -> None:
    path = ggplug_models.convert(with_settings(name, tmp_path, **settings), tmp_path / "out.gguf")
    with GGUFReader(path) as reader:
        found = reader.metadata[f"{reader.metadata['general.architecture']}.{key}"]
    assert np.asarray(found).tolist() == (pytest.approx(value) if isinstance(value, float) else value)


@pytest.mark.parametrize("name", ["mistral", "mixtral", "ministral3", "starcoder2", "phi3"])
def test_a_token_does_not_matter_beyond_the_windows_of_all_blocks(name: str, tmp_path: Path) -> None:
    path = ggplug_models.convert(with_settings(name, tmp_path, sliding_window=12), tmp_path / "out.gguf")
    ids = list(range(10, 50))
    with ggplug_models.load(path, ["CPU"], pack=False) as model:
        logits = [model.session().decode({0: [first, *ids[1:]]}, ggplug_models.Outputs.ALL)[0] for first in (5, 6)]
    reach = 1 + 11 * model.n_layer
    assert np.array_equal(logits[0][reach:], logits[1][reach:])
    assert not np.array_equal(logits[0][1:reach], logits[1][1:reach])


def test_blocks_with_a_window_may_have_another_base(tmp_path: Path) -> None:
    bases = {f"{kind}_attention": {"rope_theta": base} for kind, base in (("full", 1e6), ("sliding", 1e3))}
    path = ggplug_models.convert(with_settings("olmo3", tmp_path, rope_parameters=bases), tmp_path / "out.gguf")
    with ggplug_models.load(path, ["CPU"], pack=False) as model:
        assert (model.rope.base, model.local_rope.base) == (1e6, 1e3)


def test_no_block_rotates_where_the_only_ones_that_would_have_no_window(tmp_path: Path) -> None:
    folder = with_settings("exaone4", tmp_path, sliding_window=12, layer_types=["full_attention"] * 4)
    logits = []
    for base in (100.0, 1e6):
        changed(folder, "config.json", rope_parameters={"rope_theta": base})
        path = ggplug_models.convert(folder, tmp_path / "out.gguf")
        with ggplug_models.load(path, ["CPU"], pack=False) as model:
            logits.append(model.session().decode({0: list(range(10, 40))})[0])
    assert np.array_equal(*logits)


def test_a_scale_that_is_switched_off_is_one(tmp_path: Path) -> None:
    path = ggplug_models.convert(with_settings("gemma3n", tmp_path, altup_correct_scale=False), tmp_path / "out.gguf")
    with GGUFReader(path) as reader:
        held = np.frombuffer(reader.data(reader.tensors["blk.1.altup_correct_scale.weight"]), np.float32)
    assert held.tolist() == [1.0] * len(held)


def test_experts_whose_inputs_are_columns_already_become_the_same_file(tmp_path: Path) -> None:
    folder = made("qwen3_vl_moe", tmp_path)
    rows = ggplug_models.convert(folder, tmp_path / "rows.gguf")
    content: dict[str, tuple[str, Any, bytes]] = {}
    for name, shape in expected("qwen3_vl_moe")["weights"].items():
        values = formula.weights(name, shape)
        values = values.swapaxes(1, 2) if ".experts." in name else values
        content[name] = ("BF16", values.shape, formula.stored(np.ascontiguousarray(values), "BF16"))
    formula.save(folder / "model.safetensors", content)
    assert ggplug_models.convert(folder, tmp_path / "columns.gguf").read_bytes() == rows.read_bytes()


@pytest.mark.parametrize("setting", ["attn_logit_softcapping", "final_logit_softcapping"])
def test_gemma2_without_a_cap_is_refused(setting: str, tmp_path: Path) -> None:
    folder = made("gemma2", tmp_path)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), setting: None}), "utf-8")
    with pytest.raises(ModelError, match=rf"config\.json: {setting} must be a number: .* capped, got None"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


@pytest.mark.parametrize(
    ("name", "settings", "key"),
    [
        ("t5", {"scale_decoder_outputs": False}, 1.0),
        ("t5", {"model_type": "mt5"}, 1.0),
        ("t5", {"model_type": "umt5"}, None),
        ("t5", {}, None),
        ("flan-t5", {"scale_decoder_outputs": True}, 32**-0.5),
        ("flan-t5", {"model_type": "mt5"}, None),
        ("flan-t5", {}, None),
    ],
)
def test_the_outputs_of_t5s_decoder_are_scaled_as_in_transformers(
    name: str, settings: dict[str, Any], key: float | None, tmp_path: Path
) -> None:
    path = ggplug_models.convert(with_settings(name, tmp_path, **settings), tmp_path / "out.gguf")
    with GGUFReader(path) as reader:
        assert reader.metadata.get("t5.logit_scale") == (None if key is None else pytest.approx(key))


def test_the_logits_of_t5_are_scaled_as_the_file_says(tmp_path: Path) -> None:
    logits = []
    for scaled in (False, True):
        folder = with_settings("flan-t5", tmp_path / str(scaled), scale_decoder_outputs=scaled)
        path = ggplug_models.convert(folder, tmp_path / f"{scaled}.gguf")
        with ggplug_models.load(path, ["CPU"], pack=False) as model, model.session() as session:
            session.encode([5, 6, 7])
            logits.append(session.decode({0: [0, 9]}, ggplug_models.Outputs.ALL)[0])
    np.testing.assert_allclose(logits[1], 32**-0.5 * logits[0], rtol=1e-4, atol=1e-6)


def test_deepseek_v2_judges_a_group_by_its_best_expert(tmp_path: Path) -> None:
    settings = {"n_group": 2, "topk_group": 1, "topk_method": "group_limited_greedy"}
    path = ggplug_models.convert(with_settings("deepseek2", tmp_path, **settings), tmp_path / "out.gguf")
    with ggplug_models.load(path, ["CPU"], pack=False) as model:
        assert (model.experts.n_groups, model.experts.n_of_group) == (2, 1)


def test_square_matrices_of_gpt_oss_have_inputs_as_rows() -> None:
    """Published sizes: hidden_size and intermediate_size are 2880."""
    content = {"model_type": "gpt_oss", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    family, config = family_of(Values(content, where="config.json"))
    change = family.targets("model.layers.0.mlp.experts.down_proj", config)[0].change
    assert change is not None
    values = np.arange(4 * 32 * 32, dtype=np.float32).reshape(4, 32, 32)
    np.testing.assert_array_equal(change.apply(values, config), values.swapaxes(-1, -2))


def test_matrices_of_experts_whose_rows_may_be_either_are_refused(tmp_path: Path) -> None:
    content = json.loads((made("qwen3_vl_moe", tmp_path) / "config.json").read_text("utf-8"))
    family, config = family_of(Values(content, where="config.json"))
    for name, shape in (("gate_up_proj", (4, 48, 32)), ("gate_up_proj", (4, 32, 48)), ("down_proj", (4, 24, 32))):
        family_of_one = family.targets(f"model.layers.0.mlp.experts.{name}", config)
        assert all(each.change is not None and each.change.shape(shape, config) for each in family_of_one)
    for name in ("gate_up_proj", "down_proj"):
        change = family.targets(f"model.layers.0.mlp.experts.{name}", config)[0].change
        assert change is not None
        with pytest.raises(ModelError, match=r"hidden_size must be other than .* \(32\), whose rows may be inputs or"):
            change.shape((4, 32, 32), config)


def test_yarn_without_rounding_is_refused_unless_it_interpolates_between_the_ends(tmp_path: Path) -> None:
    folder = with_settings("qwen3", tmp_path, rope_parameters={**YARN, "truncate": False})
    with pytest.raises(ModelError, match=r"config\.json: rope_parameters: truncate must be true"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")
    changed(folder, "config.json", rope_parameters={**YARN, "truncate": False, "beta_slow": 1e-8})
    ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_gpt_oss_rounds_whatever_its_settings_say_as_llama_cpp_does(tmp_path: Path) -> None:
    paths = []
    for rounds in (False, True):
        folder = with_settings("gpt-oss", tmp_path / str(rounds), rope_parameters={**YARN, "truncate": rounds})
        paths.append(ggplug_models.convert(folder, tmp_path / f"{rounds}.gguf"))
    assert paths[0].read_bytes() == paths[1].read_bytes()
