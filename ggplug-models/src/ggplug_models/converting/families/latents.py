"""Decoders with latent attention."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ggplug_models.converting import latent, rope
from ggplug_models.converting.delta_net import PLAIN_DECAY
from ggplug_models.converting.family import SCALINGS, Change, Family, Tensors, first_integer
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.rows import (
    AHEAD,
    BIAS_OF_CHOICE,
    EXPERTS,
    GLM_SPECIAL,
    GLM_SPLITTING,
    INTEGERS,
    LAYER,
    MLP,
    NORMS,
    RMS,
    ROUTED,
    SHARED_EXPERTS,
    SIGMOID,
    SPARSE_EXPERTS,
    decoder,
    for_blocks,
    layers,
    of_blocks,
    routing,
)
from ggplug_models.metadata.values import Values


def _deepseek(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys; without experts, all blocks are dense, and files still say the width of an expert."""
    n = config.integer("n_routed_experts", None)
    found = {
        **rope.keys(config),
        **latent.keys(config),
        "leading_dense_block_count": config.integer("num_hidden_layers") if n is None else 0,
        "expert_feed_forward_length": first_integer(config, "moe_intermediate_size|intermediate_size"),
        "expert_shared_count": 0,
        **(SIGMOID if config.text("model_type", "") in ("deepseek_v3", "deepseek_v32") else {}),
        **routing(config),
        "vocab_size": config.integer("vocab_size"),
    }
    if not found.get("expert_weights_norm", True):
        del found["expert_weights_norm"]
    if config.text("model_type", "") == "deepseek_v2" and config.integer("n_group", 1) > 1:
        found["expert_group_best_count"] = 1  # a key of ggplug's: llama.cpp adds up two in all models
    return found | _growth(config)


def _growth(config: Values) -> dict[str, Any]:
    """The key of by how much YaRN makes scores grow; llama.cpp's graph lets them grow with any scaling."""
    scaling = rope.settings(config)
    kind, grows = scaling.text("rope_type"), "GGUF files of models with latent attention make scores grow with it"
    if kind == "linear" and scaling.number("factor") != 1:
        raise scaling.refused("factor", f"1 where the scaling is linear: {grows}")
    if kind != "yarn":
        return {}
    of_all = scaling.number("mscale_all_dim", 0.0, at_least=0)
    if not of_all:
        raise scaling.refused("mscale_all_dim", f"a positive number where the scaling is YaRN's: {grows}")
    if scaling.number("mscale", None) != of_all:
        raise scaling.refused("mscale", f"mscale_all_dim ({of_all:g}): GGUF files have one key for both")
    return {"rope.scaling.yarn_log_multiplier": 0.1 * of_all}


def _check_no_growth(config: Values) -> None:
    """Raises ModelError if YaRN makes scores grow, where files have no key for it and networks let none grow."""
    scaling = rope.settings(config)
    if scaling.number("mscale_all_dim", 0.0):
        raise scaling.refused("mscale_all_dim", "0: GGUF files of these models have no key for it")


def _last_blocks(name: str, config: Values) -> str:
    """The name of a tensor; those of blocks after the last, which guess further tokens, begin with ``ahead.``."""
    match = re.match(r"model\.layers\.(\d+)\.", name)
    n, ahead = config.integer("num_hidden_layers"), config.integer("num_nextn_predict_layers", 1, at_least=0)
    return f"ahead.{name}" if match and n <= int(match[1]) < n + ahead else name


_OPTIONAL = {f"{name.rstrip('?')}?": key for name, key in ROUTED.items()}
_ROWS = (*latent.ATTENTION, *MLP, *NORMS, *EXPERTS, *SHARED_EXPERTS, *BIAS_OF_CHOICE)
_DEEPSEEK = Family(
    "deepseek2",
    decoder(*_ROWS),
    {**INTEGERS, **_OPTIONAL},
    RMS,
    _deepseek,
    names=_last_blocks,
    unused=r"ahead\..*",
)


