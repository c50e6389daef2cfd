"""What a family's table entry says, and the parts that most entries share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from oracles.files import Blocks
from oracles.models import Model

Array = npt.NDArray[Any]
Tensors = dict[str, Array | Blocks]
Change = Callable[[Any, str, Array], Iterable[tuple[str, Array]]]
"""``(config, name, values)`` to tensors, under names of Hugging Face or of the file."""


@dataclass(frozen=True)
class Family:
    """``arch``: by its name if the published package ``gguf`` does not know it yet.

    ``changes``: of tensors whose names match a pattern.  ``fixed``: further tensors that only the settings decide.

    ``n_ctx``: the context that the outputs hold for.  ``lengths``: numbers of tokens of the texts.  ``without_effect``:
    parameters that cannot change the outputs.  ``masked``: whether it predicts masked tokens, and so continues no text.
    ``hidden``: whether the hidden states are recorded as well.
    """

    arch: gguf.MODEL_ARCH | str
    make: Callable[[int], Model]
    keys: Callable[[Any], Mapping[str, Any]]
    changes: Mapping[str, Change] = field(default_factory=dict)
    fixed: Callable[[Any], Tensors] | None = None
    seed: int = 1
    n_ctx: int = 64
    lengths: tuple[int, int, int] = (1, 7, 40)
    encoder: bool = False
    masked: bool = False
    pooled_first: bool = False
    words: bool = False
    without_effect: tuple[str, ...] = ()
    hidden: bool = False

    @property
    def arch_name(self) -> str:
        return self.arch if isinstance(self.arch, str) else str(gguf.MODEL_ARCH_NAMES[self.arch])

    def tensors(self, model: Model) -> Tensors:
        config = model.config
        layers = getattr(config, "num_hidden_layers", None) or config.n_layer
        layers = max(layers, getattr(config, "num_decoder_layers", 0))
        names = None if isinstance(self.arch, str) else gguf.get_tensor_name_map(self.arch, layers)
        found: Tensors = {}
        for name, values in stacked(model.state()).items():
            change = next((change for pattern, change in self.changes.items() if re.search(pattern, name)), None)
            for new, changed in change(config, name, values) if change else [(name, values)]:
                known = (names and names.get_name(new, try_suffixes=(".weight", ".bias"))) or new
                if known in found or not known.startswith(KNOWN):
                    raise ValueError(f"{name}: no name in the file ({known})")
                single = isinstance(changed, np.ndarray) and changed.shape[0] == 1 < changed.ndim
                found[known] = changed[0] if single else changed
        if self.fixed:
            found |= self.fixed(config)
        if hasattr(model, "classifier"):
            found |= model.classifier()
        return found


KNOWN = (
    "altup_",
    "per_layer_",
    "token_embd",
    "blk.",
    "hrm.",
    "output",
    "position_embd",
    "token_types",
    "rope_freqs",
    "rope_factors",
    "cls",
    "enc.",
    "dec.",
)


def stacked(state: Mapping[str, Array]) -> dict[str, Array]:
    """Matrices of experts or streams, and norms of single heads, become one tensor, with these as the slowest axis."""
    found: dict[str, Any] = {}
    for name, values in state.items():
        match = re.fullmatch(r"(.*\.(?:experts|norms|altup_\w*projections))\.(\d+)\.(.*)", name)
        if match:
            found.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = values
        else:
            found[name] = values
    return {
        name: np.stack([each[n] for n in sorted(each)]) if isinstance(each, dict) else each
        for name, each in found.items()
    }


def paired(heads: Callable[[Any], int]) -> Change:
    """Rows of each head from halves, as Hugging Face rotates them, to neighbours, as llama.cpp does."""

    def change(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
        n = heads(config)
        half = values.shape[0] // n // 2
        yield name, values.reshape(n, 2, half, -1).swapaxes(1, 2).reshape(values.shape)

    return change


PAIRED: Mapping[str, Change] = {
    r"q_proj\.(weight|bias)$": paired(lambda c: c.num_attention_heads),
    r"k_proj\.(weight|bias)$": paired(lambda c: c.num_key_value_heads),
}


def plus_one(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    yield name, values + 1


def unused(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    return ()


def basic(config: Any, **more: Any) -> dict[str, Any]:
    """The keys that decoders share; None stands for a key that is left out."""
    keys = {
        "vocab_size": config.vocab_size,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": getattr(config, "num_key_value_heads", config.num_attention_heads),
    }
    if (eps := getattr(config, "rms_norm_eps", None)) is not None:
        keys["attention.layer_norm_rms_epsilon"] = float(eps)
    rope = getattr(config, "rope_parameters", None) or {}
    if "rope_theta" in rope:
        keys["rope.freq_base"] = float(rope["rope_theta"])
    return {key: value for key, value in {**keys, **more}.items() if value is not None}


def head_dim(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def lengths(config: Any) -> dict[str, int]:
    """Keys of files whose heads have a width of their own."""
    return {"attention.key_length": head_dim(config), "attention.value_length": head_dim(config)}


def rotated(config: Any) -> dict[str, int]:
    return {"rope.dimension_count": head_dim(config)}
