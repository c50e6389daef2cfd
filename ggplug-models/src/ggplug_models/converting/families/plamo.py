"""PLaMo; the tokens of PLaMo 2 and 3 are lines of JSON."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggplug_models.converting import rope
from ggplug_models.converting.delta_net import PLAIN_DECAY
from ggplug_models.converting.family import PLUS_ONE, Array, Change, Family, Tensors, in_heads, n_heads, plus
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.rows import ATTENTION, INTEGERS, LAYER, MLP, RMS, Keys, decoder, layer, layers, positions
from ggplug_models.converting.state_space import convolution
from ggplug_models.converting.tokens.token_files import LINES
from ggplug_models.metadata.values import Values

_PREFIX = r"(?:model\.)?(?:layers\.(?=layers\.))?"
_NORMS = (
    layer("pre_mixer_norm", "attn_norm", PLUS_ONE),
    Tensors(LAYER + r"post_mixer_norm\.weight", r"blk.\1.post_attention_norm", plus(1 / 5)),
    layer("pre_mlp_norm", "ffn_norm", PLUS_ONE),
    Tensors(LAYER + r"post_mlp_norm\.weight", r"blk.\1.post_ffw_norm", plus(1 / 5**1.5)),
)
"""The model adds these numbers to the weights of its norms; files hold the sums."""

_LINEAR = layers(
    {
        "mixer.qkv_proj": "attn_qkv",
        "mixer.o_proj": "attn_output",
        "mlp.gate_up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
)
_MAMBA = (
    *layers({"mixer.in_proj": "ssm_in", "mixer.bcdt_proj": "ssm_x"}),
    *layers({"mixer.dt_proj": "ssm_dt", "mixer.out_proj": "ssm_out"}),
    *convolution("mixer"),
    *(Tensors(rf"{LAYER}mixer\.{name}_norm_weight", rf"blk.\1.ssm_{name.lower()}_norm") for name in ("dt", "B", "C")),
    Tensors(LAYER + r"mixer\.A_log", r"blk.\1.ssm_a", PLAIN_DECAY),
    Tensors(LAYER + r"mixer\.D", r"blk.\1.ssm_d"),
    Tensors(LAYER + r"mixer\.dt_bias", r"blk.\1.ssm_dt.bias"),
)


def _attends(config: Values) -> list[bool]:
    """For each block whether it has attention, and not Mamba."""
    n, step = config.integer("num_hidden_layers"), config.integer("mamba_step", 2)
    if n <= step // 2:
        return [number == n - 1 for number in range(n)]
    return [number % step == step // 2 for number in range(n)]


def _plamo2(config: Values, folder: Folder) -> dict[str, Any]:
    attends = np.array(_attends(config), np.int32)
    wide, n = config.integer("hidden_size_per_head"), config.integer("mamba_num_heads")
    return {
        "vocab_size": config.integer("vocab_size"),
        "attention.head_count": attends * config.integer("num_attention_heads"),
        "attention.head_count_kv": attends * config.integer("num_key_value_heads"),
        "attention.key_length": wide,
        "attention.value_length": wide,
        "rope.freq_base": rope.settings(config).number("rope_theta", 10000.0, at_least=0),
        "ssm.time_step_rank": n,
        "ssm.inner_size": n * wide,
        "ssm.group_count": 0,
    }


def _plamo3(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys; a factor by which contexts are longer than in training is YaRN's."""
    factor = config.number("rope_scaling_factor", 1.0, at_least=0)
    found = positions(config, folder) | {"vocab_size": config.integer("vocab_size")}
    if factor != 1 and "rope.scaling.type" not in found:
        found |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": factor,
            "rope.scaling.original_context_length": config.integer("initial_context_length"),
            "rope.scaling.yarn_beta_fast": 32.0,
            "rope.scaling.yarn_beta_slow": 1.0,
        }
    if "rope_local_theta" in config:
        found["rope.freq_base_swa"] = config.number("rope_local_theta", at_least=0)
    if "window_size" in config:
        found["attention.sliding_window"] = config.integer("window_size")
        found["attention.sliding_window_pattern"] = config.integer("sliding_window_pattern")
    return found


_ENDS_TURN = 4
"""The token ``<|plamo:op|>``."""


def _family(architecture: str, rows: tuple[Tensors, ...], integers: dict[str, str], more: Keys, **of: Any) -> Family:
    return Family(
        architecture,
        decoder(*rows, *_NORMS, *_LINEAR, norm=PLUS_ONE),
        integers,
        RMS,
        more,
        vocabularies=(LINES,),
        special={"eot": _ENDS_TURN},
        prefix=_PREFIX,
        **of,
    )


def _shared(config: Values) -> tuple[int, int]:
    """The heads of keys and values of PLaMo 1, and the queries of each."""
    together = config.integer("n_shared_head", 8)
    if n_heads(config) % together:
        raise config.refused("n_shared_head", f"a divisor of num_attention_heads ({n_heads(config)})")
    return n_heads(config) // together, together


def _queries(values: Array, config: Values) -> Array:
    """The queries by their head of keys: in the published order, those of all heads of keys alternate."""
    groups, together = _shared(config)
    heads = in_heads(values, groups * together)
    return heads.reshape(together, groups, *heads.shape[1:]).swapaxes(0, 1).reshape(values.shape)


_QUERIES = Change(_queries)
_OUTPUTS = Change(lambda values, config: _queries(values.T, config).T)


def _plamo(config: Values, folder: Folder) -> dict[str, Any]:
    return {"context_length": 4096, "attention.head_count_kv": _shared(config)[0]}


FAMILIES: dict[str, Family] = {
    "plamo": Family(
        "plamo",
        decoder(
            layer("self_attn.q_proj", "attn_q", _QUERIES),
            layer("self_attn.o_proj", "attn_output", _OUTPUTS),
            *ATTENTION[1:3],
            *MLP,
            layer("norm", "attn_norm"),
        ),
        {key: to for key, to in INTEGERS.items() if to != "context_length" and not to.endswith("_kv")},
        RMS,
        _plamo,
        prefix=_PREFIX,
        unused=r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
        scalings=(),
    ),
    "plamo2": _family(
        "plamo2",
        (
            *_MAMBA,
            Tensors(LAYER + r"mixer\.q_weight", r"blk.\1.attn_q_norm.weight"),
            Tensors(LAYER + r"mixer\.k_weight", r"blk.\1.attn_k_norm.weight"),
        ),
        {
            **{key: to for key, to in INTEGERS.items() if "head_count" not in to},
            "mamba_d_state": "ssm.state_size",
            "mamba_d_conv": "ssm.conv_kernel",
        },
        _plamo2,
        scalings=(),
    ),
    "plamo3": _family(
        "plamo3",
        layers({"mixer.q_norm": "attn_q_norm", "mixer.k_norm": "attn_k_norm"}, PLUS_ONE),
        INTEGERS,
        _plamo3,
    ),
}