def _glm_dsa(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of attention to the positions that an indexer chooses."""
    found = _deepseek(config, folder)
    part = rope.settings(config).number("partial_rotary_factor", 1.0, at_least=0)
    ahead = config.integer("num_nextn_predict_layers", None, at_least=0)
    if "indexer_types" in config:
        kinds = for_blocks(config, "indexer_types", ("full", "shared"))
        found["attention.indexer.types"] = [each == "full" for each in kinds]
    return {
        **found,
        "rope.dimension_count": int(config.integer("qk_rope_head_dim") * part),
        "attention.indexer.head_count": config.integer("index_n_heads"),
        "attention.indexer.key_length": config.integer("index_head_dim"),
        "attention.indexer.top_k": config.integer("index_topk"),
        **(
            {}
            if ahead is None
            else {"block_count": config.integer("num_hidden_layers") + ahead, "nextn_predict_layers": ahead}
        ),
    }


def _mistral4(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys; llama.cpp's converter leaves out by how much queries grow beyond the original context."""
    found, growth = _deepseek(config, folder), rope.settings(config).number("llama_4_scaling_beta", None, at_least=0)
    return found if growth is None else found | {"attention.temperature_scale": growth}


_INDEXER = layers(
    {
        "self_attn.indexer.k_norm": "indexer.k_norm",
        "self_attn.indexer.weights_proj": "indexer.proj",
        "self_attn.indexer.ws_proj": "indexer.proj",
        "self_attn.indexer.wk": "indexer.attn_k",
        "self_attn.indexer.wq_b": "indexer.attn_q_b",
    }
)


def _plm(config: Values, folder: Folder) -> dict[str, Any]:
    _check_no_growth(config)
    found = latent.keys(config)
    return {
        **rope.keys(config),
        "vocab_size": config.integer("vocab_size"),
        "attention.kv_lora_rank": found["attention.kv_lora_rank"],
        "attention.key_length": found["attention.key_length_mla"],
        "attention.value_length": found["attention.value_length_mla"],
        "rope.dimension_count": found["rope.dimension_count"],
    }


def _minicpm3(config: Values, folder: Folder) -> dict[str, Any]:
    _check_no_growth(config)
    found = latent.keys(config)
    return {
        **rope.base(config),
        "vocab_size": config.integer("vocab_size"),
        "attention.q_lora_rank": config.integer("q_lora_rank"),
        "attention.kv_lora_rank": config.integer("kv_lora_rank"),
        "attention.key_length": found["attention.key_length_mla"],
        "attention.value_length": found["attention.value_length_mla"],
        "rope.dimension_count": found["rope.dimension_count"],
    }


def _kimi_linear(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys; blocks with latent attention are listed from 1, the others have a delta net."""
    linear = config.inner("linear_attn_config")
    listed, n = linear.values.get("full_attn_layers"), config.integer("num_hidden_layers")
    if not isinstance(listed, list) or not all(type(each) is int and 0 < each <= n for each in listed):
        raise linear.refused("full_attn_layers", f"an array of integers from 1 to {n}")
    found = latent.keys(config)
    del found["attention.value_length"]
    return {
        **rope.keys(config),
        **found,
        **({"attention.value_length": config.integer("head_dim")} if "head_dim" in config else {}),
        **routing(config),
        "attention.head_count_kv": of_blocks(1, (number in listed for number in range(1, n + 1))),
        "vocab_size": config.integer("vocab_size"),
        "ssm.conv_kernel": linear.integer("short_conv_kernel_size"),
        "kda.head_dim": linear.integer("head_dim"),
    }


_LONG_KERNEL = Change(
    lambda values, config: values.reshape(1, len(values), 1, values.shape[-1]),
    lambda shape, config: (1, shape[0], 1, shape[-1]),
)
_DELTA = (
    *layers({f"self_attn.{name}_proj": f"ssm_{name}" for name in ("f_a", "f_b", "g_a", "g_b")}),
    *layers({f"self_attn.{name}_conv1d": f"ssm_conv1d_{name}" for name in "qkv"}, _LONG_KERNEL),
    *layers({f"self_attn.{name}_proj": f"attn_{name}" for name in "kv"}),
    *layers({"self_attn.b_proj": "ssm_beta", "self_attn.o_norm": "ssm_norm"}),
    Tensors(LAYER + r"self_attn\.A_log", r"blk.\1.ssm_a", PLAIN_DECAY),
    Tensors(LAYER + r"self_attn\.dt_bias", r"blk.\1.ssm_dt.bias"),
)
_KIMI_LINEAR = Family(
    "kimi-linear",
    decoder(
        *latent.ATTENTION,
        *_DELTA,
        *MLP,
        *NORMS,
        *SPARSE_EXPERTS,
        *layers(
            {f"block_sparse_moe.shared_experts.{name}_proj": f"ffn_{name}_shexp" for name in ("gate", "up", "down")}
        ),
        *BIAS_OF_CHOICE,
    ),
    {
        **{
            name: key for name, key in INTEGERS.items() if not key.endswith("head_count_kv") and key != "context_length"
        },
        "max_position_embeddings|model_max_length?": "context_length",
        **ROUTED,
    },
    RMS,
    _kimi_linear,
)


_SPARSE = Family("deepseek32", decoder(*_ROWS, *_INDEXER, *AHEAD), {**INTEGERS, **_OPTIONAL}, RMS, _glm_dsa)

FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), _DEEPSEEK),
    "deepseek_v32": _SPARSE,
    "mistral4": Family(
        "mistral4",
        decoder(
            *_ROWS,
            Tensors(LAYER + r"mlp\.experts\.gate_up_proj", r"blk.\1.ffn_gate_up_exps.weight"),
            Tensors(LAYER + r"mlp\.experts\.down_proj", r"blk.\1.ffn_down_exps.weight"),
        ),
        {**INTEGERS, **_OPTIONAL},
        RMS,
        _mistral4,
        scalings=("yarn",),
    ),
    "kimi_linear": _KIMI_LINEAR,
    "glm_moe_dsa": replace(_SPARSE, architecture="glm-dsa", special=GLM_SPECIAL, splitting=GLM_SPLITTING),
    "plm": Family("plm", decoder(*latent.JOINED, *MLP[1:], *NORMS), INTEGERS, RMS, _plm),
    "minicpm3": Family(
        "minicpm3",
        decoder(*latent.JOINED, *MLP, *NORMS),
        INTEGERS,
        RMS,
        _minicpm3,
        scalings=(*SCALINGS, *rope.LONG),
    ),
}
