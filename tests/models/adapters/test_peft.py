"""LoRA adapters that PEFT saved, as GGUF files.  The wanted matrices are what llama.cpp's converter writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from paths import DATA
from safetensors.numpy import load_file, save_file

from ggplug.cli.app import app
from ggplug.errors import ModelError
from ggplug.gguf import GGUFReader
from ggplug_models.adapters.lora import LoraFile
from ggplug_models.converting.adapter import convert_adapter

BASE = DATA / "folders" / "llama2"
CONFIG = json.loads((BASE / "config.json").read_text())
N, HEADS, RANK = CONFIG["hidden_size"], CONFIG["num_attention_heads"], 3
LAYER = "base_model.model.model.layers.1"


def saved(folder: Path, *, settings: dict[str, Any] | None = None, **names: tuple[int, int]) -> Path:
    """A folder as PEFT writes it; ``names``: extents (out, in) of the weights of a layer that are changed."""
    folder.mkdir()
    random = np.random.default_rng(3)
    tensors = {}
    for name, (n_out, n_in) in names.items():
        tensors[f"{LAYER}.{name.replace('__', '.')}.lora_A.weight"] = random.standard_normal((RANK, n_in), np.float32)
        tensors[f"{LAYER}.{name.replace('__', '.')}.lora_B.weight"] = random.standard_normal((n_out, RANK), np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "lora_alpha": 12, "r": RANK} | (settings or {}))
    )
    return folder


def test_matrices_have_llama_cpps_names_and_order_of_rows(tmp_path: Path) -> None:
    folder = saved(tmp_path / "peft", self_attn__q_proj=(N, N), mlp__down_proj=(N, CONFIG["intermediate_size"]))
    convert_adapter(folder, BASE, tmp_path / "adapter.gguf")
    theirs = load_file(folder / "adapter_model.safetensors")
    with GGUFReader(tmp_path / "adapter.gguf") as found:
        assert found.metadata["general.type"] == "adapter"
        assert found.metadata["general.architecture"] == "llama"
        assert found.metadata["adapter.lora.alpha"] == 12
        q = theirs[f"{LAYER}.self_attn.q_proj.lora_B.weight"]
        paired = q.reshape(HEADS, 2, N // HEADS // 2, RANK).swapaxes(1, 2).reshape(N, RANK)
        np.testing.assert_array_equal(found.array("blk.1.attn_q.weight.lora_b"), paired)
        for ours, name in (
            ("attn_q.weight.lora_a", "self_attn.q_proj.lora_A"),
            ("ffn_down.weight.lora_b", "mlp.down_proj.lora_B"),
        ):
            np.testing.assert_array_equal(found.array(f"blk.1.{ours}"), theirs[f"{LAYER}.{name}.weight"])
        assert len(found.tensors) == 4


def test_the_command_line_converts_an_adapter(tmp_path: Path) -> None:
    folder = saved(tmp_path / "peft", self_attn__q_proj=(N, N))
    command = ["convert", str(folder), str(tmp_path / "adapter.gguf")]
    assert "--base" in CliRunner().invoke(app, command).output
    done = CliRunner().invoke(app, [*command, "--base", str(BASE)])
    assert done.exit_code == 0, done.output
    file = LoraFile(tmp_path / "adapter.gguf")
    file.check("llama", {"blk.1.attn_q.weight": (N, N)})
    assert file.factor("blk.1.attn_q.weight", 0.5) == 0.5 * 12 / RANK


@pytest.mark.parametrize(
    ("settings", "names", "said"),
    [
        ({"use_dora": True}, {"self_attn__q_proj": (N, N)}, "use_dora"),
        ({"bias": "all"}, {"self_attn__q_proj": (N, N)}, "bias"),
        ({"modules_to_save": ["lm_head"]}, {"self_attn__q_proj": (N, N)}, "modules_to_save"),
        ({}, {"self_attn__z_proj": (N, N)}, "z_proj"),
        ({}, {}, "is empty"),
        ({"peft_type": "LOHA"}, {}, "peft_type must be one of LORA"),
        ({"lora_bias": True}, {}, "lora_bias must be absent"),
        ({"alora_invocation_tokens": [1]}, {}, "alora_invocation_tokens must be absent"),
        ({"a_setting_of_tomorrow": 1}, {}, "a_setting_of_tomorrow must be absent"),
        ({"init_lora_weights": "pissa_niter_4"}, {}, "init_lora_weights must be a kind"),
        ({"lora_alpha": 0}, {"self_attn__q_proj": (N, N)}, "lora_alpha must be another number"),
    ],
)
def test_what_llama_cpps_format_does_not_hold_is_refused(
    tmp_path: Path, settings: dict[str, Any], names: dict[str, tuple[int, int]], said: str
) -> None:
    folder = saved(tmp_path / "peft", settings=settings, **names)
    with pytest.raises(ModelError, match=said):
        convert_adapter(folder, BASE, tmp_path / "adapter.gguf")
    assert not (tmp_path / "adapter.gguf").exists()


MODULE = f"{LAYER}.self_attn.o_proj.lora_"


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        (f"{MODULE}B.bias", np.ones((N, RANK)), "is no matrix of a LoRA adapter"),
        (f"{MODULE}A.other.weight", np.ones((RANK, N)), "is the second matrix A for blk.1.attn_output.weight"),
        (f"{MODULE}embedding_A", np.ones((RANK, N)), "is of another kind"),
        (f"{LAYER.replace('1', '9')}.self_attn.o_proj.lora_A.weight", np.ones((RANK, N)), "a block that the model"),
        (f"{MODULE}A.weight", np.ones((5, N)), "have the ranks 5 and 3"),
        (f"{MODULE}A.weight", np.full((RANK, N), np.nan), "a matrix of finite numbers"),
        (f"{MODULE}A.weight", np.ones(N), "a matrix of finite numbers"),
        (f"{MODULE}B.weight", np.ones((N, RANK), np.int64), "a matrix of finite numbers"),
        (f"{MODULE}A.weight", np.ones((RANK, N + 1)), rf"has the shape \[3, {N + 1}\]; the weight"),
        (f"{MODULE}B.weight", np.ones((N + 1, RANK)), rf"has the shape \[{N + 1}, 3\]; the weight"),
    ],
)
def test_matrices_that_do_not_belong_together_or_to_the_model_are_refused(
    tmp_path: Path, name: str, values: np.ndarray, said: str
) -> None:
    folder, base = saved(tmp_path / "peft", self_attn__o_proj=(N, N)), tmp_path / "base"
    tensors = load_file(folder / "adapter_model.safetensors")
    save_file(tensors | {name: values}, folder / "adapter_model.safetensors")
    base.mkdir()
    (base / "config.json").write_text((BASE / "config.json").read_text())
    save_file({"model.layers.1.self_attn.o_proj.weight": np.ones((N, N), np.float16)}, base / "model.safetensors")
    with pytest.raises(ModelError, match=said):
        convert_adapter(folder, base, tmp_path / "adapter.gguf")
    assert not (tmp_path / "adapter.gguf").exists()


@pytest.mark.parametrize("module", ["lm_head.lora_{}.weight", "model.embed_tokens.lora_embedding_{}"])
def test_an_adapter_of_one_of_two_tied_matrices_is_refused(module: str, tmp_path: Path) -> None:
    folder, base = saved(tmp_path / "peft", self_attn__o_proj=(N, N)), tmp_path / "base"
    n_vocab = json.loads((BASE / "config.json").read_text())["vocab_size"]
    of_head = "lm_head" in module
    sides = {"A": (RANK, N if of_head else n_vocab), "B": (n_vocab if of_head else N, RANK)}
    names = {f"base_model.model.{module.format(side)}": np.ones(shape, np.float32) for side, shape in sides.items()}
    save_file(names, folder / "adapter_model.safetensors")
    base.mkdir()
    config = json.loads((BASE / "config.json").read_text())
    for tied in (False, True):
        (base / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": tied}))
        if tied:
            with pytest.raises(ModelError, match="of a model whose token embeddings are its output matrix"):
                convert_adapter(folder, base, tmp_path / "adapter.gguf")
        else:
            convert_adapter(folder, base, tmp_path / "adapter.gguf")


def test_settings_that_peft_writes_for_a_plain_adapter_are_known(tmp_path: Path) -> None:
    # What save_pretrained of PEFT 0.17 writes for LoraConfig(r=3, lora_alpha=12, target_modules=["o_proj"]).
    settings = {
        "alpha_pattern": {},
        "auto_mapping": None,
        "base_model_name_or_path": "meta-llama/Llama-2-7b-hf",
        "bias": "none",
        "corda_config": None,
        "eva_config": None,
        "exclude_modules": None,
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "layer_replication": None,
        "layers_pattern": None,
        "layers_to_transform": None,
        "loftq_config": {},
        "lora_bias": False,
        "lora_dropout": 0.1,
        "megatron_config": None,
        "megatron_core": "megatron.core",
        "modules_to_save": None,
        "qalora_group_size": 16,
        "rank_pattern": {},
        "revision": None,
        "target_modules": ["o_proj"],
        "target_parameters": None,
        "task_type": "CAUSAL_LM",
        "trainable_token_indices": None,
        "use_dora": False,
        "use_qalora": False,
        "use_rslora": False,
    }
    folder = saved(tmp_path / "peft", settings=settings, self_attn__o_proj=(N, N))
    file = LoraFile(convert_adapter(folder, BASE, tmp_path / "adapter.gguf"))
    assert file.factor("blk.1.attn_output.weight", 1.0) == 12 / RANK


def test_a_rank_stabilised_adapter_acts_as_strongly_as_in_peft(tmp_path: Path) -> None:
    folder = saved(tmp_path / "peft", settings={"use_rslora": True}, self_attn__q_proj=(N, N))
    convert_adapter(folder, BASE, tmp_path / "adapter.gguf")
    with GGUFReader(tmp_path / "adapter.gguf") as found:
        assert found.metadata["adapter.lora.alpha"] / RANK == pytest.approx(12 / RANK**0.5)
