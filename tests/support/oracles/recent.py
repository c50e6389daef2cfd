"""Decoders of 2025 and 2026."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import transformers

from oracles.attention import ARCH, LLAMA3, SHAPE, llama3_factors
from oracles.dense import ROPE, model
from oracles.experts import DEEPSEEK, SMALL, SPLIT, as_weight
from oracles.family import Array, Family, Tensors, basic, lengths, plus_one, unused
from oracles.files import N_VOCAB
from oracles.hybrids import MAMBA2, state_space
from oracles.mixtures import BLOCKS, CHOSEN, SIGMOID, widths
from oracles.models import Rules, TransformersModel, coarse
from oracles.states import STATE_RULES, named
from oracles.theirs import INDEXED

MIMO: dict[str, Any] = {
    "num_hidden_layers": 3,
    "head_dim": 12,
    "v_head_dim": 8,
    "num_key_value_heads": 1,
    "sliding_window": 12,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "moe_intermediate_size": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "attention_value_scale": 0.7,
    "rope_parameters": {
        "full_attention": {**ROPE, "rope_theta": 1000.0, "partial_rotary_factor": 0.34},
        "sliding_attention": {**ROPE, "partial_rotary_factor": 0.34},
    },
}
GLM: dict[str, Any] = {
    **DEEPSEEK,
    "q_lora_rank": 16,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "mlp_layer_types": ["dense", "sparse"],
    "index_topk": 8,
    "indexer_types": ["full", "shared"],
    "index_head_dim": 64,
    "index_n_heads": 8,
    "rope_parameters": ROPE,
}

FALCON: dict[str, Any] = {
    "head_dim": 8,
    "mamba_d_ssm": 64,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_chunk_size": 16,
    "mamba_rms_norm": True,
    "mamba_norm_before_gate": False,
    "tie_word_embeddings": False,
    "rope_parameters": ROPE,
}


def mixture(kind: str, seed: int, settings: dict[str, Any]) -> TransformersModel:
    settings = {**SMALL, "tie_word_embeddings": False, **settings}
    return model(kind, seed, settings, rules=CHOSEN)


GEMMA: dict[str, Any] = {
    "head_dim": 8,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "sliding_window": 12,
    "vocab_size_per_layer_input": N_VOCAB,
    "hidden_size_per_layer_input": 8,
    "final_logit_softcapping": 5.0,
    "tie_word_embeddings": False,
}
BASES: dict[str, Any] = {
    "full_attention": {**ROPE, "rope_theta": 1000.0},
    "sliding_attention": ROPE,
}
GEMMA3N: dict[str, Any] = {
    **GEMMA,
    "laurel_rank": 8,
    "activation_sparsity_pattern": [0.6, 0.0, 0.0, 0.3],
    "rope_parameters": BASES,
}
GEMMA4: dict[str, Any] = {
    **GEMMA,
    "global_head_dim": 16,
    "use_double_wide_mlp": True,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "rope_theta": 1000.0, "partial_rotary_factor": 0.5},
        "sliding_attention": ROPE,
    },
}
GEMMA4_EXPERTS: dict[str, Any] = {
    **GEMMA4,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "intermediate_size": 16,
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 8,
    "use_double_wide_mlp": False,
}
NARROW: Rules = {
    r"altup\w*\.(\d|modality|p)": lambda rng, shape: coarse(1.2 * rng.standard_normal(shape) / np.sqrt(shape[-1]))
}
FACTOR: Rules = {"layer_scalar": lambda rng, shape: coarse(0.8 + 0.2 * rng.standard_normal(shape))}


def gemma_keys(config: Any, **more: Any) -> dict[str, Any]:
    """The keys that Gemma 3n and 4 share."""
    return basic(config, **more) | {
        "attention.key_length": 8,
        "attention.value_length": 8,
        "attention.sliding_window": 12,
        "attention.sliding_window_pattern": [True, False] * 2,
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "final_logit_softcapping": 5.0,
        "rope.freq_base": 1000.0,
        "rope.freq_base_swa": 100.0,
    }


def gemma4_keys(config: Any, **more: Any) -> dict[str, Any]:
    config.allow_global_per_layer_attribute_access = True  # keys of single layers replace these
    return gemma_keys(config, **more) | {
        "attention.key_length": 16,
        "attention.value_length": 16,
        "attention.key_length_swa": 8,
        "attention.value_length_swa": 8,
        "rope.dimension_count": 16,
        "rope.dimension_count_swa": 8,
    }


def proportional(config: Any) -> Tensors:
    """Half of the pairs of blocks without a window are rotated; the others have no frequency."""
    return {"rope_freqs.weight": np.array([1.0] * 4 + [1e30] * 4)}


def router_scale(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    part = "ffn_down_exps" if "per_expert" in name else "ffn_gate_inp"
    yield f"blk.{name.split('.')[2]}.{part}.scale", values


def scalar(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    yield f"blk.{name.split('.')[2]}.layer_output_scale.weight", values


def indexer(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    """What the package gguf calls otherwise."""
    part = name.split("indexer.")[1].replace("wq_b", "attn_q_b").replace("wk", "attn_k").replace("weights_", "")
    yield f"blk.{name.split('.')[2]}.indexer.{part}", values


HALF_ROTATED: dict[str, Any] = {"partial_rotary_factor": 0.5, "rope_type": "default", "rope_theta": 100.0}
YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 48}
DEEPSEEK4: dict[str, Any] = {
    "num_hidden_layers": 3,
    "max_position_embeddings": 192,
    "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
    "mlp_layer_types": ["hash_moe", "moe", "moe"],
    "head_dim": 32,
    "num_key_value_heads": 1,
    "q_lora_rank": 16,
    "o_groups": 2,
    "o_lora_rank": 8,
    "sliding_window": 12,
    "intermediate_size": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "swiglu_limit": 1.0,
    "hc_sinkhorn_iters": 3,
    "index_n_heads": 8,
    "index_head_dim": 64,
    "index_topk": 8,
    "partial_rotary_factor": 0.5,
    "rope_parameters": {
        "main": HALF_ROTATED,
        "compress": {**HALF_ROTATED, **YARN, "rope_theta": 1000.0, "attention_factor": 1.0},
    },
    "tie_word_embeddings": False,
}
STREAMED: Rules = {
    "position_bias": lambda rng, shape: coarse(rng.standard_normal(shape)),
    r"hc\.base|hc_base": lambda rng, shape: coarse(1.5 * rng.standard_normal(shape)),
    r"_hc\.scale": lambda rng, shape: rng.permutation([0.5, 1.0, 1.75]),
    **CHOSEN,
}
HASHES: Rules = {"tid2eid": lambda rng, shape: np.stack([rng.permutation(4)[: shape[1]] for _ in range(shape[0])])}

PARTS = (1, "gate"), (2, "down"), (3, "up")
IN_FOLDER = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "head": "output",
    "attn.wq_a": "attn_q_a",
    "attn.q_norm": "attn_q_a_norm",
    "attn.wq_b": "attn_q_b",
    "attn.wkv": "attn_kv",
    "attn.norm": "attn_kv_a_norm",
    "attn.wo_a": "attn_output_a",
    "attn.wo_b": "attn_output_b",
    "attn.attn_sink": "attn_sinks",
    "attn.indexer.wq_b": "indexer.attn_q_b",
    "attn.indexer.weights_proj": "indexer.proj",
    "ffn.gate": "ffn_gate_inp",
    "ffn.gate.tid2eid": "ffn_gate_tid2eid",
    **{
        f"ffn.{of}experts.w{n}": f"ffn_{part}_{to}"
        for of, to in (("", "exps"), ("shared_", "shexp"))
        for n, part in PARTS
    },
}
"""Those of the file, by those of the folder without ``.weight``."""


def of_folder(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    found = re.fullmatch(r"(?:model\.)?(?:layers\.(\d+)\.)?(.*?)(?:\.weight)?", name)
    assert found is not None
    number, stem = found.groups()
    if stem == "ffn.gate.bias":
        new = "exp_probs_b.bias"
    elif compressor := re.fullmatch(r"attn\.(indexer\.)?compressor\.w?(\w+)", stem):
        new = f"{'indexer' if compressor[1] else 'attn'}_compressor_{compressor[2]}.weight"
    else:
        new = f"{IN_FOLDER.get(stem, stem.replace('hc_head.', 'output_'))}.weight"
    yield f"blk.{number}.{new}" if number else new, values


def deepseek4(seed: int) -> TransformersModel:
    return model("DeepseekV4", seed, DEEPSEEK4, rules=STREAMED, buffers=HASHES)


def deepseek4_keys(config: Any) -> dict[str, Any]:
    return basic(config) | {
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.q_lora_rank": 16,
        "attention.sliding_window": 12,
        "attention.output_group_count": 2,
        "attention.output_lora_rank": 8,
        "attention.compress_ratios": [0, 4, 128],
        "attention.compress_rope_freq_base": 1000.0,
        "attention.indexer.head_count": 8,
        "attention.indexer.key_length": 64,
        "attention.indexer.top_k": 8,
        "rope.dimension_count": 16,
        "rope.freq_base": 100.0,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 48,
        "expert_count": 4,
        "expert_used_count": 2,
        "expert_feed_forward_length": 12,
        "expert_shared_count": 1,
        "expert_weights_scale": 1.5,
        "expert_weights_norm": True,
        "expert_gating_func": 4,
        "swiglu_clamp_exp": [1.0] * 3,
        "swiglu_clamp_shexp": [1.0] * 3,
        "hyper_connection.count": 4,
        "hyper_connection.sinkhorn_iterations": 3,
        "hyper_connection.epsilon": 1e-6,
        "hash_layer_count": 1,
        "embedding_length_out": 128,
    }


STEP: dict[str, Any] = {
    **SHAPE,
    "num_hidden_layers": 3,
    "head_dim": 8,
    "num_sliding_attention_heads": 2,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "sliding_window": 12,
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "moe_intermediate_size": 12,
    "share_expert_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_router_scaling_factor": 1.5,
    "swiglu_limits": [None, 0.5, None],
    "swiglu_limits_shared": [None, None, 0.4],
    "rope_parameters": {
        "full_attention": {**LLAMA3, "rope_theta": 100.0, "partial_rotary_factor": 0.5},
        "sliding_attention": {**ROPE, "rope_theta": 1000.0},
    },
    "tie_word_embeddings": False,
    "pad_token_id": 0,
}
IMAGES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}


def step35(seed: int) -> TransformersModel:
    """The language model of Step 3.7 is that of Step 3.5."""
    config = transformers.Step3p7Config(text_config=STEP, vision_config=IMAGES)
    found = TransformersModel(transformers.Step3p7ForConditionalGeneration, config, seed, rules=CHOSEN)
    found.config = config.text_config
    return found


def step35_keys(config: Any) -> dict[str, Any]:
    config.allow_global_per_layer_attribute_access = True  # keys of single layers replace these
    return basic(config, **widths(config, 4), **SIGMOID) | {
        "attention.head_count": [4, 2, 4],
        "attention.head_count_kv": [2, 2, 2],
        "attention.key_length": 8,
        "attention.value_length": 8,
        "attention.sliding_window": 12,
        "attention.sliding_window_pattern": [False, True, False],
        "rope.freq_base": 100.0,
        "rope.freq_base_swa": 1000.0,
        "rope.dimension_count": 8,
        "leading_dense_block_count": 1,
        "expert_shared_feed_forward_length": 8,
        "expert_weights_scale": 1.5,
        "swiglu_clamp_exp": [0.0, 0.5, 0.0],
        "swiglu_clamp_shexp": [0.0, 0.0, 0.4],
    }


def half_factors(config: Any) -> Tensors:
    """The divisors of the frequencies of blocks without a window, which rotate half of each head; the others are 1."""
    half = SimpleNamespace(head_dim=4, rope_parameters=STEP["rope_parameters"]["full_attention"])
    return {name: np.append(values, [1.0, 1.0]) for name, values in llama3_factors(half).items()}


RECENT: dict[str, Family] = {
    "mimo2": Family(
        ARCH.MIMO2,
        lambda seed: mixture("MiMoV2Flash", seed, MIMO),
        lambda c: (
            basic(c, **widths(c, 4), **SIGMOID)
            | {
                "attention.head_count_kv": [1, 2, 2],
                "attention.key_length": 12,
                "attention.value_length": 8,
                "attention.value_scale": 0.7,
                "attention.sliding_window": 12,
                "attention.sliding_window_pattern": [False, True, True],
                "rope.freq_base": 1000.0,
                "rope.freq_base_swa": 100.0,
                "rope.dimension_count": 4,
            }
        ),
        {**BLOCKS, "sink": as_weight},
    ),
    "glm-dsa": Family(
        ARCH.GLM_DSA,
        lambda seed: mixture("GlmMoeDsa", seed, GLM),
        lambda c: basic(c, **widths(c, 4, 1, 1, 1.5), **SIGMOID) | INDEXED | {"attention.indexer.types": [True, False]},
        {**SPLIT, "indexer": indexer},
        seed=4,
    ),
    "falcon-h1": Family(
        ARCH.FALCON_H1,
        lambda seed: model("FalconH1", seed, FALCON, rules=STATE_RULES),
        lambda c: basic(c, **lengths(c), **state_space(c, 64, 16, 4)) | {"ssm.group_count": 2},
        {**MAMBA2, r"mamba\.norm": named("norm", shape=(2, -1), end=".weight")},
    ),
    "gemma3n": Family(
        ARCH.GEMMA3N,
        lambda seed: model("Gemma3n", seed, GEMMA3N, of="TextConfig", rules=NARROW),
        lambda c: (
            gemma_keys(c)
            | {
                "feed_forward_length": 32,
                "altup.num_inputs": 4,
                "altup.active_idx": 0,
                "activation_sparsity_scale": [0.2533471, -math.inf, -math.inf, -0.5244005],
            }
        ),
        {"correct_output_scale": as_weight},
    ),
    "gemma4": Family(
        ARCH.GEMMA4,
        lambda seed: model("Gemma4", seed, GEMMA4, of="TextConfig", buffers=FACTOR),
        lambda c: gemma4_keys(c) | {"feed_forward_length": [32, 32, 64, 64]},
        {"layer_scalar": scalar},
        proportional,
        without_effect=("layer_scalar",),  # the other way round, one number is the same
    ),
    "gemma4-experts": Family(
        ARCH.GEMMA4,
        lambda seed: model("Gemma4", seed, GEMMA4_EXPERTS, of="TextConfig", rules=CHOSEN, buffers=FACTOR),
        lambda c: (
            gemma4_keys(c)
            | {
                "attention.head_count_kv": [2, 1],
                "attention.sliding_window_pattern": [True, False],
                "feed_forward_length": 16,
                "expert_count": 4,
                "expert_used_count": 2,
                "expert_feed_forward_length": 8,
            }
        ),
        {"layer_scalar": scalar, r"experts\.\w+_proj$": as_weight, r"router\.(scale|per_expert)": router_scale},
        proportional,
        without_effect=("layer_scalar",),
    ),
    "deepseek4": Family(
        "deepseek4",
        deepseek4,
        deepseek4_keys,
        {"": of_folder},
        n_ctx=192,
        seed=21,
        lengths=(1, 7, 140),  # longer than what the most compressed keys stand for
        # Reversed, a single number is the same, and so is the middle one of three: in the first block all streams are
        # equal, and the other two have no effect.
        without_effect=("hc_head.hc_scale", "layers.0.attn_hc.scale"),
    ),
    "step35": Family(
        ARCH.STEP35,
        step35,
        step35_keys,
        {
            "vision|vit": unused,
            "norm": plus_one,
            "router_bias": lambda c, name, values: [(f"blk.{name.split('.')[2]}.exp_probs_b.bias", values)],
        },
        half_factors,
        seed=4,
        without_effect=("vision", "projector"),
    ),
}
