"""What ``config.json`` leaves out has the default of the model's class in transformers 5.23."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_models_convert_families import changed, made

import ggplug_models
from ggplug.errors import ModelError
from ggplug.gguf import GGUFReader
from ggplug_models.converting.families import family_of
from ggplug_models.metadata.values import Values


def metadata(folder: Path, tmp_path: Path) -> dict[str, Any]:
    with GGUFReader(ggplug_models.convert(folder, tmp_path / "out.gguf")) as reader:
        return reader.metadata


@pytest.mark.parametrize(
    ("name", "settings", "key", "value"),
    [
        ("afmoe", "score_func route_norm", "afmoe.expert_gating_func", 2),
        ("afmoe", "score_func route_norm", "afmoe.expert_weights_norm", True),
        ("apertus", "rope_parameters", "apertus.rope.freq_base", 12e6),
        ("cohere2moe", "expert_selection_fn", "cohere2moe.expert_gating_func", 1),
        ("cohere2moe", "norm_topk_prob", "cohere2moe.expert_weights_norm", True),
        ("cohere2moe", "sliding_window", "cohere2moe.attention.sliding_window", 4096),
        ("command-r", "rope_parameters", "command-r.rope.freq_base", 500000.0),
        ("deepseek3", "norm_topk_prob", "deepseek2.expert_weights_norm", True),
        ("deepseek3", "routed_scaling_factor", "deepseek2.expert_weights_scale", 2.5),
        ("deepseek32", "routed_scaling_factor", "deepseek32.expert_weights_scale", 2.5),
        ("ernie4_5", "rope_parameters", "ernie4_5.rope.freq_base", 500000.0),
        ("ernie4_5-moe", "rope_parameters", "ernie4_5-moe.rope.freq_base", 500000.0),
        ("exaone-moe", "norm_topk_prob", "exaone-moe.expert_weights_norm", True),
        ("exaone-moe", "routed_scaling_factor", "exaone-moe.expert_weights_scale", 2.5),
        ("exaone4", "sliding_window", "exaone4.attention.sliding_window", 4096),
        ("glm-dsa", "norm_topk_prob", "glm-dsa.expert_weights_norm", True),
        ("glm4moe", "norm_topk_prob", "glm4moe.expert_weights_norm", True),
        ("gpt-oss", "rope_parameters", "gpt-oss.rope.freq_base", 150000.0),
        ("gpt-oss", "rope_parameters", "gpt-oss.rope.scaling.factor", 32.0),
        ("hy_v3", "router_scaling_factor", "hy_v3.expert_weights_scale", 2.826),
        ("hy_v3", "rope_theta rope_parameters rope_scaling", "hy_v3.rope.freq_base", 11158840.0),
        ("lfm2", "rope_parameters", "lfm2.rope.freq_base", 1e6),
        ("lfm2moe", "rope_parameters", "lfm2moe.rope.freq_base", 1e6),
        ("llama4", "rope_parameters", "llama4.rope.freq_base", 500000.0),
        ("mellum", "sliding_window", "mellum.attention.sliding_window", 1024),
        ("mistral4", "norm_topk_prob", "mistral4.expert_weights_norm", True),
        ("mixtral", "rope_parameters", "llama.rope.freq_base", 1e6),
        ("nemotron_h_moe", "norm_topk_prob", "nemotron_h_moe.expert_weights_norm", True),
        ("olmo3", "rope_parameters", "olmo2.rope.freq_base", 500000.0),
        ("phi2", "rope_parameters", "phi2.rope.dimension_count", 4),
        ("qwen3_moe", "norm_topk_prob", "qwen3moe.expert_weights_norm", False),
        ("smollm3", "rope_parameters", "smollm3.rope.freq_base", 2e6),
        ("stablelm", "use_parallel_residual", "stablelm.use_parallel_residual", False),
    ],
)
def test_a_setting_that_is_left_out_is_its_class_default(
    name: str, settings: str, key: str, value: Any, tmp_path: Path
) -> None:
    folder = made(name, tmp_path)
    changed(folder, "config.json", **dict.fromkeys(settings.split()))
    assert metadata(folder, tmp_path)[key] == pytest.approx(value)


@pytest.mark.parametrize(
    ("name", "setting"), [("falcon-h1", "mamba_norm_before_gate"), ("gemma2", "query_pre_attn_scalar")]
)
def test_a_default_that_the_network_does_not_follow_is_refused(name: str, setting: str, tmp_path: Path) -> None:
    folder = made(name, tmp_path)
    changed(folder, "config.json", mamba_rms_norm=True, head_dim=16, **{setting: None})
    with pytest.raises(ModelError, match=rf"{setting} must be "):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_the_blocks_of_lfm2_that_attend_may_be_a_list_of_numbers(tmp_path: Path) -> None:
    folder = made("lfm2", tmp_path)
    kinds = json.loads((folder / "config.json").read_text("utf-8"))["layer_types"]
    numbers = [number for number, kind in enumerate(kinds) if kind == "full_attention"]
    key = "lfm2.attention.head_count_kv"
    want = metadata(folder, tmp_path)[key].tolist()
    changed(folder, "config.json", layer_types=None, full_attn_idxs=numbers)
    assert numbers
    assert metadata(folder, tmp_path)[key].tolist() == want
    changed(folder, "config.json", full_attn_idxs=[len(kinds)])
    with pytest.raises(ModelError, match="full_attn_idxs must be an array of numbers of blocks"):
        metadata(folder, tmp_path)


def settings(**written: Any) -> dict[str, Any]:
    return dict(family_of(Values(written))[1].values)


def test_null_is_what_a_setting_says_and_no_scaling_is_none() -> None:
    found = settings(model_type="exaone4", sliding_window=None, rope_scaling=None)
    assert found["sliding_window"] is None
    assert settings(model_type="gpt_oss", rope_scaling=None)["rope_parameters"]["factor"] == 32


@pytest.mark.parametrize(
    ("kind", "older", "newer"),
    [
        ("mixtral", "num_experts", "num_local_experts"),
        ("gpt2", "hidden_size", "n_embd"),
        ("gpt_neox", "rotary_pct", "partial_rotary_factor"),
    ],
)
def test_another_name_of_a_setting_says_it_too(kind: str, older: str, newer: str) -> None:
    assert newer in settings(model_type=kind)
    assert newer not in settings(model_type=kind, **{older: 2})


def test_a_base_that_is_written_in_any_place_is_the_base() -> None:
    for written in (
        {"rope_theta": 5.0},
        {"rope_parameters": {"rope_theta": 5.0}},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5.0}},
    ):
        found = settings(model_type="mixtral", **written)
        assert {**found, **found.get("rope_scaling", {}), **found.get("rope_parameters", {})}["rope_theta"] == 5


def test_inner_settings_have_the_defaults_of_their_own_class() -> None:
    for kind, epsilon in (("mistral", 1e-6), ("ministral3", 1e-5)):
        found = settings(model_type="mistral3", text_config={"model_type": kind})
        assert found["rms_norm_eps"] == epsilon
    assert settings(model_type="gemma3", text_config={})["num_key_value_heads"] == 4


def test_what_is_tied_is_said_outside_of_the_parts_of_a_model() -> None:
    for outside, inside, tied in ((True, False, True), (False, True, True), (False, False, False)):
        written = {"tie_word_embeddings": outside, "text_config": {"tie_word_embeddings": inside}}
        assert settings(model_type="qwen3_vl", **written)["tie_word_embeddings"] is tied
