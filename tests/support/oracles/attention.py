"""Decoders of attention and one gated or plain MLP."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import gguf
import numpy as np
import transformers

from oracles.family import PAIRED, Array, Family, Tensors, basic, head_dim, lengths, plus_one, rotated, unused
from oracles.files import N_VOCAB
from oracles.models import Rules, TransformersModel, coarse

ARCH = gguf.MODEL_ARCH
SHAPE: dict[str, Any] = {
    "vocab_size": N_VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def llama(seed: int, **settings: Any) -> TransformersModel:
    config = transformers.LlamaConfig(**{**SHAPE, "tie_word_embeddings": False, **settings})
    return TransformersModel(transformers.LlamaForCausalLM, config, seed)


WIDE = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
"""Heads with eight frequencies, so that scalings by frequency treat some of them differently."""

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def llama3_factors(config: Any) -> Tensors:
    """What each frequency is divided by: nothing, the whole factor, or a mixture in between."""
    rope, dims = config.rope_parameters, head_dim(config)
    frequencies = rope["rope_theta"] ** -(np.arange(0, dims, 2) / dims)
    rotations = rope["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    fraction = (rotations - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
    fraction = np.clip(fraction, 0, 1)
    return {"rope_freqs.weight": 1 / ((1 - fraction) / rope["factor"] + fraction)}


def yarn(config: Any) -> dict[str, Any]:
    rope = config.rope_parameters
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": float(rope["factor"]),
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        "rope.scaling.yarn_beta_fast": float(rope["beta_fast"]),
        "rope.scaling.yarn_beta_slow": float(rope["beta_slow"]),
    }


YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 4.0,
    "beta_slow": 0.5,
}
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}

ATTENTION: dict[str, Family] = {
    "llama3": Family(
        ARCH.LLAMA,
        lambda seed: llama(seed, **WIDE, rope_parameters=LLAMA3, max_position_embeddings=128),
        lambda c: basic(c, **lengths(c), **rotated(c)),
        PAIRED,
        llama3_factors,
        hidden=True,
    ),
    "llama-yarn": Family(
        ARCH.LLAMA,
        lambda seed: llama(seed, **WIDE, rope_parameters=YARN, max_position_embeddings=128),
        lambda c: basic(c, **lengths(c), **rotated(c), **yarn(c)),
        PAIRED,
    ),
    "llama-linear": Family(
        ARCH.LLAMA,
        lambda seed: llama(seed, rope_parameters=LINEAR, attention_bias=True),
        lambda c: basic(c, **rotated(c), **{"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
        PAIRED,
    ),
}


def gemma_rules() -> Rules:
    """Norms are one plus these, so they are drawn about zero."""
    return {"norm": lambda rng, shape: coarse(0.3 * rng.standard_normal(shape))}


def gemma(seed: int) -> TransformersModel:
    config = transformers.GemmaConfig(**SHAPE, head_dim=16, hidden_activation="gelu_pytorch_tanh")
    return TransformersModel(transformers.GemmaForCausalLM, config, seed, embedding=0.3, layer=4.0, rules=gemma_rules())


def gemma2(seed: int) -> TransformersModel:
    config = transformers.Gemma2Config(
        **SHAPE,
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=12,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
        hidden_activation="gelu_pytorch_tanh",
    )
    return TransformersModel(
        transformers.Gemma2ForCausalLM,
        config,
        seed,
        embedding=0.25,
        rules={r"post_\w+norm": lambda rng, shape: coarse(1.5 + 0.3 * rng.standard_normal(shape)), **gemma_rules()},
    )


def phi2(seed: int) -> TransformersModel:
    config = transformers.PhiConfig(
        **{**SHAPE, "num_key_value_heads": 4, "intermediate_size": 128, "num_attention_heads": 4},
        rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    )
    return TransformersModel(transformers.PhiForCausalLM, config, seed)


def phi3(seed: int, original: int) -> TransformersModel:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 100.0,
        "original_max_position_embeddings": original,
        "short_factor": [1.0, 1.1, 1.25, 1.5],
        "long_factor": [1.5, 2.0, 3.0, 4.5],
    }
    config = transformers.Phi3Config(
        **{**SHAPE, "pad_token_id": 71, "max_position_embeddings": 4 * original},
        rope_parameters=rope,
        original_max_position_embeddings=original,
    )
    return TransformersModel(transformers.Phi3ForCausalLM, config, seed)


def longrope(config: Any) -> dict[str, Any]:
    original = config.rope_parameters["original_max_position_embeddings"]
    attention = math.sqrt(1 + math.log(config.max_position_embeddings / original) / math.log(original))
    return basic(config, **rotated(config)) | {
        "rope.scaling.type": "longrope",
        "rope.scaling.original_context_length": original,
        "rope.scaling.attn_factor": attention,
        "attention.sliding_window": 0,
    }


def longrope_factors(config: Any) -> Tensors:
    rope = config.rope_parameters
    return {f"rope_factors_{name}.weight": np.array(rope[f"{name}_factor"]) for name in ("short", "long")}


def gpt2(seed: int) -> TransformersModel:
    config = transformers.GPT2Config(
        vocab_size=N_VOCAB,
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=None,
        eos_token_id=None,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
    )
    rules = {
        r"c_\w+\.weight": lambda rng, shape: coarse(1.2 * rng.standard_normal(shape) / math.sqrt(shape[0])),
        r"wte": lambda rng, shape: coarse(0.3 * rng.standard_normal(shape)),
        r"wpe": lambda rng, shape: coarse(0.2 * rng.standard_normal(shape)),
    }
    return TransformersModel(transformers.GPT2LMHeadModel, config, seed, rules=rules)


def gpt2_keys(config: Any) -> dict[str, Any]:
    return {
        "context_length": config.n_positions,
        "embedding_length": config.n_embd,
        "block_count": config.n_layer,
        "feed_forward_length": 4 * config.n_embd,
        "attention.head_count": config.n_head,
        "attention.layer_norm_epsilon": config.layer_norm_epsilon,
    }


def transposed(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    yield name, values.T


def granite(seed: int) -> TransformersModel:
    config = transformers.GraniteConfig(
        **SHAPE,
        embedding_multiplier=3.0,
        attention_multiplier=0.25,
        residual_multiplier=0.6,
        logits_scaling=1.5,
        tie_word_embeddings=True,
    )
    return TransformersModel(transformers.GraniteForCausalLM, config, seed, embedding=0.4, layer=4.0)


def granite_scales(config: Any) -> dict[str, float]:
    return {
        "attention.scale": config.attention_multiplier,
        "embedding_scale": config.embedding_multiplier,
        "residual_scale": config.residual_multiplier,
        "logit_scale": config.logits_scaling,
    }


def olmo2(seed: int) -> TransformersModel:
    return TransformersModel(transformers.Olmo2ForCausalLM, transformers.Olmo2Config(**SHAPE), seed)


def smollm3(seed: int) -> TransformersModel:
    config = transformers.SmolLM3Config(
        **{**SHAPE, "num_hidden_layers": 4},
        tie_word_embeddings=True,
        use_sliding_window=False,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
    )
    return TransformersModel(transformers.SmolLM3ForCausalLM, config, seed, embedding=0.3, layer=4.0)


MISTRAL3 = {
    **YARN,
    "original_max_position_embeddings": 16,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.3,
}


def mistral3(seed: int) -> TransformersModel:
    config = transformers.Ministral3Config(
        **SHAPE,
        head_dim=16,
        sliding_window=None,
        rope_parameters=MISTRAL3,
        tie_word_embeddings=False,
    )
    return TransformersModel(transformers.Ministral3ForCausalLM, config, seed)


def glm4(seed: int) -> TransformersModel:
    config = transformers.Glm4Config(
        **SHAPE,
        head_dim=16,
        attention_bias=True,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    )
    return TransformersModel(transformers.Glm4ForCausalLM, config, seed)


def command_r(seed: int) -> TransformersModel:
    config = transformers.CohereConfig(
        **SHAPE, logit_scale=0.5, rope_parameters={"rope_type": "default", "rope_theta": 100.0}
    )
    return TransformersModel(transformers.CohereForCausalLM, config, seed, embedding=0.6, layer=4.0)


def command_r_keys(config: Any) -> dict[str, Any]:
    return basic(config) | {
        "attention.layer_norm_epsilon": config.layer_norm_eps,
        "logit_scale": config.logit_scale,
        "rope.scaling.type": "none",
    }


def starcoder2(seed: int) -> TransformersModel:
    config = transformers.Starcoder2Config(
        **{**SHAPE, "intermediate_size": 64},
        sliding_window=None,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
    )
    return TransformersModel(transformers.Starcoder2ForCausalLM, config, seed, embedding=0.3, layer=4.0)


def stablelm(seed: int, **settings: Any) -> TransformersModel:
    config = transformers.StableLmConfig(
        **SHAPE,
        tie_word_embeddings=False,
        **settings,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    )
    return TransformersModel(transformers.StableLmForCausalLM, config, seed)


def stablelm_keys(config: Any) -> dict[str, Any]:
    dims = config.hidden_size // config.num_attention_heads
    return basic(config) | {
        "rope.dimension_count": int(dims * config.rope_parameters["partial_rotary_factor"]),
        "attention.layer_norm_epsilon": config.layer_norm_eps,
        "use_parallel_residual": config.use_parallel_residual,
    }


def head_norms(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    """Norms of single heads lie in one tensor; :func:`oracles.family.stacked` has stacked them."""
    yield name.replace(".norms.weight", ".weight"), values


ATTENTION |= {
    "gemma": Family(ARCH.GEMMA, gemma, lambda c: basic(c, **lengths(c)), {r"norm\.weight$": plus_one}),
    "gemma2": Family(
        ARCH.GEMMA2,
        gemma2,
        lambda c: (
            basic(c, **lengths(c))
            | {
                "attn_logit_softcapping": 2.0,
                "final_logit_softcapping": 3.0,
                "attention.sliding_window": 12,
            }
        ),
        {r"norm\.weight$": plus_one},
        hidden=True,
    ),
    "phi2": Family(
        ARCH.PHI2,
        phi2,
        lambda c: basic(c) | {"rope.dimension_count": 4, "attention.layer_norm_epsilon": c.layer_norm_eps},
        without_effect=("k_proj.bias",),
    ),
    "phi3-longrope-short": Family(ARCH.PHI3, lambda seed: phi3(seed, 256), longrope, {}, longrope_factors),
    "phi3-longrope-long": Family(ARCH.PHI3, lambda seed: phi3(seed, 4), longrope, {}, longrope_factors),
    "gpt2": Family(
        ARCH.GPT2,
        gpt2,
        gpt2_keys,
        {r"c_\w+\.weight$": transposed, r"\.attn\.(masked_)?bias$": unused},
        without_effect=(),
    ),
    "granite": Family(ARCH.GRANITE, granite, lambda c: basic(c, **rotated(c)) | granite_scales(c), PAIRED),
    "olmo2": Family(ARCH.OLMO2, olmo2, basic),
    "smollm3": Family(ARCH.SMOLLM3, smollm3, lambda c: basic(c, **rotated(c)), PAIRED),
    "mistral3": Family(
        ARCH.MISTRAL3,
        mistral3,
        lambda c: (
            basic(c, **lengths(c), **rotated(c), **yarn(c))
            | {
                "rope.scaling.yarn_log_multiplier": 1.0,
                "attention.temperature_scale": 0.3,
            }
        ),
        PAIRED,
    ),
    "glm4": Family(ARCH.GLM4, glm4, lambda c: basic(c, **lengths(c)) | {"rope.dimension_count": 8}),
    "command-r": Family(ARCH.COMMAND_R, command_r, command_r_keys),
    "starcoder2": Family(
        ARCH.STARCODER2,
        starcoder2,
        lambda c: basic(c) | {"attention.layer_norm_epsilon": c.norm_epsilon},
        without_effect=(),
    ),
    "stablelm": Family(
        ARCH.STABLELM,
        lambda seed: stablelm(seed, use_qkv_bias=True),
        stablelm_keys,
    ),
    "stablelm-parallel": Family(
        ARCH.STABLELM,
        lambda seed: stablelm(seed, use_parallel_residual=True, qk_layernorm=True),
        stablelm_keys,
        {r"(q|k)_layernorm": head_norms},
    ),
}
