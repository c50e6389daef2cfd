"""Decoders with attention in some layers and a state space model in others."""

from __future__ import annotations

from typing import Any

from oracles.attention import ARCH, granite_scales
from oracles.dense import model
from oracles.experts import ROUTER, SMALL, experts, split_granite
from oracles.family import Family, basic, lengths
from oracles.states import STATE_RULES, decay, named, squeezed

GRANITE: dict[str, Any] = {
    **SMALL,
    "layer_types": ["mamba", "attention"],
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 16,
    "mamba_n_heads": 4,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_head": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.25,
    "residual_multiplier": 0.6,
    "logits_scaling": 1.5,
    "position_embedding_type": "nope",
    "tie_word_embeddings": True,
}

JAMBA: dict[str, Any] = {
    **SMALL,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "use_mamba_kernels": False,
    "mamba_d_state": 8,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_dt_rank": 4,
    "tie_word_embeddings": False,
}

NEMOTRON: dict[str, Any] = {
    "head_dim": 16,
    "layers_block_type": ["mamba", "mlp", "attention"],
    "num_hidden_layers": 3,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 16,
    "n_groups": 2,
    "conv_kernel": 4,
    "chunk_size": 16,
    "use_mamba_kernels": False,
    "intermediate_size": 64,
    "tie_word_embeddings": False,
}

MAMBA2: dict[str, Any] = {
    "A_log": decay,
    r"conv1d\.weight": squeezed,
    r"\.D$": named("d", shape=(-1, 1)),
    "dt_bias": named("dt", end=".bias"),
}


def state_space(config: Any, inner: int, state: int, rank: int) -> dict[str, Any]:
    return {"ssm.conv_kernel": 4, "ssm.inner_size": inner, "ssm.state_size": state, "ssm.time_step_rank": rank}


HYBRIDS: dict[str, Family] = {
    "granitehybrid": Family(
        ARCH.GRANITE_HYBRID,
        lambda seed: model(
            "GraniteMoeHybrid", seed, GRANITE, embedding=0.4, layer=4.0, rules={**STATE_RULES, **ROUTER}
        ),
        lambda c: (
            basic(c, **experts(c, 4), **state_space(c, 64, 16, 4))
            | granite_scales(c)
            | {
                "attention.head_count_kv": [0, 2],
                "expert_shared_feed_forward_length": 16,
                "ssm.group_count": 1,
                "rope.dimension_count": 8,
                "rope.scaling.finetuned": False,
            }
        ),
        {**MAMBA2, r"mamba\.norm": named("norm", shape=(1, -1), end=".weight"), "input_linear": split_granite},
    ),
    "jamba": Family(
        ARCH.JAMBA,
        lambda seed: model("Jamba", seed, JAMBA, rules={**STATE_RULES, **ROUTER}),
        lambda c: basic(c, **experts(c, 4), **state_space(c, 64, 8, 4)) | {"attention.head_count_kv": [0, 2]},
        {"A_log": decay, r"conv1d\.weight": squeezed, r"\.D$": named("d")},
    ),
    "nemotron_h": Family(
        ARCH.NEMOTRON_H,
        lambda seed: model("NemotronH", seed, NEMOTRON, rules=STATE_RULES),
        lambda c: (
            basic(c, **lengths(c), **state_space(c, 64, 16, 4))
            | {
                "attention.head_count_kv": [0, 0, 2],
                "feed_forward_length": [0, 64, 0],
                "attention.layer_norm_rms_epsilon": c.layer_norm_epsilon,
                "attention.layer_norm_epsilon": c.layer_norm_epsilon,
                "ssm.group_count": 2,
            }
        ),
        {**MAMBA2, r"mixer\.norm": named("norm", shape=(2, -1), end=".weight")},
    ),
}
