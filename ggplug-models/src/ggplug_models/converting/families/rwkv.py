"""RWKV 6 and 7."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from ggplug_models.converting.family import TRANSPOSED, Array, Change, Family, Tensors
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.rows import ANY, layer, layers
from ggplug_models.converting.state_space import MAX_POSITION
from ggplug_models.converting.tokens.token_files import WORLD
from ggplug_models.metadata.values import Values

_BLOCK = r"blocks\.(\d+)\."
_ORDER = "wkvrg"
"""The order of the parts of the stream in the tensor that has the weights of all of them."""


def _names(name: str, config: Values) -> str:
    """The name of a tensor; weights of parts of the stream end with their place in the common tensor."""
    return re.sub(r"\.attention\.time_maa_([wkvrg])$", lambda match: f".attention.mixed.{_ORDER.index(match[1])}", name)


def _keys(config: Values, folder: Folder) -> dict[str, Any]:
    width = config.integer("hidden_size")
    large = width == 4096  # the widths of two inner products are no settings
    return {
        "context_length": MAX_POSITION,
        "rescale_every_n_layers": config.integer("rescale_every", at_least=0),
        "time_mix_extra_dim": 64 if large else 32,
        "time_decay_extra_dim": 128 if large else 64,
        "feed_forward_length": config.integer("intermediate_size", int(width * 3.5) // 32 * 32),
        "attention.head_count": 0,
    }


def _halved(number: int) -> Change:
    """Halves the matrix of block ``number`` once for each time that the stream was halved before it."""

    def apply(values: Array, config: Values) -> Array:
        each = config.integer("rescale_every", at_least=0)
        return np.asarray(values, np.float32) / np.float32(2 ** (number // each) if each else 1)

    return Change(apply)


_FLAT = Change(lambda values, config: values.reshape(-1), lambda shape, config: (shape[-1],))
_TURNED = Change(
    lambda values, config: np.ascontiguousarray(values.swapaxes(1, 2)),
    lambda shape, config: (shape[0], shape[2], shape[1]),
)

_PARTS = "rwkvag"
"""The same of RWKV 7."""


def _names7(name: str, config: Values) -> str:
    """As in RWKV 6; those of short matrices end with their place behind one another."""
    name = re.sub(r"\.attn\.x_([rwkvag])$", lambda match: f".attn.mixed.{_PARTS.index(match[1])}", name)
    return re.sub(r"_lora\.lora\.(0\.weight|2\.weight|2\.bias)$", lambda match: _SHORT[match[1]], name)


_SHORT = {"0.weight": "1", "2.weight": "2", "2.bias": "0"}


def _keys7(config: Values, folder: Folder) -> dict[str, Any]:
    width = config.integer("hidden_size")
    ranks = {
        "decay": ("decay_low_rank_dim", 0.5, 1.8),
        "iclr": ("a_low_rank_dim", 0.5, 1.8),
        "value_residual_mix": ("v_low_rank_dim", 0.5, 1.3),
        "gate": ("gate_low_rank_dim", 0.8, 0.6),
    }
    usual = {key: max(1, round(width**power * factor / 32)) * 32 for key, (_, power, factor) in ranks.items()}
    return {
        "context_length": MAX_POSITION,
        "feed_forward_length": config.integer("intermediate_size", 4 * width),
        "attention.head_count": 0,
        **{f"attention.{key}_lora_rank": config.integer(name, usual[key]) for key, (name, _, _) in ranks.items()},
    }


_ONE = Change(lambda values, config: values.reshape(-1), lambda shape, config: (math.prod(shape),))
_LAYER7 = r"layers\.(\d+)\."
_RWKV7 = Family(
    "rwkv7",
    (
        Tensors(r"embeddings\.weight", "token_embd.weight"),
        Tensors(rf"layers\.0\.pre_norm\.{ANY}", r"token_embd_norm.\1"),
        Tensors(rf"norm\.{ANY}", r"output_norm.\1"),
        Tensors(r"lm_head\.weight", "output.weight"),
        *layers(
            {
                "attn_norm": "attn_norm",
                "ffn_norm": "attn_norm_2",
                "attn.g_norm": "time_mix_ln",
                "attn.r_proj": "time_mix_receptance",
                "attn.k_proj": "time_mix_key",
                "attn.v_proj": "time_mix_value",
                "attn.o_proj": "time_mix_output",
                "ffn.key": "channel_mix_key",
                "ffn.value": "channel_mix_value",
            }
        ),
        *(
            Tensors(rf"{_LAYER7}attn\.{name}", rf"blk.\1.time_mix_{name}.weight", _ONE)
            for name in ("k_k", "k_a", "r_k")
        ),
        Tensors(_LAYER7 + r"ffn\.x_k", r"blk.\1.channel_mix_lerp_k.weight", _ONE),
        Tensors(_LAYER7 + r"attn\.mixed\.(\d)", r"blk.\1.time_mix_lerp_fused.weight", of_experts=True),
        Tensors(_LAYER7 + r"attn\.([wag][012])", r"blk.\1.time_mix_\2.weight"),
        Tensors(r"layers\.([1-9]\d*)\.attn\.(v[012])", r"blk.\1.time_mix_\2.weight"),
        Tensors(r"layers\.0\.attn\.a([012])", r"blk.0.time_mix_v\1.weight"),
    ),
    {
        "hidden_size": "embedding_length",
        "num_hidden_layers": "block_count",
        "head_dim": "wkv.head_size",
    },
    {"norm_eps": "attention.layer_norm_epsilon"},
    _keys7,
    vocabularies=(WORLD,),
    names=_names7,
    unused=r"layers\.0\.attn\.v[012]",
    scalings=(),
    special={"bos": 0, "eos": 0, "eot": 261},
)
"""The first block has no use of another one's values, so files have the rates' matrices in the place of theirs."""

FAMILIES: dict[str, Family] = {
    "rwkv7": _RWKV7,
    "rwkv6": Family(
        "rwkv6",
        (
            Tensors(r"embeddings\.weight", "token_embd.weight"),
            Tensors(rf"blocks\.0\.pre_ln\.{ANY}", r"token_embd_norm.\1"),
            Tensors(rf"ln_out\.{ANY}", r"output_norm.\1"),
            Tensors(r"head\.weight", "output.weight"),
            *(
                layer(name, target, layer=_BLOCK)
                for name, target in {
                    "ln1": "attn_norm",
                    "ln2": "attn_norm_2",
                    "attention.ln_x": "time_mix_ln",
                    **{f"attention.{part}": f"time_mix_{part}" for part in ("receptance", "key", "value", "gate")},
                    **{f"feed_forward.{part}": f"channel_mix_{part}" for part in ("receptance", "key")},
                }.items()
            ),
            Tensors(_BLOCK + r"attention\.output\.weight", r"blk.\1.time_mix_output.weight", _halved),
            Tensors(_BLOCK + r"feed_forward\.value\.weight", r"blk.\1.channel_mix_value.weight", _halved),
            Tensors(_BLOCK + r"attention\.mixed\.(\d)", r"blk.\1.time_mix_lerp_fused.weight", of_experts=True),
            *(
                Tensors(_BLOCK + name, rf"blk.\1.{target}.weight", change)
                for name, target, change in (
                    (r"attention\.time_maa_x", "time_mix_lerp_x", _FLAT),
                    (r"attention\.time_maa_w1", "time_mix_w1", TRANSPOSED),
                    (r"attention\.time_maa_w2", "time_mix_w2", _TURNED),
                    (r"attention\.time_decay", "time_mix_decay", _FLAT),
                    (r"attention\.time_decay_w1", "time_mix_decay_w1", TRANSPOSED),
                    (r"attention\.time_decay_w2", "time_mix_decay_w2", TRANSPOSED),
                    (r"attention\.time_faaaa", "time_mix_first", None),
                    (r"feed_forward\.time_maa_k", "channel_mix_lerp_k", _FLAT),
                    (r"feed_forward\.time_maa_r", "channel_mix_lerp_r", _FLAT),
                )
            ),
        ),
        {"hidden_size": "embedding_length", "num_hidden_layers": "block_count", "head_size": "wkv.head_size"},
        {"layer_norm_epsilon": "attention.layer_norm_epsilon"},
        _keys,
        prefix=r"(?:rwkv\.)?",
        vocabularies=(WORLD,),
        head="head.weight",
        names=_names,
        scalings=(),
        special={"bos": 0, "eos": 0, "eot": 261},
    ),
}
