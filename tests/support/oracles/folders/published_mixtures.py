"""The same of decoders with experts."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from oracles.folders.by_hand import (
    DEEP,
    GPT,
    LAYERS_OF_FOUR,
    LLAMA,
    MIXTURE,
    MIXTURE_SETTINGS,
    NO_SHAPE,
    SEEING,
    by_hand,
    of_blocks,
)
from oracles.folders.recording import N_VOCAB, SHAPE, Tiny, qwen_tokens, reads_json
from oracles.folders.vocabularies import arctic_tokens

OCR: dict[str, Any] = {
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "use_mla": False,
    "kv_lora_rank": None,
    "q_lora_rank": None,
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 0),
}
"""As published: the settings of the language model stand in an object of their own, and a second time outside of it."""


BAILING: dict[str, list[int]] = {
    "model.word_embeddings.weight": [N_VOCAB, 32],
    **{name: shape for name, shape in LLAMA.items() if not re.search("self_attn|embed_tokens", name)},
    "attention.query_key_value.weight": [64, 32],
    "attention.dense.weight": [32, 32],
}


ROUTED_GROK = {f"{n}.w{which}.weight": [32, 24] if which == 2 else [24, 32] for n in range(4) for which in (1, 2, 3)}


GROK_SETTINGS: dict[str, Any] = {
    "attn_logit_softcapping": 30.0,
    "embedding_multiplier_scale": 90.5,
    "head_dim": 8,
    "hidden_act": "gelu",
    "num_experts_per_tok": 2,
    "num_local_experts": 4,
    "output_multiplier_scale": 0.5,
    "router_logit_softcapping": 30.0,
}


def mimo(groups: int) -> dict[str, list[int]]:
    """The shapes of attention and norms, of a block with a window if it has two heads of keys."""
    return {
        "input_layernorm.weight": [32],
        "post_attention_layernorm.weight": [32],
        "self_attn.q_proj.weight": [48, 32],
        "self_attn.k_proj.weight": [12 * groups, 32],
        "self_attn.v_proj.weight": [8 * groups, 32],
        "self_attn.o_proj.weight": [32, 32],
        **({"self_attn.attention_sink_bias": [4]} if groups == 2 else {}),
    }


MIMO_NETWORK = {f"mlp.{name}_proj.weight": [32, 48] if name == "down" else [48, 32] for name in ("gate", "up", "down")}


MIMO_EXPERTS: dict[str, list[int]] = {
    **{name: shape for name, shape in MIXTURE.items() if "shared" not in name},
    "mlp.gate.e_score_correction_bias": [4],
}


MIMO_AHEAD: dict[str, list[int]] = {
    "eh_proj.weight": [32, 64],
    "enorm.weight": [32],
    "hnorm.weight": [32],
    "final_layernorm.weight": [32],
}


FOLDERS: dict[str, Tiny] = {
    "deepseek": by_hand(
        "deepseek",
        {**LLAMA, **MIXTURE},
        {**MIXTURE_SETTINGS, "n_routed_experts": 4, "n_shared_experts": 2, "first_k_dense_replace": 1},
        tokens=qwen_tokens,
        pre="qwen2",
        dense=1,
    ),
    "deepseek_vl_v2": by_hand(
        "deepseek_vl_v2",
        {
            **LLAMA,
            **MIXTURE,
            **{f"self_attn.{name}_proj.weight": [32, 32] for name in "kv"},
            **{f"model.{name}": [32] for name in ("image_newline", "view_seperator")},
            "model.sam_model.pos_embed": [1, 4, 4, 32],
            "model.vision_model.embeddings.class_embedding": [32],
            "model.projector.layers.weight": [32, 64],
        },
        {**OCR, "rms_norm_eps": None, "rope_theta": None, "language_config": {**SHAPE, **OCR}},
        tokens=qwen_tokens,
        pre="qwen2",
        dense=1,
    ),
    "bailing_moe": by_hand(
        "bailing_moe",
        {**BAILING, **MIXTURE},
        {**MIXTURE_SETTINGS, "num_experts": 4, "num_shared_experts": 2, "first_k_dense_replace": 0, "norm_head": True},
        tokens=qwen_tokens,
        pre="qwen2",
    ),
    "bailing_moe_v2": by_hand(
        "bailing_moe_v2",
        {
            **BAILING,
            **MIXTURE,
            "mlp.gate.expert_bias": [4],
            "attention.query_layernorm.weight": [8],
            "attention.key_layernorm.weight": [8],
        },
        {
            **MIXTURE_SETTINGS,
            "head_dim": 8,
            "num_experts": 4,
            "num_shared_experts": 1,
            "first_k_dense_replace": 1,
            "moe_shared_expert_intermediate_size": 48,
            "partial_rotary_factor": 0.5,
            "routed_scaling_factor": 2.5,
            "score_function": "sigmoid",
            "n_group": 2,
            "topk_group": 1,
        },
        tokens=qwen_tokens,
        pre="qwen2",
        dense=1,
    ),
    "smallthinker": by_hand(
        "smallthinker",
        {
            **{name: shape for name, shape in LLAMA.items() if not name.startswith("mlp")},
            **{
                f"block_sparse_moe.experts.{n}.{name}.weight": [32, 24] if name == "down" else [24, 32]
                for n in range(4)
                for name in ("gate", "up", "down")
            },
            "block_sparse_moe.primary_router.weight": [4, 32],
        },
        {
            "head_dim": 8,
            "moe_ffn_hidden_size": 24,
            "moe_num_primary_experts": 4,
            "moe_num_active_primary_experts": 2,
            "moe_primary_router_apply_softmax": False,
            "sliding_window_layout": [0, 1],
            "sliding_window_size": 12,
            "intermediate_size": None,
        },
        tokens=qwen_tokens,
        pre="qwen2",
    ),
    "qwen3_vl_moe": by_hand(
        "qwen3_vl_moe",
        {
            **{name: shape for name, shape in LLAMA.items() if not name.startswith("mlp")},
            "self_attn.q_norm.weight": [8],
            "self_attn.k_norm.weight": [8],
            "mlp.gate.weight": [4, 32],
            "mlp.experts.gate_up_proj": [4, 32, 48],
            "mlp.experts.down_proj": [4, 24, 32],
            **SEEING,
        },
        {
            **MIXTURE_SETTINGS,
            "num_experts": 4,
            "head_dim": 8,
            "rope_scaling": {"rope_type": "default", "mrope_section": [2, 1, 1]},
            "vision_config": DEEP,
        },
        tokens=qwen_tokens,
        pre="qwen2",
        renamed={r"^model\.(layers|norm|embed_tokens)": r"model.language_model.\1"},
    ),
    "rnd1": by_hand(
        "rnd1",
        {
            **LLAMA,
            **{name: shape for name, shape in MIXTURE.items() if "shared" not in name},
            "self_attn.q_norm.weight": [8],
            "self_attn.k_norm.weight": [8],
        },
        {**MIXTURE_SETTINGS, "head_dim": 8, "num_experts": 4, "mask_token_id": 300},
        tokens=qwen_tokens,
        pre="qwen2",
    ),
    "llada_moe": by_hand(
        "llada_moe",
        {
            **LLAMA,
            **{name: shape for name, shape in MIXTURE.items() if "shared" not in name},
            "self_attn.q_norm.weight": [8],
            "self_attn.k_norm.weight": [8],
        },
        {
            "head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "expert_intermediate_size": 24,
            "dense_intermediate_size": 48,
        },
        tokens=qwen_tokens,
        pre="qwen2",
    ),
    "dbrx": by_hand(
        "dbrx",
        {
            **GPT,
            "transformer.norm_f.weight": [32],
            **{f"norm_attn_norm.norm_{n}.weight": [32] for n in (1, 2)},
            "norm_attn_norm.attn.Wqkv.weight": [64, 32],
            "norm_attn_norm.attn.out_proj.weight": [32, 32],
            "ffn.router.layer.weight": [4, 32],
            **{f"ffn.experts.mlp.{name}": [96, 32] for name in ("w1", "v1", "w2")},
        },
        {
            **NO_SHAPE,
            "rms_norm_eps": None,
            "rope_theta": None,
            "d_model": 32,
            "n_heads": 4,
            "n_layers": 2,
            "max_seq_len": 128,
            "attn_config": {"clip_qkv": 8, "kv_n_heads": 2, "rope_theta": 500.0},
            "ffn_config": {
                "ffn_act_fn": {"name": "silu"},
                "ffn_hidden_size": 24,
                "moe_normalize_expert_weights": 1.0,
                "moe_num_experts": 4,
                "moe_top_k": 2,
            },
        },
        tokens=qwen_tokens,
        pre="qwen2",
        layers="transformer.blocks",
    ),
    "grok": by_hand(
        "git",
        {
            **{name: shape for name, shape in LLAMA.items() if "layernorm" not in name},
            **{f"{when}_{name}_norm.weight": [32] for when in ("pre", "post") for name in ("attn", "moe")},
            "block_sparse_moe.gate.weight": [4, 32],
            **{f"block_sparse_moe.experts.{name}": shape for name, shape in ROUTED_GROK.items()},
        },
        {
            **GROK_SETTINGS,
            "attn_temperature_len": 1024,
            "final_logit_softcapping": 50,
            "moe_intermediate_size": 24,
            "rope_type": "original",
            "scaling_factor": 16.0,
            "original_max_position_embeddings": 64,
            "extrapolation_factor": 1.0,
            "attn_factor": 1.0,
            "beta_fast": 8,
            "beta_slow": 1,
        },
        tokens=qwen_tokens,
        pre="qwen2",
        mends=partial(reads_json, "grok.GrokModel"),
        dense=2,
    ),
    "grok-1": by_hand(
        "grok-1",
        {
            "transformer.in_out_embed.weight": [N_VOCAB, 32],
            "lm_head.weight": [N_VOCAB, 32],
            "transformer.rms_norm.weight": [32],
            **{
                f"multi_head_attention.{name}.weight": [16 if name in ("key", "value") else 32, 32]
                for name in ("query", "key", "value", "linear")
            },
            **{f"rms_norm{end}.weight": [32] for end in ("", "_1", "_2", "_3")},
            "router.weight": [4, 32],
            **{
                f"moe.{n}.{name}.weight": [32, 48] if name == "linear_1" else [48, 32]
                for n in range(4)
                for name in ("linear", "linear_v", "linear_1")
            },
        },
        {**GROK_SETTINGS, "attn_output_multiplier": 0.09},
        layers="transformer.decoder_layer",
    ),
    "arctic": by_hand(
        "arctic",
        {
            **{name: shape for name, shape in LLAMA.items() if "mlp" not in name},
            **{key: [32] for key in ("residual_layernorm.weight",)},
            **{f"residual_mlp.w{n}.weight": [32, 32] for n in (1, 2, 3)},
            "block_sparse_moe.gate.weight": [4, 32],
            **{
                f"block_sparse_moe.experts.{n}.w{which}.weight": [32, 48] if which == 2 else [48, 32]
                for n in range(4)
                for which in (1, 2, 3)
            },
        },
        {"num_local_experts": 4, "num_experts_per_tok": 2},
        tokens=arctic_tokens,
    ),
    "mimo2": by_hand(
        "mimo_v2_flash",
        {
            "model.embed_tokens.weight": [N_VOCAB, 32],
            "lm_head.weight": [N_VOCAB, 32],
            "model.norm.weight": [32],
            **of_blocks("model.layers", {**mimo(1), **MIMO_NETWORK}, {**mimo(2), **MIMO_EXPERTS}),
            **of_blocks("model.mtp.layers", *[{**mimo(2), **MIMO_NETWORK, **MIMO_AHEAD}] * 3),
        },
        {
            "rms_norm_eps": None,
            "head_dim": 12,
            "v_head_dim": 8,
            "swa_head_dim": 12,
            "swa_v_head_dim": 8,
            "swa_num_attention_heads": 4,
            "num_key_value_heads": 1,
            "swa_num_key_value_heads": 2,
            "hybrid_layer_pattern": [0, 1],
            "sliding_window": 12,
            "swa_rope_theta": 10.0,
            "partial_rotary_factor": 0.334,
            "attention_value_scale": 0.707,
            "layernorm_epsilon": 1e-5,
            "moe_intermediate_size": 24,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "norm_topk_prob": True,
        },
        tokens=qwen_tokens,
        pre="qwen2",
    ),
    "maple": by_hand(
        "maple",
        {
            **{name: shape for name, shape in LLAMA.items() if not name.startswith("mlp")},
            **{name: shape for name, shape in MIXTURE.items() if "shared" not in name},
            "self_attn.q_norm.weight": [8],
            "self_attn.k_norm.weight": [8],
        },
        {
            **MIXTURE_SETTINGS,
            "head_dim": 8,
            "hidden_act": "silu",
            "layer_types": LAYERS_OF_FOUR[:2],
            "nope_on_global_attention": True,
            "num_experts": 4,
            "partial_rotary_factor": 0.5,
            "sliding_window": 12,
        },
        tokens=qwen_tokens,
        pre="qwen2",
    ),
}
