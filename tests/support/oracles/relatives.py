"""Further decoders and encoders that transformers has, or whose block is that of another family that it has."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import transformers

from oracles.attention import ARCH, SHAPE, YARN
from oracles.dense import EPS, ROPE, llama_of, model, of
from oracles.encoders import encoder
from oracles.experts import DEEPSEEK, SMALL, SPLIT, deepseek_keys, experts
from oracles.family import PAIRED, Array, Change, Family, basic, lengths, paired, rotated
from oracles.files import N_VOCAB
from oracles.hybrids import MAMBA2, NEMOTRON, state_space
from oracles.mixtures import BLOCKS, CHOSEN, SIGMOID, widths
from oracles.mixtures import of as mixture
from oracles.models import TransformersModel, coarse
from oracles.states import STATE_RULES, named


class Fused(TransformersModel):
    """A model whose file has queries, keys and values in one tensor."""

    def state(self) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for name, values in super().state().items():
            match = re.fullmatch(r"model\.layers\.(\d+)\.self_attn\.([qkv])_proj\.(weight|bias)", name)
            if match is None:
                found[name] = values
            elif match[2] == "q":
                found[f"blk.{match[1]}.attn_qkv.{match[3]}"] = values
        for name, values in super().state().items():
            match = re.fullmatch(r"model\.layers\.(\d+)\.self_attn\.([kv])_proj\.(weight|bias)", name)
            if match is not None:
                fused = f"blk.{match[1]}.attn_qkv.{match[3]}"
                found[fused] = np.concatenate([found[fused], values])
        return found


def qwen(seed: int) -> Fused:
    config = transformers.Qwen2Config(
        **{**SHAPE, "num_key_value_heads": 4}, rope_parameters=ROPE, tie_word_embeddings=False
    )
    return Fused(transformers.Qwen2ForCausalLM, config, seed)


ONE_HEAD: dict[str, Change] = {r"(query|key)_layernorm": paired(lambda c: 1)}
"""The norms of heads, in the order of their rows."""


def codeshell(seed: int) -> Fused:
    config = transformers.Starcoder2Config(
        **SHAPE, norm_epsilon=1e-5, use_bias=True, sliding_window=None, rope_parameters=ROPE, tie_word_embeddings=False
    )
    return Fused(transformers.Starcoder2ForCausalLM, config, seed)


def hunyuan(seed: int) -> TransformersModel:
    return model(
        "HunYuanDenseV1",
        seed,
        {"head_dim": 16, "attention_bias": False, "rope_parameters": ROPE, "tie_word_embeddings": False},
    )


def jina(seed: int) -> TransformersModel:
    shape = {name: value for name, value in SHAPE.items() if name != "num_key_value_heads"}
    config = transformers.JinaEmbeddingsV3Config(
        **shape | {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
        type_vocab_size=1,
        hidden_act="gelu_pytorch_tanh",
        rope_parameters=ROPE,
    )
    return TransformersModel(lambda c: transformers.JinaEmbeddingsV3Model(c, add_pooling_layer=False), config, seed)


MINICPM3: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
    "dim_model_base": 256,
    "rope_parameters": ROPE,
    "tie_word_embeddings": False,
}


def minicpm3_keys(config: Any) -> dict[str, Any]:
    return basic(config) | {
        "attention.key_length": 12,
        "attention.value_length": 12,
        "attention.kv_lora_rank": 16,
        "attention.q_lora_rank": 16,
        "rope.dimension_count": 4,
    }


RELATIVES: dict[str, Family] = {
    "baichuan": Family(ARCH.BAICHUAN, llama_of(), lambda c: basic(c, **rotated(c)), PAIRED, seed=20),
    "qwen": Family(ARCH.QWEN, qwen, lambda c: basic(c, **rotated(c)) | {"feed_forward_length": 64}),
    "codeshell": Family(ARCH.CODESHELL, codeshell, lambda c: basic(c, **rotated(c)) | EPS, seed=20),
    "pangu-embedded": Family(
        ARCH.PANGU_EMBED,
        llama_of(attention_bias=True),
        lambda c: basic(c, **rotated(c)),
        without_effect=("k_proj.bias",),
    ),
    "paddleocr": Family(
        ARCH.PADDLEOCR,
        llama_of(),
        lambda c: basic(c, **rotated(c)) | {"rope.dimension_sections": [2, 1, 1, 0]},
        seed=30,
    ),
    "maincoder": Family(
        ARCH.MAINCODER, hunyuan, lambda c: basic(c, **lengths(c), **rotated(c)), {**PAIRED, **ONE_HEAD}, seed=20
    ),
    "hunyuan_vl": Family(ARCH.HUNYUAN_VL, hunyuan, lambda c: basic(c, **lengths(c)), seed=40),
    "bitnet": Family(
        ARCH.BITNET,
        lambda seed: model(
            "BitNet",
            seed,
            {"hidden_act": "silu", "rope_parameters": ROPE, "tie_word_embeddings": True},
            embedding=0.3,
            layer=4.0,
        ),
        lambda c: basic(c, **rotated(c)),
        {
            r"attn_sub_norm": lambda c, n, v: [(f"blk.{n.split('.')[2]}.attn_sub_norm.weight", v)],
            r"ffn_sub_norm": lambda c, n, v: [(f"blk.{n.split('.')[2]}.ffn_sub_norm.weight", v)],
        },
    ),
    "minicpm3": Family(ARCH.MINICPM3, of("MiniCPM3", **MINICPM3), minicpm3_keys),
    "llama-embed": Family(
        ARCH.LLAMA_EMBED,
        lambda seed: TransformersModel(
            transformers.EuroBertModel,
            transformers.EuroBertConfig(**SHAPE, rope_parameters=ROPE),
            seed,
        ),
        lambda c: encoder(c, **rotated(c)),
        PAIRED,
        encoder=True,
        seed=20,
    ),
    "jina-bert-v3": Family(
        ARCH.JINA_BERT_V3,
        jina,
        lambda c: encoder(c) | {"attention.layer_norm_epsilon": c.layer_norm_eps, "tokenizer.ggml.token_type_count": 1},
        encoder=True,
        without_effect=("k_proj.bias", "key.bias"),
    ),
}


def dbrx(seed: int) -> TransformersModel:
    config = transformers.DbrxConfig(
        d_model=32,
        n_heads=4,
        n_layers=2,
        max_seq_len=64,
        vocab_size=N_VOCAB,
        attn_config={"clip_qkv": 1.5, "kv_n_heads": 2, "rope_theta": 100.0},
        ffn_config={"ffn_hidden_size": 12, "moe_num_experts": 4, "moe_top_k": 2, "ffn_act_fn": {"name": "silu"}},
        rope_parameters=ROPE,
    )
    return TransformersModel(transformers.DbrxForCausalLM, config, seed, rules=DBRX_RULES)


DBRX_RULES = {
    r"experts\.mlp": lambda rng, shape: coarse(1.2 * rng.standard_normal(shape) / np.sqrt(24)),
    r"router": lambda rng, shape: coarse(2 * rng.standard_normal(shape) / np.sqrt(shape[-1])),
}


def dbrx_experts(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    """Matrices of all experts, one after the other; the last products' lie the other way round."""
    part = {"w1": "gate", "v1": "up", "w2": "down"}[name.split(".")[-1]]
    stacked = values.reshape(4, -1, config.d_model)
    yield f"blk.{name.split('.')[2]}.ffn_{part}_exps.weight", stacked.swapaxes(1, 2) if part == "down" else stacked


