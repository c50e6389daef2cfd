"""Decoders whose blocks have their own numbers of heads and widths of networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ggplug_models.converting import rope
from ggplug_models.converting.family import (
    PAIRED_Q,
    Change,
    Family,
    Tensors,
    head_dim,
    n_heads,
    n_kv_heads,
    paired,
    part,
)
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.rows import INTEGERS, MLP, NORMS, RMS, WIDTHS, decoder, layer, layers, llama_keys
from ggplug_models.metadata.values import Values


def _each(config: Values, setting: str, n: int, kind: type | tuple[type, ...] = int) -> list[Any]:
    """A setting with a positive number for each block."""
    found = config.values.get(setting)
    if (
        not isinstance(found, list)
        or len(found) != n
        or not all(type(each) in (kind, int) and each > 0 for each in found)
    ):
        raise config.refused(setting, f"an array of {n} positive numbers")
    return found


def _openelm(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys; heads and the widths of networks are those of each block."""
    n, divisor, wide = (config.integer(name) for name in ("num_transformer_layers", "ffn_dim_divisor", "model_dim"))
    heads, groups = (np.array(_each(config, f"num_{name}_heads", n), np.int32) for name in ("query", "kv"))
    found = []
    for multiplier in _each(config, "ffn_multipliers", n, float):
        nearest = max(divisor, int(multiplier * wide + divisor / 2) // divisor * divisor)
        found.append(nearest + divisor * (nearest < 0.9 * multiplier * wide))
    return {
        "feed_forward_length": np.array(found, np.int32),
        "attention.head_count": heads,
        "attention.head_count_kv": groups,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": config.integer("head_dim"),
        **dict.fromkeys(WIDTHS, config.integer("head_dim")),
    }


def _attentions(config: Values) -> tuple[list[int], list[int]]:
    """The heads of each block, and those of keys and values: none where a block has a matrix in the place of attention.

    A block without attention has no heads at all.
    """
    heads, n = [], config.integer("num_hidden_layers")
    groups = []
    if "block_configs" not in config:
        found = config.values.get("num_key_value_heads_per_layer") or [n_kv_heads(config)] * n
        return [n_heads(config)] * n, _each(Values({**config.values, _GROUPS: found}, where=config.where), _GROUPS, n)
    for block in _blocks(config):
        of = block.inner("attention")
        together = of.integer("n_heads_in_group", None)
        if n_heads(config) % (together or 1):
            raise of.refused("n_heads_in_group", f"a divisor of num_attention_heads ({n_heads(config)})")
        linear = together is None and of.boolean("replace_with_linear", False)
        heads.append(n_heads(config) if together is not None or linear else 0)
        groups.append(0 if together is None else n_heads(config) // together)
    return heads, groups


_GROUPS = "num_key_value_heads_per_layer"


def _blocks(config: Values) -> Sequence[Values]:
    found, n = config.objects("block_configs"), config.integer("num_hidden_layers")
    if len(found) != n:
        raise config.refused("block_configs", f"an array of {n} objects")
    return found


def _deci(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of DeciLM, whose blocks differ in their groups of heads alone, or of Nemotron NAS."""
    found, (heads, groups) = llama_keys(config, folder), _attentions(config)
    if "block_configs" not in config:
        return found | ({"attention.head_count_kv": np.array(groups, np.int32)} if _GROUPS in config else {})
    width, widths = head_dim(config), []
    for block in _blocks(config):
        multiplier = block.inner("ffn").number("ffn_mult", 0.0, at_least=0)
        widths.append(-(-int(2 * multiplier * config.integer("hidden_size") / 3) // 256) * 256)
    return {
        **found,
        **dict.fromkeys(WIDTHS, width),
        "attention.head_count": np.array(heads, np.int32),
        "attention.head_count_kv": np.array(groups, np.int32),
        "feed_forward_length": np.array(widths, np.int32),
    }


def _keys_of(number: int) -> Change:
    return paired(lambda config: _attentions(config)[1][number])


_DECI = Family(
    "deci",
    decoder(
        layer("self_attn.q_proj", "attn_q", PAIRED_Q),
        Tensors(r"layers\.(\d+)\.self_attn\.k_proj\.(weight|bias)", r"blk.\1.attn_k.\2", _keys_of),
        *layers(
            {
                "self_attn.v_proj": "attn_v",
                "self_attn.o_proj": "attn_output",
                "self_attn.linear_attn": "attn_output",
            }
        ),
        *MLP,
        *NORMS,
    ),
    {key: to for key, to in INTEGERS.items() if not to.endswith("_kv")},
    RMS,
    _deci,
    unused=r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
    scalings=rope.LLAMA3,
)

FAMILIES: dict[str, Family] = {
    "deci": _DECI,
    "nemotron-nas": replace(
        _DECI, integers={key: to for key, to in _DECI.integers.items() if key != "intermediate_size"}
    ),
    "openelm": Family(
        "openelm",
        (
            Tensors(r"token_embeddings\.weight", "token_embd.weight"),
            Tensors(r"norm\.weight", "output_norm.weight"),
            Tensors(r"lm_head\.weight", "output.weight"),
            layer("ffn.proj_1", "ffn_gate", part(0)),
            layer("ffn.proj_1", "ffn_up", part(1)),
            *layers(
                {
                    "attn.qkv_proj": "attn_qkv",
                    "attn.out_proj": "attn_output",
                    "attn.q_norm": "attn_q_norm",
                    "attn.k_norm": "attn_k_norm",
                    "attn_norm": "attn_norm",
                    "ffn_norm": "ffn_norm",
                    "ffn.proj_2": "ffn_down",
                }
            ),
        ),
        {
            "max_context_length": "context_length",
            "model_dim": "embedding_length",
            "num_transformer_layers": "block_count",
        },
        {"rope_freq_constant": "rope.freq_base"},
        _openelm,
        prefix=r"(?:transformer\.)?",
        scalings=(),
    ),
}
