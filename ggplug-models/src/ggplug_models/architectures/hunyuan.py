"""Hunyuan (arXiv:2411.02265, Tencent 2025), dense and with experts."""

from __future__ import annotations

from ggplug.tensor import Tensor
from ggplug_models.architectures.qwen import Qwen3
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block


@architecture("hunyuan-dense")
class HunyuanDense(Qwen3):
    """Heads of queries and keys are normalised after the rotation."""

    def positioned(self, q: Tensor, k: Tensor, block: Block) -> tuple[Tensor, Tensor]:
        return self.normed(self.rotated(q, block), self.rotated(k, block), block.weights)


@architecture("hunyuan-moe")
class HunyuanMoe(HunyuanDense):
    """The same with experts, and a shared one."""
