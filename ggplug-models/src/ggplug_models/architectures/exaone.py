"""EXAONE 3 (arXiv:2408.03541), EXAONE 4 (arXiv:2507.11407), and K-EXAONE (arXiv:2601.01739)."""

from __future__ import annotations

from ggplug.tensor import Tensor
from ggplug.types import RopeMode
from ggplug_models.architectures.llama import Llama
from ggplug_models.architectures.qwen import Qwen3
from ggplug_models.layers.experts import Experts, Gating
from ggplug_models.layers.rope import Rope
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block


@architecture("exaone")
class Exaone(Llama):
    """LLaMA's block, with RoPE of halves."""

    rope_mode = RopeMode.NEOX


class _Sliding(Qwen3):
    """Three of four blocks have a window; in models with a window, only these rotate."""

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.slide(hp, 4)
        self.all_rotate = not hp.integer("attention.sliding_window", 0, at_least=0)

    def rope_of(self, block: Block) -> Rope | None:
        return self.rope if self.windows[block.number] or self.all_rotate else None


@architecture("exaone4")
class Exaone4(_Sliding):
    """Norms after attention and network, none before."""

    def block(self, x: Tensor, block: Block) -> Tensor:
        w = block.weights
        a, x = block.outputs(self.attention(x, block), x)
        x = block.named("ffn_inp", x + self.norm(w, "post_attention_norm", a))
        return x + self.norm(w, "post_ffw_norm", block.named("ffn_out", self.feed_forward(x, block)))


@architecture("exaone-moe")
class ExaoneMoe(_Sliding):
    """Experts with sigmoid scores, and a shared one; the first blocks have none."""

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.experts = Experts.of(hp, gating=Gating.SIGMOID, normalized=False)