def dbrx_keys(config: Any) -> dict[str, Any]:
    return {
        "context_length": 64,
        "embedding_length": 32,
        "block_count": 2,
        "feed_forward_length": 12,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.clamp_kqv": 1.5,
        "attention.layer_norm_epsilon": 1e-5,
        "rope.freq_base": 100.0,
        **experts(config, 4),
    }


LLAMA4: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 8,
    "intermediate_size": 12,
    "intermediate_size_mlp": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 2,
    "attention_chunk_size": 8192,
    "use_qk_norm": True,
    "rope_parameters": ROPE,
}


def llama4(seed: int) -> TransformersModel:
    config = transformers.Llama4TextConfig(**{**SMALL, **LLAMA4, "tie_word_embeddings": False})
    return TransformersModel(transformers.Llama4ForCausalLM, config, seed, rules=CHOSEN)


def llama4_experts(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    """Matrices that lie the other way round; the gates' come first."""
    layer, values = name.split(".")[2], values.swapaxes(-1, -2)
    if name.endswith("down_proj"):
        yield f"blk.{layer}.ffn_down_exps.weight", values
        return
    for part, each in zip(("gate", "up"), np.split(values, 2, axis=1), strict=True):
        yield f"blk.{layer}.ffn_{part}_exps.weight", each


def gates_and_ups(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    """The gates' rows come first."""
    parts = {"down": values} if "down" in name else dict(zip(("gate", "up"), np.split(values, 2, axis=1), strict=True))
    for part, each in parts.items():
        yield f"blk.{name.split('.')[2]}.ffn_{part}_exps.weight", each


def nemotron_experts(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    part = "up" if "up_proj" in name else "down"
    yield f"blk.{name.split('.')[2]}.ffn_{part}_exps.weight", values


NEWER: dict[str, Family] = {
    "dbrx": Family(
        ARCH.DBRX,
        dbrx,
        dbrx_keys,
        {r"experts\.mlp\.\w\d": dbrx_experts},
    ),
    "afmoe": Family(
        ARCH.AFMOE,
        lambda seed: mixture(
            "Afmoe",
            seed,
            head_dim=8,
            num_hidden_layers=4,
            num_dense_layers=1,
            moe_intermediate_size=8,
            num_experts=4,
            num_experts_per_tok=2,
            num_shared_experts=1,
            route_scale=1.5,
            global_attn_every_n_layers=4,
            sliding_window=12,
            mup_enabled=True,
            rope_parameters=ROPE,
        ),
        lambda c: (
            basic(c, **lengths(c), **rotated(c), **widths(c, 4, 1, 1, 1.5), **SIGMOID)
            | {"attention.sliding_window": 12}
        ),
        BLOCKS,
    ),
    "llama4": Family(
        ARCH.LLAMA4,
        llama4,
        lambda c: (
            basic(c, **lengths(c), **rotated(c), **experts(c, 4, 1))
            | {
                "feed_forward_length": 16,
                "expert_feed_forward_length": 12,
                "interleave_moe_layer_step": 2,
            }
        ),
        {r"feed_forward\.experts": llama4_experts},
    ),
    "mistral4": Family(
        ARCH.MISTRAL4,
        lambda seed: mixture(
            "Mistral4",
            seed,
            **{
                **DEEPSEEK,
                "q_lora_rank": 16,
                "norm_topk_prob": True,
                "routed_scaling_factor": 1.5,
                "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3},
            },
        ),
        lambda c: (
            deepseek_keys(c, False)
            | {
                "expert_weights_norm": True,
                "expert_gating_func": 1,
                "attention.temperature_scale": 0.3,
                "rope.scaling.yarn_log_multiplier": 0.1,
            }
        ),
        {**SPLIT, r"mlp\.experts\.": gates_and_ups},
    ),
    "nemotron_h_moe": Family(
        ARCH.NEMOTRON_H_MOE,
        lambda seed: model(
            "NemotronH",
            seed,
            {
                **NEMOTRON,
                "layers_block_type": ["mamba", "moe", "attention"],
                "n_routed_experts": 4,
                "n_shared_experts": 1,
                "moe_intermediate_size": 12,
                "moe_shared_expert_intermediate_size": 16,
                "num_experts_per_tok": 2,
                "routed_scaling_factor": 1.5,
                "moe_latent_size": 16,
            },
            rules={**STATE_RULES, **CHOSEN},
        ),
        lambda c: (
            basic(c, **lengths(c), **state_space(c, 64, 16, 4), **SIGMOID, **experts(c, 4))
            | {
                "attention.head_count_kv": [0, 0, 2],
                "feed_forward_length": [0, 12, 0],
                "attention.layer_norm_rms_epsilon": c.layer_norm_epsilon,
                "attention.layer_norm_epsilon": c.layer_norm_epsilon,
                "ssm.group_count": 2,
                "expert_feed_forward_length": 12,
                "expert_shared_feed_forward_length": 16,
                "expert_shared_count": 1,
                "expert_weights_scale": 1.5,
                "moe_latent_size": 16,
            }
        ),
        {
            **MAMBA2,
            **BLOCKS,
            r"mixer\.experts": nemotron_experts,
            r"mixer\.norm": named("norm", shape=(2, -1), end=".weight"),
        },
    ),
}
