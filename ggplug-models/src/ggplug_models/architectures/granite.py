"""Granite 3 (IBM, 2024), MiniCPM (arXiv:2404.06395): LLaMA's block with factors on embeddings, residuals, logits."""

from __future__ import annotations

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug_models.architectures.llama import Llama
from ggplug_models.layers.attention import Heads
from ggplug_models.layers.rope import Rope
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.metadata.values import REQUIRED
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block, Inputs
from ggplug_models.weights.weights import Weights


@architecture("granite")
class Granite(Llama):
    """Granite 3; without RoPE if ``rope.scaling.finetuned`` is false."""

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        embedding, residual, logits = self.scales()
        self.embedding_scale = hp.number("embedding_scale", embedding) or 1.0
        self.residual_scale = hp.number("residual_scale", residual) or 1.0
        self.logit_scale = hp.number("logit_scale", logits)
        if not self.logit_scale:
            raise hp.refused("logit_scale", "a number that is not 0")
        self.rotates = hp.boolean("rope.scaling.finetuned", True)

    def scales(self) -> tuple[float, float, float]:
        """The factors of embeddings and residuals, and the divisor of logits, of a file without them."""
        return 1.0, 1.0, REQUIRED

    def embedding(self, inputs: Inputs) -> Tensor:
        return gg.scale(super().embedding(inputs), self.embedding_scale)

    def block(self, x: Tensor, block: Block) -> Tensor:
        w = block.weights
        a, x = block.outputs(self.attention(self.norm(w, "attn_norm", x), block), x)
        x = block.named("ffn_inp", x + a * self.residual_scale)
        y = block.named("ffn_out", self.feed_forward(self.norm(w, "ffn_norm", x), block))
        return x + y * self.residual_scale

    def rope_of(self, block: Block) -> Rope | None:
        return self.rope if self.rotates else None

    def scores(self, x: Tensor) -> Tensor:
        return gg.scale(super().scores(x), 1 / self.logit_scale)


@architecture("granitemoe")
class GraniteMoe(Granite):
    """Granite 3 with experts, and a shared expert if the file has its width; always with RoPE."""

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.rotates = True


@architecture("granite_swa")
class GraniteWindows(GraniteMoe):
    """Granite 4.1 (IBM, 2026): attention sinks; the file lists the blocks with a window, and may list those that
    rotate."""

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.slide(hp, 0)
        self.rotating = hp.flags("attention.rope_pattern", len(self.windows))

    def sinks(self, w: Weights, heads: Heads) -> Tensor:
        return w("attn_sinks.weight", heads.n_head)

    def rope_of(self, block: Block) -> Rope | None:
        return super().rope_of(block) if self.rotating is None or self.rotating[block.number] else None


@architecture("minicpm")
class MiniCpm(Granite):
    """MiniCPM: factors that depend on the size if the file has none."""

    def scales(self) -> tuple[float, float, float]:
        return 12.0, 1.4 / self.n_layer**0.5, 256.0 / self.n_embd
