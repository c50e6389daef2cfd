"""Dense families with LLaMA's block and few changes."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug.types import RopeMode
from ggplug_models.architectures.gpt2 import LayerNormed, StarCoder2
from ggplug_models.architectures.hunyuan import HunyuanDense
from ggplug_models.architectures.llama import Llama
from ggplug_models.architectures.parallel import Parallel
from ggplug_models.architectures.qwen import Qwen2, Qwen3
from ggplug_models.layers.feed_forward import activated, gated, gated_together
from ggplug_models.layers.linear import LINEAR_BIASES, linear
from ggplug_models.layers.norms import NORM_BIASES, RmsNorm
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block, Inputs
from ggplug_models.state.memory import Kind

LAYERS_OF_13B = 40
"""Baichuan 13B has ALiBi, which its files do not say."""


@architecture("baichuan")
class Baichuan(Llama):
    """Baichuan (arXiv:2309.10305): RoPE in the smaller model, ALiBi in the larger one."""

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        if self.n_layer == LAYERS_OF_13B:
            self.rope, self.max_bias = None, 8.0


@architecture("qwen")
class Qwen(Qwen2):
    """Qwen 1 (arXiv:2309.16609): files have twice the width of the network."""

    needs = ("attn_qkv.bias",)

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.n_ff = [width // 2 for width in self.n_ff]


@architecture("pangu-embedded")
class PanguEmbedded(Qwen2):
    """openPangu Embedded (arXiv:2505.22375): biases of attention."""

    needs = ("attn_output.bias",)


@architecture("paddleocr")
class PaddleOcr(Qwen2):
    """The language model of PaddleOCR-VL (arXiv:2510.14528); the parts of a text token's position are equal."""


@architecture("refact")
class Refact(Llama):
    """Refact (2023): ALiBi in the place of RoPE."""

    rope_mode = None

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.max_bias = 8.0


@architecture("bitnet")
class BitNet(Qwen2):
    """BitNet b1.58 (arXiv:2402.17764): norms before the last products of attention and network."""

    def joined_heads(self, y: Tensor, block: Block, x: Tensor) -> Tensor:
        return self.norm(block.weights, "attn_sub_norm", y)

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        w, n_ff = block.weights, self.n_ff[block.number]
        gate, up = linear(w, "ffn_gate", x, n_ff), linear(w, "ffn_up", x, n_ff)
        h = self.norm(w, "ffn_sub_norm", activated(w, self.gate(gate, up)))
        return linear(w, "ffn_down", h, self.n_embd)


@architecture("talkie")
class Talkie(Llama):
    """Talkie (2026): norms without weights; heads are normalised after the rotation, those of queries with a factor;
    each block adds a multiple of the embeddings."""

    rope_mode = RopeMode.NEOX

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.logit_scale = hp.number("logit_scale")

    def embedding(self, inputs: Inputs) -> Tensor:
        return self.hidden(super().embedding(inputs))

    def positioned(self, q: Tensor, k: Tensor, block: Block) -> tuple[Tensor, Tensor]:
        q, k = (self.hidden(self.rotated(each, block)) for each in (q, k))
        return q * block.weights("attn_q_norm.weight", 1, q.ne[1]), k

    def block(self, x: Tensor, block: Block) -> Tensor:
        first = block.inputs.shared.setdefault("embeddings", x)
        a, x, first = block.outputs(self.attention(block.named("attn_norm", self.hidden(x)), block), x, first)
        x = block.named("ffn_inp", x + a)
        x = x + block.named("ffn_out", self.feed_forward(block.named("ffn_norm", self.hidden(x)), block))
        return x + first * block.weights("layer_output_scale.weight", 1)

    def hidden(self, x: Tensor) -> Tensor:
        return gg.rms_norm(x, eps=self.norm.eps)

    def scores(self, x: Tensor) -> Tensor:
        return gg.scale(super().scores(x), self.logit_scale)


@architecture("deci")
class Deci(Llama):
    """DeciLM and Nemotron NAS (arXiv:2411.19146): blocks have attention, a matrix in its place, or neither; and a
    network or none."""

    all_attend = False

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        pairs = zip(super().kinds, self.heads, strict=False)
        return tuple(kind if heads.n_head_kv else None for kind, heads in pairs)

    def attention(self, x: Tensor, block: Block) -> Tensor:
        if self.heads[block.number].n_head_kv:
            return super().attention(x, block)
        return block.named("attn_out", linear(block.weights, "attn_output", x, self.n_embd))

    def block(self, x: Tensor, block: Block) -> Tensor:
        w = block.weights
        if self.heads[block.number].n_head:
            a, x = block.outputs(self.attention(self.norm(w, "attn_norm", x), block), x)
            x = block.named("ffn_inp", x + a)
        else:
            (x,) = block.outputs(x)
        if not self.n_ff[block.number]:
            return x
        return x + block.named("ffn_out", self.feed_forward(self.norm(w, "ffn_norm", x), block))


@architecture("openelm")
class OpenElm(Qwen3):
    """OpenELM (arXiv:2404.14619): the numbers of heads and the widths of networks grow from block to block."""


@architecture("maincoder")
class MainCoder(HunyuanDense):
    """Maincoder (2026): heads of queries and keys are normalised after the rotation of adjacent pairs."""

    rope_mode = RopeMode.NORMAL


@architecture("hunyuan_vl")
class HunyuanVl(HunyuanDense):
    """The language model of HunyuanOCR (arXiv:2511.19575); the parts of a text token's position are equal."""

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        growth = hp.number("rope.scaling.alpha", 0.0)
        if growth > 0 and self.rope is not None:
            d = self.heads[0].d_k
            self.rope = replace(self.rope, base=self.rope.base * growth ** (d / (d - 2)))


@architecture("plamo")
class Plamo(Parallel):
    """PLaMo (2023): attention and network read the same RMS norm."""

    norm_kind = RmsNorm


@architecture("plamo3")
class Plamo3(Qwen3):
    """PLaMo 3 (2025): norms before and after attention and network; windows, whose blocks have a base of their own."""

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.slide_with_rope(hp, 8)

    def block(self, x: Tensor, block: Block) -> Tensor:
        return self.sandwich(x, block)

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        return gated_together(block.weights, x, self.n_ff[block.number])


@architecture("codeshell")
class CodeShell(StarCoder2):
    """CodeShell (arXiv:2403.15747): StarCoder 2's block."""


@architecture("jais")
class Jais(LayerNormed):
    """Jais (arXiv:2308.16149): ALiBi, logits divided by the width of a head, SwiGLU with biases."""

    needs = (*NORM_BIASES, *LINEAR_BIASES, "attn_qkv.bias", "ffn_gate.bias")
    rope_mode = None

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.scale = 1 / self.heads[0].d_k
        self.max_bias = hp.number("attention.max_alibi_bias", 0.0, at_least=0)

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        return gated(block.weights, x, self.n_ff[block.number], self.gate)
