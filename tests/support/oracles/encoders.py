"""Models whose rows are embeddings of tokens that see each other in both directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers

from oracles.attention import ARCH, SHAPE, gemma_rules
from oracles.family import Family, basic, lengths, plus_one
from oracles.files import BOS, N_VOCAB
from oracles.models import Array, OwnModel, TransformersModel, coarse, layer_norm


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


T5 = {
    "vocab_size": N_VOCAB,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "feed_forward_proj": "gated-gelu",
}


def scaled(gain: float) -> Callable[[np.random.Generator, tuple[int, ...]], Array]:
    """Draws matrices whose products have the spread of their operand times ``gain``."""
    return lambda rng, shape: coarse(gain * rng.standard_normal(shape) / shape[-1] ** 0.5)


T5_RULES = {
    "shared": lambda rng, shape: coarse(rng.standard_normal(shape)),
    r"Attention\.[qk]": scaled(0.4),
    "relative_attention_bias": lambda rng, shape: coarse(rng.standard_normal(shape)),
}


def t5(seed: int) -> TransformersModel:
    return TransformersModel(transformers.T5EncoderModel, transformers.T5Config(**T5), seed, rules=T5_RULES)


class EncoderDecoderModel(TransformersModel):
    """A model that reads a source text first: one of the tokens that :meth:`source` draws."""

    def source(self, tokens: Sequence[int]) -> list[int]:
        """The source text of a text, which depends on its second token alone; it has 3 to 48 tokens."""
        rng = np.random.default_rng(tokens[1] if len(tokens) > 1 else 0)
        return [int(each) for each in rng.integers(5, N_VOCAB - 4, size=int(rng.integers(3, 49)))]

    def inputs(self, tokens: Sequence[int]) -> dict[str, Any]:
        ids = torch.tensor([self.source(tokens)])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "decoder_input_ids": torch.tensor([tokens])}


def t5_whole(seed: int, *, tied: bool, **more: Any) -> TransformersModel:
    shape = {
        **T5,
        "num_heads": 2,
        "d_kv": 32,
        "decoder_start_token_id": BOS,
        "pad_token_id": BOS,
        "tie_word_embeddings": tied,
        **more,
    }

    def kind(config: Any) -> Any:
        network = transformers.T5ForConditionalGeneration(config)
        if not tied:
            network.lm_head.weight = torch.nn.Parameter(network.lm_head.weight.detach().clone())
        return network

    # The feed-forward networks outweigh the embeddings and the source text: otherwise one token repeats for ever.
    gains = {r"\.wo\.": 8, r"EncDecAttention\.[qk]": 0.8, r"EncDecAttention\.o": 3}
    rules = {name: scaled(gain) for name, gain in gains.items()} | T5_RULES
    return EncoderDecoderModel(kind, transformers.T5Config(**shape), seed, rules=rules)


def t5_keys(config: Any) -> dict[str, Any]:
    return {
        "context_length": 64,
        "embedding_length": config.d_model,
        "block_count": config.num_layers,
        "feed_forward_length": config.d_ff,
        "attention.head_count": config.num_heads,
        "attention.key_length": config.d_kv,
        "attention.value_length": config.d_kv,
        "attention.layer_norm_epsilon": 1e-6,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.relative_buckets_count": config.relative_attention_num_buckets,
    }


def t5_whole_keys(config: Any) -> dict[str, Any]:
    return t5_keys(config) | {"decoder_block_count": config.num_decoder_layers, "decoder_start_token_id": BOS}


def encoder(config: Any, **more: Any) -> dict[str, Any]:
    return basic(config, **more) | {"attention.causal": False, "pooling_type": 1}


def both_bases(config: Any) -> dict[str, float]:
    rope = config.rope_parameters
    return {
        "rope.freq_base": rope["full_attention"]["rope_theta"],
        "rope.freq_base_swa": rope["sliding_attention"]["rope_theta"],
    }


@dataclass(frozen=True)
class Settings:
    n: int = 32
    heads: int = 4
    inner: int = 48
    num_hidden_layers: int = 2
    eps: float = 1e-12

    def keys(self) -> dict[str, Any]:
        return {
            "context_length": 64,
            "embedding_length": self.n,
            "block_count": self.num_hidden_layers,
            "feed_forward_length": self.inner,
            "attention.head_count": self.heads,
            "attention.layer_norm_epsilon": self.eps,
            "attention.causal": False,
            "pooling_type": 1,
        }


class JinaBert(OwnModel):
    """Jina embeddings 2 (arXiv 2310.19923): linear biases in the place of positions, and gated MLPs.

    GELU is the formula with tanh, as llama.cpp has it.
    """

    def __init__(self, seed: int) -> None:
        self.config = c = Settings()
        rng = np.random.default_rng(seed)
        self.weights = w = {
            "token_embd.weight": coarse(rng.standard_normal((N_VOCAB, c.n))),
            "token_types.weight": coarse(0.5 * rng.standard_normal((2, c.n))),
        }
        norms = ["token_embd_norm"]
        for i in range(c.num_hidden_layers):
            b = f"blk.{i}."
            shapes = {
                "attn_q": (c.n, c.n),
                "attn_k": (c.n, c.n),
                "attn_v": (c.n, c.n),
                "attn_output": (c.n, c.n),
                "ffn_gate": (c.inner, c.n),
                "ffn_up": (c.inner, c.n),
                "ffn_down": (c.n, c.inner),
            }
            for name, shape in shapes.items():
                w[f"{b}{name}.weight"] = coarse(1.5 * rng.standard_normal(shape) / np.sqrt(shape[1]))
                if name not in ("ffn_gate", "ffn_up"):
                    w[f"{b}{name}.bias"] = coarse(0.2 * rng.standard_normal(shape[0]))
            norms += [f"{b}attn_output_norm", f"{b}layer_output_norm"]
        for name in norms:
            w[f"{name}.weight"] = coarse(1 + 0.3 * rng.standard_normal(c.n))
            w[f"{name}.bias"] = coarse(0.2 * rng.standard_normal(c.n))

    def outputs(self, tokens: Sequence[int], noise: float = 0.0) -> Array:
        w, c = self.weights, self.config
        x = self.noisy(w["token_embd.weight"][list(tokens)], noise) + w["token_types.weight"][0]
        x = self._norm("token_embd_norm", x)
        for i in range(c.num_hidden_layers):
            b = f"blk.{i}."
            x = self._norm(f"{b}attn_output_norm", x + self._attention(b, x))
            gate, up = x @ w[f"{b}ffn_gate.weight"].T, x @ w[f"{b}ffn_up.weight"].T
            gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
            x = self._norm(f"{b}layer_output_norm", x + self._linear(f"{b}ffn_down", gate * up))
        return x

    def _attention(self, b: str, x: Array) -> Array:
        heads, width = self.config.heads, self.config.n // self.config.heads
        q, k, v = (self._linear(f"{b}attn_{name}", x).reshape(len(x), heads, width).swapaxes(0, 1) for name in "qkv")
        slopes = 2.0 ** (-8 * np.arange(1, heads + 1) / heads)
        positions = np.arange(len(x))
        scores = q @ k.swapaxes(1, 2) / np.sqrt(width)
        scores = scores - slopes[:, None, None] * np.abs(positions[:, None] - positions)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        rows = (powers / powers.sum(-1, keepdims=True)) @ v
        return self._linear(f"{b}attn_output", rows.swapaxes(0, 1).reshape(len(x), -1))

    def _linear(self, name: str, x: Array) -> Array:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _norm(self, name: str, x: Array) -> Array:
        return layer_norm(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], self.config.eps)


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
        lambda c: t5_keys(c) | {"attention.causal": False, "pooling_type": 1},
        encoder=True,
    ),
    "t5": Family(
        ARCH.T5,
        lambda seed: t5_whole(seed, tied=True, feed_forward_proj="relu", num_layers=3, num_decoder_layers=2),
        t5_whole_keys,
    ),
    "t5-gated": Family(ARCH.T5, lambda seed: t5_whole(seed, tied=False), t5_whole_keys),
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
