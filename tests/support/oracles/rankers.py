"""Rerankers: encoders with a classifier over the vector of a text, and a language model that answers yes or no."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import transformers

from oracles.attention import ARCH, SHAPE
from oracles.encoders import JinaBert, both_bases, encoder
from oracles.family import Array, Family, Tensors, basic, lengths
from oracles.files import BYTES
from oracles.models import TransformersModel, coarse

RANK = 4
"""llama.cpp's number for the pooling of rerankers."""

PROMPT = "<Instruct>: fit\n{query}\n{document}\nfit?"
YES, NO = BYTES.index("y"), BYTES.index("n")


class Classifier(TransformersModel):
    """A model for the classification of texts; rows are the vectors of tokens."""

    @torch.no_grad()
    def outputs(self, tokens: Sequence[int], noise: float = 0.0) -> Array:
        whole, self.network = self.network, self.network.base_model
        try:
            return super().outputs(tokens, noise)
        finally:
            self.network = whole

    @torch.no_grad()
    def score(self, tokens: Sequence[int]) -> float | Array:
        ids = torch.tensor([list(tokens)])
        found = self.network(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0].numpy()
        return float(found[0]) if len(found) == 1 else found


class Answering(TransformersModel):
    """A language model; the score of a prompt is the probability of one of two answers."""

    def score(self, tokens: Sequence[int]) -> float:
        yes, no = np.exp(self.outputs(tokens)[-1][[YES, NO]])
        return float(yes / (yes + no))

    def classifier(self) -> Tensors:
        return {"cls.output.weight": self.state()["lm_head.weight"][[YES, NO]]}


class JinaRanker(JinaBert):
    """As a classification of texts by BERT: a layer with tanh over the first vector, and one with the score."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        n, rng = self.config.n, np.random.default_rng([seed, 1])
        for name, rows in (("cls", n), ("cls.output", 1)):
            self.weights[f"{name}.weight"] = coarse(1.2 * rng.standard_normal((rows, n)) / np.sqrt(n))
            self.weights[f"{name}.bias"] = coarse(0.2 * rng.standard_normal(rows))

    def score(self, tokens: Sequence[int]) -> float:
        return float(self._linear("cls.output", np.tanh(self._linear("cls", self.outputs(tokens)[0])))[0])


def roberta(seed: int, n_labels: int = 1) -> Classifier:
    shape = {name: value for name, value in SHAPE.items() if name != "num_key_value_heads"}
    config = transformers.XLMRobertaConfig(
        **shape | {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "max_position_embeddings": 66},
        type_vocab_size=1,
        num_labels=n_labels,
    )
    return Classifier(transformers.XLMRobertaForSequenceClassification, config, seed)


def roberta_names(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    """Positions begin behind that of padding."""
    first = config.pad_token_id + 1 if "position_embeddings" in name else 0
    yield name.removeprefix("roberta."), values[first:]


def modern(seed: int) -> Classifier:
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
        classifier_pooling="mean",
        num_labels=1,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    )
    return Classifier(transformers.ModernBertForSequenceClassification, config, seed)


def modern_names(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    yield name.removeprefix("model.").replace("classifier.", "classifier.out_proj."), values


def qwen3(seed: int) -> Answering:
    config = transformers.Qwen3Config(**SHAPE, head_dim=8, tie_word_embeddings=False)
    return Answering(transformers.Qwen3ForCausalLM, config, seed)


def roberta_keys(config: Any) -> dict[str, Any]:
    return encoder(config) | {
        "context_length": config.max_position_embeddings - config.pad_token_id - 1,
        "attention.layer_norm_epsilon": config.layer_norm_eps,
        "hidden_activation": "gelu",
        "pooling_type": RANK,
    }


RANKERS: dict[str, Family] = {
    "bge-reranker": Family(
        ARCH.BERT,
        roberta,
        roberta_keys,
        {"": roberta_names},
        encoder=True,
        pooled_first=True,
        words=True,
        without_effect=("key.bias", "out_proj.bias"),  # a single number cannot be reversed
    ),
    "roberta-classifier": Family(
        ARCH.BERT,
        lambda seed: roberta(seed, 3),
        lambda c: roberta_keys(c) | {"classifier.output_labels": ["joy", "fear", "anger"]},
        {"": roberta_names},
        encoder=True,
        pooled_first=True,
        words=True,
        without_effect=("key.bias",),
    ),
    "jina-reranker": Family(
        ARCH.JINA_BERT_V2,
        JinaRanker,
        lambda c: c.keys() | {"pooling_type": RANK},
        encoder=True,
        pooled_first=True,
        words=True,
        without_effect=("attn_k.bias", "cls.output.bias"),
    ),
    "modern-reranker": Family(
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
                "pooling_type": RANK,
            }
        ),
        {"": modern_names},
        seed=4,
        encoder=True,
        without_effect=("classifier.bias",),
    ),
    "qwen3-reranker": Family(
        ARCH.QWEN3,
        qwen3,
        lambda c: (
            basic(c, **lengths(c))
            | {
                "pooling_type": RANK,
                "classifier.output_labels": ["yes", "no"],
                "tokenizer.chat_template.rerank": PROMPT,
            }
        ),
    ),
}
