"""GPT-2 (Radford et al. 2019), GPT-NeoX (arXiv:2204.06745), StarCoder 1 and 2 (arXiv:2305.06161, arXiv:2402.19173)."""

from __future__ import annotations

from ggplug.tensor import Tensor
from ggplug.types import RopeMode
from ggplug_models.layers.feed_forward import plain
from ggplug_models.layers.linear import LINEAR_BIASES, rows
from ggplug_models.layers.norms import NORM_BIASES, LayerNorm
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block, Inputs
from ggplug_models.networks.transformer import Transformer


class LayerNormed(Transformer, Decoder):
    """Layer norms, biases for all products, and a GELU network without a gate."""

    norm_kind = LayerNorm

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        return plain(block.weights, x, self.n_ff[block.number])


@architecture("gpt2")
class Gpt2(LayerNormed):
    """GPT-2: learned position embeddings."""

    needs = (*NORM_BIASES, *LINEAR_BIASES, "attn_qkv.bias")
    rope_mode = None

    @property
    def most_positions(self) -> int | None:
        """The number of rows of the position embeddings."""
        return self.n_ctx

    def embedding(self, inputs: Inputs) -> Tensor:
        self.w("position_embd.weight", self.n_embd, self.n_ctx)
        return super().embedding(inputs) + rows(self.w, "position_embd", self.n_embd, inputs.positions)


@architecture("starcoder")
class StarCoder(Gpt2):
    """StarCoder: GPT-2 with one head of keys and values for all queries."""


@architecture("gptneox")
class GptNeoX(LayerNormed):
    """GPT-NeoX and Pythia: attention and network in parallel if the file says so, each after a norm of its own."""

    needs = (*NORM_BIASES, *LINEAR_BIASES, "attn_qkv.bias")

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.parallel = hp.boolean("use_parallel_residual", True)

    def block(self, x: Tensor, block: Block) -> Tensor:
        if not self.parallel:
            return super().block(x, block)
        w = block.weights
        a, x = block.outputs(self.attention(self.norm(w, "attn_norm", x), block), x)
        return x + a + block.named("ffn_out", self.feed_forward(self.norm(w, "ffn_norm", x), block))


@architecture("starcoder2")
class StarCoder2(LayerNormed):
    """StarCoder 2: RoPE; several query heads share keys and values; all blocks have the file's window, if there is one,
    which llama.cpp ignores."""

    needs = (*NORM_BIASES, *LINEAR_BIASES)
    rope_mode = RopeMode.NEOX

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.slide(hp, 0)
