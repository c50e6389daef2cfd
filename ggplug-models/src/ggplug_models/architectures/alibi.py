"""Families with ALiBi (arXiv:2108.12409): BLOOM (arXiv:2211.05100), MPT (MosaicML, 2023)."""

from __future__ import annotations

from ggplug.tensor import Tensor
from ggplug_models.architectures.gpt2 import LayerNormed
from ggplug_models.layers.linear import LINEAR_BIASES
from ggplug_models.layers.norms import NORM_BIASES
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Inputs


@architecture("mpt")
class Mpt(LayerNormed):
    """MPT: fused queries, keys and values, which may be clamped; published models have no biases."""

    rope_mode = None

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.max_bias = hp.number("attention.max_alibi_bias", 0.0, at_least=0)


@architecture("bloom")
class Bloom(LayerNormed):
    """BLOOM: normalised embeddings."""

    needs = (*NORM_BIASES, *LINEAR_BIASES, "attn_qkv.bias", "token_embd_norm.bias")
    rope_mode = None

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.max_bias = 8.0

    def embedding(self, inputs: Inputs) -> Tensor:
        return self.norm(self.w, "token_embd_norm", super().embedding(inputs))
