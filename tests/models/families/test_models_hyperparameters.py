"""Hyperparameters that a graph cannot be made of are refused by their key; absent ones have llama.cpp's defaults."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from oracles.packed import model_file, with_metadata

import ggplug_models
from ggplug.errors import ModelError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug.types import RopeMode
from ggplug_models.architectures.deepseek import DeepSeek2
from ggplug_models.layers.attention import Heads
from ggplug_models.layers.experts import Experts
from ggplug_models.layers.rope import Rope
from ggplug_models.metadata.hyperparameters import Hyperparameters

GOOD: dict[str, Any] = {"embedding_length": 64, "attention.head_count": 4, "context_length": 512}
MIXED: dict[str, Any] = {"expert_count": 8, "expert_used_count": 2, "feed_forward_length": 96}
YARN: dict[str, Any] = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}


def hyperparameters(**changed: Any) -> Hyperparameters:
    return Hyperparameters({"general.architecture": "llama", **{f"llama.{key}": v for key, v in changed.items()}})


def rope(**changed: Any) -> Rope:
    return Rope.of(hyperparameters(**{**GOOD, **changed}), RopeMode.NORMAL, 16)


def with_keys(name: str, path: Path, **changed: Any) -> Path:
    """A recorded model with other values under the keys of its family; None: without the key."""
    with GGUFReader(model_file(name)) as reader:
        family = reader.metadata["general.architecture"]
    return with_metadata(model_file(name), path, {f"{family}.{key}": value for key, value in changed.items()})


def logits(path: Path) -> npt.NDArray[np.float32]:
    """Of the tokens of one text."""
    with ggplug_models.load(path, ["CPU"], pack=False) as model:
        return model.session().decode({0: list(range(5, 30))}, ggplug_models.Outputs.ALL)[0]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"rope.dimension_count": 18}, "rope.dimension_count must be an integer from 1 to 16, got 18"),
        ({"rope.dimension_count": 2**31 - 2}, "rope.dimension_count must be an integer from 1 to 16"),
        ({"rope.dimension_count": 15}, "rope.dimension_count must be even"),
        ({"rope.freq_base": 0.0}, "rope.freq_base must be a number from 1e-30 to 1e+30, got 0.0"),
        ({"rope.freq_base": 1e-45}, "rope.freq_base must be"),
        ({"rope.freq_base": 1e300}, "rope.freq_base must be"),
        ({"rope.freq_base": 10**400}, "rope.freq_base must be"),
        ({"rope.freq_base": math.nan}, "rope.freq_base"),
        ({"rope.scaling.factor": 1e-35}, "rope.scaling.factor must be 0, or a number from 1e-30 to 1e+30"),
        ({"rope.scaling.factor": 1e35}, "rope.scaling.factor must be"),
        ({"rope.scale_linear": 1e-35}, "rope.scale_linear must be 0, or"),
        ({**YARN, "rope.scaling.factor": math.exp(-10)}, "rope.scaling.factor must be a number whose magnitude"),
        (
            {**YARN, "rope.scaling.factor": 2.0, "rope.scaling.yarn_log_multiplier": -10 / math.log(2)},
            "rope.scaling.yarn_log_multiplier must be a number whose magnitude",
        ),
        ({**YARN, "rope.scaling.yarn_log_multiplier": 1e308}, "rope.scaling.yarn_log_multiplier must be a finite"),
        ({**YARN, "rope.scaling.yarn_ext_factor": 1e300}, "rope.scaling.yarn_ext_factor must be a finite number"),
        ({**YARN, "rope.scaling.attn_factor": 1e300}, "rope.scaling.attn_factor must be a finite number"),
        ({**YARN, "rope.scaling.yarn_beta_fast": 0.0}, "rope.scaling.yarn_beta_fast must be"),
        ({**YARN, "rope.scaling.yarn_beta_slow": -1.0}, "rope.scaling.yarn_beta_slow must be"),
        ({**YARN, "rope.freq_base": 1.0}, "rope.freq_base must be more than 1 with YaRN"),
    ],
)
def test_a_rotation_that_cannot_be_computed_is_refused_by_its_key(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=re.escape(f"llama.{named}")) as refused:
        rope(**changed)
    assert refused.value.wanted is not None


@pytest.mark.parametrize("factor", [5e-324, 1e-300, 0.0, None])
@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_a_factor_that_float32_has_no_digits_for_is_none(kind: str, factor: float | None) -> None:
    assert rope(**{"rope.scaling.type": kind, "rope.scaling.factor": factor}).scale == 1.0


def test_absent_keys_of_rotations_have_the_defaults_of_llama_cpp() -> None:
    found = rope()
    assert (found.n_dims, found.base, found.scale, found.n_ctx_orig) == (16, 10000.0, 1.0, 512)
    assert (found.extrapolation, found.magnitude, found.beta_fast, found.beta_slow) == (0.0, 1.0, 32.0, 1.0)
    assert rope(**{"rope.scaling.type": "yarn"}).extrapolation == 1.0


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"expert_used_count": 9}, "expert_used_count must be an integer from 1 to 8, got 9"),
        ({"expert_used_count": None}, "expert_used_count is missing"),
        ({"expert_group_count": 3}, "expert_group_count must be a divisor of llama.expert_count (8)"),
        (
            {"expert_group_count": 8},
            "expert_group_count must be a divisor of llama.expert_count (8), with 2 experts or more",
        ),
        ({"expert_group_count": -1}, "expert_group_count must be an integer of at least 0"),
        ({"expert_group_count": 4, "expert_group_used_count": 0}, "expert_group_used_count must be an integer"),
        ({"expert_group_count": 4, "expert_group_used_count": 5}, "expert_group_used_count must be an integer"),
        (
            {"expert_group_count": 4, "expert_group_used_count": 1, "expert_used_count": 3},
            "expert_used_count must be an integer from 1 to 2, got 3",
        ),
        ({"expert_weights_scale": 1e300}, "expert_weights_scale must be a finite number"),
    ],
)
def test_experts_that_do_not_go_together_are_refused_by_their_key(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=re.escape(f"llama.{named}")):
        Experts.of(hyperparameters(**{**MIXED, **changed}))


NEEDED = [
    "arctic",
    "smallthinker",
    "llama4",
    "bailingmoe2",
    "nemotron_h_moe",
    "laguna",
    "deepseek4",
    "step35",
    "phimoe",
    "grovemoe",
]


def test_experts_that_a_family_needs_are_those_that_a_file_describes() -> None:
    described = hyperparameters(**MIXED)
    assert Experts.needed(described, normalized=False) == Experts.of(described, normalized=False)
    with pytest.raises(ModelError, match=r"llama\.expert_count must be an integer of at least 1"):
        Experts.needed(hyperparameters(**GOOD))


@pytest.mark.parametrize("name", NEEDED)
def test_a_file_without_the_experts_that_its_family_needs_is_refused_by_the_key(name: str, tmp_path: Path) -> None:
    path = with_keys(name, tmp_path / "dense.gguf", expert_count=None)
    with pytest.raises(ModelError, match=rf"{name}\.expert_count must be an integer of at least 1"):
        ggplug_models.load(path, ["CPU"])


@pytest.mark.parametrize("groups", [{}, {"count": 0}, {"count": 0, "used_count": 0}])
def test_no_groups_of_experts_is_one_group(groups: dict[str, Any]) -> None:
    found = Experts.of(hyperparameters(**MIXED, **{f"expert_group_{key}": value for key, value in groups.items()}))
    assert found is not None
    assert (found.n_groups, found.n_groups_used, found.scale) == (1, 1, 1.0)


@pytest.mark.parametrize("count", [0, np.array([4, 0, 4]), np.array([4, -2, 4]), 3])
def test_attention_without_keys_is_refused_by_its_key(count: Any) -> None:
    with pytest.raises(ModelError, match=r"llama\.attention\.head_count_kv must be"):
        Heads.of(hyperparameters(**GOOD, **{"attention.head_count_kv": count}), 3)


def test_a_family_may_have_blocks_that_do_not_attend() -> None:
    heads = Heads.of(hyperparameters(**GOOD, **{"attention.head_count_kv": np.array([2, 0, 4])}), 3, all_attend=False)
    assert [each.n_head_kv for each in heads] == [2, 0, 4]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("qwen3.attention.clamp_kqv", -1.0),
        ("qwen3.attention.clamp_kqv", math.nan),
        ("qwen3.rope.dimension_count", 64),
        ("qwen3.rope.freq_base", 0.0),
        ("qwen3.attention.head_count_kv", 0),
        ("qwen3.block_count", 10**9),
        ("deepseek2-ocr.rope.scaling.type", "yarn"),
        ("deepseek4.attention.compress_ratios", np.array([0, 4])),
        ("deepseek4.attention.compress_ratios", np.array([0, 4, 8])),
        ("deepseek4.attention.compress_ratios", 4),
        ("deepseek4.attention.head_count_kv", 2),
        ("deepseek4.attention.indexer.key_length", 8),
        ("deepseek4.attention.output_group_count", 3),
        ("deepseek4.expert_gating_func", 2),
        ("deepseek4.hyper_connection.count", 2),
        ("deepseek32.attention.indexer.key_length", 2),
        ("grovemoe.experts_per_group", 3),
        ("step35.rope.dimension_count", 6),
        ("step35.rope.scaling.type", "longrope"),
        ("glm-dsa.attention.indexer.types", np.array([False, True])),
    ],
)
def test_the_error_of_a_file_names_the_key(tmp_path: Path, key: str, value: Any) -> None:
    family, _, changed = key.partition(".")
    path = with_keys(family, tmp_path / "odd.gguf", **{changed: value})
    with pytest.raises(ModelError, match=re.escape(f"{key} must be")) as refused:
        ggplug_models.load(path, ["CPU"])
    assert refused.value.got is not None
    assert refused.value.wanted is not None


@pytest.mark.parametrize("value", [["a"] * 3, np.array([math.nan] * 3), np.array([1, 0]), [True, "a", False]], ids=str)
def test_what_is_no_truth_value_of_a_block_is_refused(value: Any) -> None:
    with pytest.raises(ModelError, match=r"llama\.attention\.sliding_window_pattern must be an array of 3 booleans"):
        hyperparameters(**{"attention.sliding_window_pattern": value}).flags("attention.sliding_window_pattern", 3)


def test_glm4_files_with_sections_of_positions_have_the_rows_of_queries_in_halves(tmp_path: Path) -> None:
    """As llama.cpp's converter writes GLM 4.1V: pairs that were adjacent are halves apart."""
    source, out = model_file("glm4"), tmp_path / "sections.gguf"
    with GGUFReader(source) as reader, GGUFWriter(out) as writer:
        writer.add_metadata_of(reader)
        writer.add("glm4.rope.dimension_sections", np.array([2, 1, 1, 0], np.int32))
        width, rotated = (reader.metadata[f"glm4.{key}"] for key in ("attention.key_length", "rope.dimension_count"))
        for name, info in reader.tensors.items():
            rows = np.asarray(reader.data(info))
            if re.search(r"attn_[qk]\.(weight|bias)", name):
                heads = rows.reshape(-1, width, rows.size // info.ne[max(0, len(info.ne) - 1)])
                first = heads[:, :rotated]
                rows = np.concatenate([first[:, ::2], first[:, 1::2], heads[:, rotated:]], axis=1).reshape(rows.shape)
            writer.add_tensor(name, rows, info.type, info.ne)
        writer.write()
    np.testing.assert_allclose(logits(out), logits(source), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "n_layer"), [("gpt-oss", 2), ("llama4", 4)])
