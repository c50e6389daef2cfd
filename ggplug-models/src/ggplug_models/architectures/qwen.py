"""Qwen 2 and 3 (arXiv:2407.10671, arXiv:2505.09388), dense and with experts; dots.llm1."""

from __future__ import annotations

from dataclasses import replace

from ggplug.tensor import Tensor
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.model import architecture
from ggplug_models.networks.transformer import Transformer
from ggplug_models.weights.weights import Weights


@architecture("qwen2")
class Qwen2(Transformer, Decoder):
    """Qwen 2: LLaMA's block with biases for queries, keys and values."""


@architecture("qwen2moe")
class Qwen2Moe(Qwen2):
    """Qwen 2 with experts, whose weights are not normalised, and a shared expert that is multiplied by a gate."""

    needs = ("ffn_gate_inp_shexp.weight",)
    normalized_experts = False

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        if self.experts is not None and not self.experts.n_ff_shared:
            self.experts = replace(self.experts, n_ff_shared=self.n_ff[0])


class HeadNorms(Transformer):
    """Heads of queries and keys are normalised before the rotation."""

    def normed(self, q: Tensor, k: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
        return self.norm(w, "attn_q_norm", q), self.norm(w, "attn_k_norm", k)


@architecture("qwen3")
class Qwen3(HeadNorms, Decoder):
    """Qwen 3: heads of queries and keys are normalised; no biases."""


@architecture("qwen3moe")
class Qwen3Moe(Qwen3):
    """Qwen 3 with experts, whose weights are normalised."""


@architecture("dots1")
class Dots1(Qwen3):
    """dots.llm1 (arXiv:2506.05767): experts with sigmoid scores, and shared ones; the first blocks have none."""

    normalized_experts = False


@architecture("qwen2vl")
class Qwen2Vl(Qwen2):
    """The language model of Qwen 2 VL (arXiv:2409.12191); the parts of a text token's position are equal."""


@architecture("qwen3vl")
class Qwen3Vl(Qwen3):
    """The language model of Qwen 3 VL (arXiv:2511.21631)."""


@architecture("qwen3vlmoe")
class Qwen3VlMoe(Qwen3Moe):
    """The language model of Qwen 3 VL with experts."""
