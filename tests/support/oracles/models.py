"""Models with seeded random weights, every tensor of which matters, and what they compute, in double precision."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import transformers
from safetensors import safe_open

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

Array = npt.NDArray[Any]
Rules = Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], Array]]
"""Of the names that a pattern matches: how their values are drawn."""


class Model(Protocol):
    """``state``: the weights by the names that a folder of Hugging Face has; ``outputs``: rows for tokens."""

    config: Any

    def state(self) -> dict[str, Array]: ...
    def outputs(self, tokens: Sequence[int], noise: float = 0.0) -> Array: ...
    @contextmanager
    def changed(self, name: str) -> Iterator[None]: ...
    def parameters(self) -> list[str]: ...


def coarse(values: Array) -> Array:
    """Rounded to three significant bits, of which two follow the first: half precision holds them, and their files
    compress to a third."""
    bits = values.astype(np.float16).view(np.uint16)
    return ((bits + 0x80) & 0xFF00).astype(np.uint16).view(np.float16).astype(np.float64)


def draw(
    rng: np.random.Generator, name: str, shape: tuple[int, ...], embedding: float, head: float, layer: float
) -> Array:
    """Products that keep the spread of their operand, norms about one, biases off zero; all coarse."""
    if len(shape) == 1:
        if name.endswith("bias"):
            return coarse(0.2 * rng.standard_normal(shape))
        return coarse(1 + 0.3 * rng.standard_normal(shape))
    if re.search(r"embed|wte|wpe", name):
        return coarse(embedding * rng.standard_normal(shape))
    if "lm_head" in name or name == "output.weight":
        return coarse(head * rng.standard_normal(shape) / np.sqrt(shape[-1]))
    gain = layer if re.search(r"o_proj|down_proj|c_proj|output_linear|out_proj|dense|fc2|w2", name) else 1.2
    return coarse(gain * rng.standard_normal(shape) / np.sqrt(shape[-1]))


BIAS: Rules = {"e_score_correction_bias|expert_bias": lambda rng, shape: coarse(0.2 * rng.standard_normal(shape))}
"""Of the choice of experts: in some models a parameter, in others a buffer, which would be zero."""


class TransformersModel:
    """A model of the library with weights of its own.

    ``embedding``, ``head``: spread of the embeddings, gain of the last product.  ``layer``: gain of the products whose
    results are added to the stream; where the head is the embeddings, the model would repeat a token for ever unless
    they outweigh its embedding.  ``buffers``: of those that are drawn as well, in addition to :data:`BIAS`.
    """

    def __init__(
        self,
        kind: Any,
        config: Any,
        seed: int,
        *,
        embedding: float = 1.0,
        head: float = 2.0,
        layer: float = 1.2,
        rules: Rules | None = None,
        buffers: Rules | None = None,
    ) -> None:
        self.config = config
        config._attn_implementation = config._experts_implementation = "eager"  # the others know no double precision
        torch.manual_seed(0)
        self.network = kind(config).to(torch.float64).eval()
        rng = np.random.default_rng(seed)
        with torch.no_grad():
            for name, parameter in self.network.named_parameters():
                shape = tuple(parameter.shape)
                rule = next((rule for pattern, rule in (rules or {}).items() if re.search(pattern, name)), None)
                values = rule(rng, shape) if rule else draw(rng, name, shape, embedding, head, layer)
                parameter.copy_(torch.from_numpy(np.ascontiguousarray(values)))
            self.drawn: dict[str, torch.Tensor] = dict(self.network.named_parameters())
            for name, buffer in self.network.named_buffers():
                for pattern, rule in {**BIAS, **(buffers or {})}.items():
                    if re.search(pattern, name):
                        buffer.copy_(torch.from_numpy(rule(rng, tuple(buffer.shape))))
                        self.drawn[name] = buffer

    def state(self) -> dict[str, Array]:
        with tempfile.TemporaryDirectory() as folder:
            self.network.save_pretrained(folder)
            values = {}
            for path in sorted(Path(folder).glob("*.safetensors")):
                with safe_open(path, framework="pt") as file:
                    values.update({name: file.get_tensor(name).to(torch.float64).numpy() for name in file.keys()})  # noqa: SIM118
        return values

    def save(self, folder: Path) -> None:
        self.network.to(torch.float32).save_pretrained(folder)
        self.network.to(torch.float64)

    def inputs(self, tokens: Sequence[int]) -> dict[str, Any]:
        """What the network reads for tokens."""
        ids = torch.tensor([list(tokens)])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    @torch.no_grad()
    def outputs(self, tokens: Sequence[int], noise: float = 0.0) -> Array:
        hooks = []
        if noise:
            generator = torch.Generator().manual_seed(len(tokens))

            def spoil(module: Any, inputs: Any, out: torch.Tensor) -> torch.Tensor:
                return out * (1 + noise * torch.randn(out.shape, generator=generator, dtype=out.dtype))

            table = self.network.get_input_embeddings().weight
            tables = (each for each in self.network.modules() if isinstance(each, torch.nn.Embedding))
            hooks = [each.register_forward_hook(spoil) for each in tables if each.weight is table]
        try:
            result = self.network(**self.inputs(tokens), **self._without_cache())
        finally:
            for hook in hooks:
                hook.remove()
        rows = result.logits if hasattr(result, "logits") else result.last_hidden_state
        return rows[0].to(torch.float64).numpy()

    @torch.no_grad()
    def hidden(self, tokens: Sequence[int]) -> Array:
        """The embeddings, the outputs of all layers but the last, and the normalised output of the last."""
        result = self.network(**self.inputs(tokens), output_hidden_states=True, **self._without_cache())
        return torch.stack([each[0] for each in result.hidden_states]).to(torch.float64).numpy()

    def _without_cache(self) -> dict[str, bool]:
        return {"use_cache": False} if hasattr(self.config, "use_cache") else {}

    def parameters(self) -> list[str]:
        return list(self.drawn)

    @contextmanager
    def changed(self, name: str) -> Iterator[None]:
        """While it lasts the parameter is the other way round, along every axis."""
        parameter = self.drawn[name]
        kept = parameter.detach().clone()
        with torch.no_grad():
            parameter.copy_(kept.flip(tuple(range(kept.ndim))))
        try:
            yield
        finally:
            with torch.no_grad():
                parameter.copy_(kept)


class OwnModel:
    """A model that ``transformers`` lacks, in NumPy: ``weights`` by the file's names; subclasses compute rows."""

    config: Any
    weights: dict[str, Array]

    def state(self) -> dict[str, Array]:
        return self.weights

    def parameters(self) -> list[str]:
        return list(self.weights)

    @contextmanager
    def changed(self, name: str) -> Iterator[None]:
        kept = self.weights[name]
        self.weights[name] = np.flip(kept)
        try:
            yield
        finally:
            self.weights[name] = kept

    def noisy(self, rows: Array, noise: float) -> Array:
        return rows * (1 + noise * np.random.default_rng(len(rows)).standard_normal(rows.shape))


def layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * weight + bias


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))