def test_blocks_with_a_window_rotate_with_the_base_that_the_file_has_for_them(
    name: str, n_layer: int, tmp_path: Path
) -> None:
    windows = {"attention.sliding_window_pattern": np.ones(n_layer, bool)}  # all blocks that rotate have one
    one = with_keys(name, tmp_path / "one.gguf", **windows, **{"rope.freq_base": 2000.0})
    two = with_keys(name, tmp_path / "two.gguf", **windows, **{"rope.freq_base_swa": 2000.0})
    np.testing.assert_array_equal(logits(two), logits(one))
    assert not np.allclose(logits(two), logits(model_file(name)), rtol=0.1)


@pytest.mark.parametrize(
    ("n_layer", "n_vocab", "said", "gating"),
    [(47, 154880, None, 2), (48, 154880, 0, 2), (47, 154880, 1, 1), (47, 129280, None, 1), (61, 154880, None, 1)],
)
def test_the_first_files_of_glm_4_7_flash_have_sigmoid_scores(
    n_layer: int, n_vocab: int, said: int | None, gating: int, tmp_path: Path
) -> None:
    with GGUFReader(model_file("deepseek3")) as reader:
        found = {**reader.metadata, "deepseek2.block_count": n_layer, "deepseek2.vocab_size": n_vocab}
    del found["deepseek2.expert_gating_func"]
    found |= {} if said is None else {"deepseek2.expert_gating_func": said}
    model = DeepSeek2.__new__(DeepSeek2)
    model.read(Hyperparameters(found))
    assert model.experts is not None
    assert model.experts.gating == gating
