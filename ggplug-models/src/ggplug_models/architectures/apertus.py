"""Apertus (arXiv:2509.14233)."""

from __future__ import annotations

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug_models.architectures.qwen import Qwen3
from ggplug_models.layers.feed_forward import plain
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.metadata.values import Values
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block


@architecture("apertus")
class Apertus(Qwen3):
    """A network without a gate, whose activation xIELU has parameters for each block (arXiv:2411.13010)."""

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        plain_keys = Values(hp.values)  # llama.cpp writes them without the architecture
        keys = ("xielu.alpha_n", "xielu.alpha_p", "xielu.beta", "xielu.eps")
        self.xielu = list(zip(*(plain_keys.numbers(key, length=self.n_layer) for key in keys), strict=True))

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        alpha_n, alpha_p, beta, eps = self.xielu[block.number]

        def activation(x: Tensor) -> Tensor:
            return gg.xielu(x, alpha_n, alpha_p, beta, eps)

        return plain(block.weights, x, self.n_ff[block.number], activation)
