"""Models whose rows are embeddings of tokens that see each other in both directions."""

from __future__ import annotations

from typing import Any

import transformers

from oracles.attention import ARCH, SHAPE, gemma_rules
from oracles.family import Family, basic, lengths, plus_one
from oracles.files import N_VOCAB
from oracles.jina import JinaBert
from oracles.models import TransformersModel, coarse


def gemma_embedding(seed: int) -> TransformersModel:
    shape = {**SHAPE, "num_hidden_layers": 6, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.Gemma3TextConfig(
        **shape,
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=12,
        use_bidirectional_attention=True,
        hidden_activation="gelu_pytorch_tanh",
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    )
    return TransformersModel(transformers.Gemma3TextModel, config, seed, embedding=0.3, rules=gemma_rules())


def nomic(seed: int) -> TransformersModel:
    shape = {name: value for name, value in SHAPE.items() if name != "num_key_value_heads"} | {"pad_token_id": 0}
    config = transformers.NomicBertConfig(**shape, rope_parameters={"rope_type": "default", "rope_theta": 100.0})
    return TransformersModel(lambda c: transformers.NomicBertModel(c, add_pooling_layer=False), config, seed)


def modern(seed: int) -> TransformersModel:
    shape = {name: value for name, value in SHAPE.items() if name != "num_key_value_heads"} | {
        "num_hidden_layers": 3,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    config = transformers.ModernBertConfig(
        **shape,
        cls_token_id=1,
        sep_token_id=2,
        local_attention=8,
        hidden_activation="gelu_pytorch_tanh",
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    )
    return TransformersModel(transformers.ModernBertModel, config, seed)


def t5(seed: int) -> TransformersModel:
    config = transformers.T5Config(
        vocab_size=N_VOCAB,
        d_model=32,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=4,
        relative_attention_num_buckets=8,
        feed_forward_proj="gated-gelu",
    )
    rules = {
        "shared": lambda rng, shape: coarse(rng.standard_normal(shape)),
        r"SelfAttention\.[qk]": lambda rng, shape: coarse(0.4 * rng.standard_normal(shape) / shape[-1] ** 0.5),
        "relative_attention_bias": lambda rng, shape: coarse(rng.standard_normal(shape)),
    }
    return TransformersModel(transformers.T5EncoderModel, config, seed, rules=rules)


def encoder(config: Any, **more: Any) -> dict[str, Any]:
    return basic(config, **more) | {"attention.causal": False, "pooling_type": 1}


def both_bases(config: Any) -> dict[str, float]:
    rope = config.rope_parameters
    return {
        "rope.freq_base": rope["full_attention"]["rope_theta"],
        "rope.freq_base_swa": rope["sliding_attention"]["rope_theta"],
    }


ENCODERS: dict[str, Family] = {
    "gemma-embedding": Family(
        ARCH.GEMMA_EMBEDDING,
        gemma_embedding,
        lambda c: encoder(c, **lengths(c)) | both_bases(c) | {"attention.sliding_window": 12},
        {r"norm\.weight$": plus_one},
        encoder=True,
    ),
    "nomic-bert": Family(
        ARCH.NOMIC_BERT,
        nomic,
        lambda c: encoder(c) | {"attention.layer_norm_epsilon": c.layer_norm_eps},
        encoder=True,
        words=True,
    ),
    "modern-bert": Family(
        ARCH.MODERN_BERT,
        modern,
        lambda c: (
            encoder(c)
            | both_bases(c)
            | {
                "attention.layer_norm_epsilon": c.norm_eps,
                "attention.sliding_window": c.local_attention,
                "attention.sliding_window_pattern": 3,
                "rope.scaling.type": "none",
            }
        ),
        encoder=True,
    ),
    "t5encoder": Family(
        ARCH.T5ENCODER,
        t5,
        lambda c: {
            "context_length": 64,
            "embedding_length": 32,
            "block_count": 2,
            "feed_forward_length": 32,
            "attention.head_count": 4,
            "attention.key_length": 8,
            "attention.value_length": 8,
            "attention.layer_norm_epsilon": 1e-6,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "attention.relative_buckets_count": 8,
            "attention.causal": False,
            "pooling_type": 1,
        },
        encoder=True,
    ),
    "eurobert": Family(
        ARCH.EUROBERT,
        lambda seed: TransformersModel(
            transformers.EuroBertModel, transformers.EuroBertConfig(**{**SHAPE, "mask_token_id": 1}), seed
        ),
        encoder,
        encoder=True,
    ),
    "jina-bert-v2": Family(
        ARCH.JINA_BERT_V2,
        JinaBert,
        lambda c: c.keys(),
        encoder=True,
        words=True,
        without_effect=("attn_k.bias",),
    ),
}
