"""Families that compute their blocks several times; each time has keys and values of its own."""

from __future__ import annotations

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug.types import RopeMode
from ggplug_models.architectures.llama import Llama
from ggplug_models.architectures.windowed import GatedHeads
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import MOST_BLOCKS, Block, Inputs
from ggplug_models.weights.weights import Weights


class Looped(Llama):
    """Blocks are numbered as they are computed; several have the same weights."""

    def own(self, number: int) -> int:
        """The number, in the file, of the weights of a block."""
        raise NotImplementedError

    def weights_of(self, number: int) -> Weights:
        return self.w.block(self.own(number), called=number)


@architecture("nanbeige")
class Nanbeige(Looped):
    """Nanbeige 4.5 (2026): LLaMA's blocks, computed ``num_loops`` times, with the last norm between."""

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.n_own = self.n_layer
        loops = hp.integer("num_loops", 1, at_most=MOST_BLOCKS // self.n_own)
        self.normed_between = not hp.boolean("skip_loop_final_norm", False)
        self.n_layer *= loops
        self.heads, self.windows, self.n_ff = self.heads * loops, self.windows * loops, self.n_ff * loops

    def own(self, number: int) -> int:
        return number % self.n_own

    def block(self, x: Tensor, block: Block) -> Tensor:
        if self.normed_between and block.number and self.own(block.number) == 0:
            x = block.named("loop_norm", self.norm(self.w, "output_norm", x))
        return super().block(x, block)


@architecture("hrm_text")
class HrmText(GatedHeads, Looped):
    """HRM-Text (arXiv:2506.21734): a low and a high stack of blocks, which read the sum of both results in turns.

    In each of ``hrm.h_cycles`` cycles, the low stack is computed ``hrm.l_cycles`` times, then the high one.  Norms have
    no weights.
    """

    rope_mode = RopeMode.NEOX

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.embedding_scale = hp.number("embedding_scale", 1.0) or 1.0
        self.of_stack = hp.integer("hrm.layers_per_stack")
        self.low_cycles = hp.integer("hrm.l_cycles")
        wanted = self.of_stack * hp.integer("hrm.h_cycles") * (self.low_cycles + 1)
        if self.n_layer != wanted:
            raise hp.refused("block_count", f"{wanted}, by the numbers of cycles and of layers of a stack")

    def is_high(self, number: int) -> bool:
        """Whether a block belongs to the high stack."""
        return number // self.of_stack % (self.low_cycles + 1) == self.low_cycles

    def own(self, number: int) -> int:
        return number % self.of_stack + (self.of_stack if self.is_high(number) else 0)

    def embedding(self, inputs: Inputs) -> Tensor:
        return gg.scale(super().embedding(inputs), self.embedding_scale)

    def input_of_last(self, inputs: Inputs) -> Tensor:
        high = self.embedding(inputs).named("inp_embd")
        low = self.w("hrm.z_l_init", self.n_embd)
        x = high
        for number in range(self.n_layer):
            if number % self.of_stack == 0:
                x = high + low
            if number == self.n_layer - 1:
                break
            x = self.output_of(number, x, inputs)
            if (number + 1) % self.of_stack == 0:
                if self.is_high(number):
                    high = self.hidden(x)
                else:
                    low = self.hidden(x)
        return x

    def block(self, x: Tensor, block: Block) -> Tensor:
        a, x = block.outputs(self.attention(block.named("attn_norm", self.hidden(x)), block), x)
        x = block.named("ffn_inp", x + a)
        return x + block.named("ffn_out", self.feed_forward(block.named("ffn_norm", self.hidden(x)), block))

    def hidden(self, x: Tensor) -> Tensor:
        return gg.rms_norm(x, eps=self.norm.eps)
