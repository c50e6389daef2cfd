"""T5 (arXiv:1910.10683) and models with the same block, such as Flan-T5 and UMT5: the encoder alone, and both parts."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

import ggplug as gg
from ggplug.backend import Device
from ggplug.tensor import Tensor
from ggplug_models.layers.attention import projections, split
from ggplug_models.layers.feed_forward import plain
from ggplug_models.layers.linear import linear
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.encoder import Encoder, Texts
from ggplug_models.networks.encoder_decoder import EncoderDecoder, Source
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import MOST_BLOCKS, Block
from ggplug_models.networks.transformer import Transformer
from ggplug_models.state.cells import SOURCE
from ggplug_models.state.memory import KeysValues, Kind, Memory
from ggplug_models.weights.weights import Weights

FARTHEST = 128
"""Positions that are at least this far apart have the same bias."""


class Biased(Transformer):
    """Queries are not scaled; a bias for each head depends on how far tokens are apart, by buckets."""

    varies = ("attn_rel_b.weight",)
    rope_mode = None

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.scale = 1.0
        self.n_buckets = hp.integer("attention.relative_buckets_count", at_least=4)

    def buckets_before(self, behind: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The bucket of each distance for a text whose tokens see those before them, all others being 0 behind."""
        return self._buckets(np.maximum(-behind, 0), self.n_buckets)

    def buckets_around(self, behind: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The bucket of each distance for a text whose tokens see all others; each direction has half of them."""
        half = self.n_buckets // 2
        return np.where(behind > 0, half, 0) + self._buckets(np.abs(behind), half)

    def _buckets(self, apart: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
        """Half of ``count`` buckets hold one distance each, and the others distances that grow exponentially."""
        exact = count // 2
        grown = np.log(np.maximum(apart, 1).astype(np.float32) / exact) / np.log(FARTHEST / exact) * (count - exact)
        return np.where(apart < exact, apart, np.minimum(exact + grown.astype(np.int64), count - 1))

    def bias(self, block: Block) -> Tensor:
        """The biases of pairs of tokens, [keys, queries, n_head, ...], from the block's table, or from the first's."""
        inputs, name = block.inputs, "attn_rel_b.weight"
        w = block.weights if name in block.weights else self.first_of(inputs)
        if w.prefix not in inputs.shared:
            if "pairs" not in inputs.shared:
                around = isinstance(inputs, Texts)
                inputs.shared["pairs"] = inputs.of_pairs(self.buckets_around if around else self.buckets_before)
            pairs, n_head = inputs.shared["pairs"], self.heads[block.number].n_head
            found = gg.get_rows(w(name, n_head, self.n_buckets), gg.reshape(pairs, pairs.size))
            inputs.shared[w.prefix] = gg.cont(gg.permute(gg.reshape(found, n_head, *pairs.ne[:3]), 2, 0, 1, 3))
        return inputs.shared[w.prefix]

    def first_of(self, inputs: object) -> Weights:
        """The weights of the first block that reads these inputs."""
        return self.weights_of(0)

    def attention(self, x: Tensor, block: Block) -> Tensor:
        w = block.weights
        q, k, v = projections(w, x, self.heads[block.number])
        y = block.attend(q, k, v, scale=self.scale, bias=self.bias(block))
        return block.named("attn_out", linear(w, "attn_o", y, self.n_embd))

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        if "ffn_gate.weight" in block.weights:
            return super().feed_forward(x, block)
        return plain(block.weights, x, self.n_ff[block.number], gg.relu)

    def gate(self, x: Tensor, up: Tensor) -> Tensor:
        return gg.geglu(x, up)


@architecture("t5encoder")
class T5Encoder(Biased, Encoder):
    """The encoder of T5."""

    def weights_of(self, number: int) -> Weights:
        return self.w.block(number, "enc.")

    def hidden(self, x: Tensor) -> Tensor:
        return self.norm(self.w, "enc.output_norm", x)


@architecture("t5")
class T5(Biased, EncoderDecoder):
    """T5: ``n_layer`` blocks of the decoder, and ``n_encoder`` of the encoder.

    After the keys and values of its own tokens, a session keeps those of the source text for each block.
    """

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.logit_scale = hp.number("logit_scale", None)
        self.n_encoder = self.n_layer
        self.n_layer = hp.integer("decoder_block_count", self.n_layer, at_most=MOST_BLOCKS)
        more = self.n_layer - self.n_encoder
        self.heads += self.heads[-1:] * more
        self.n_ff += self.n_ff[-1:] * more
        self.windows += [0] * more

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        own = super().kinds
        heads = self.heads[0]
        return own + (KeysValues(heads.k_width, heads.v_width, min(heads.d_k, heads.d_v), SOURCE),) * self.n_layer

    def weights_of(self, number: int) -> Weights:
        """The weights of a block of the decoder, also by the number of what is kept of the source text for it."""
        return self._named("dec", number % self.n_layer)

    def cache_on(self, number: int) -> Device | None:
        return super().cache_on(number % self.n_layer)

    def _named(self, part: str, number: int) -> Weights:
        return self.w.part(f"{part}.").block(number)

    def first_of(self, inputs: object) -> Weights:
        return self._named("enc" if isinstance(inputs, Texts) else "dec", 0)

    def encoded(self, source: Source) -> Tensor:
        x = self.embedding(source).named("enc.inp_embd")
        for number in range(self.n_encoder):
            block = Block(number, self._named("enc", number), False, source)
            x = block.named("l_out", super().block(x, block))
        return self.norm(self.w, "enc.output_norm", x)

    def store(self, source: Source, x: Tensor, memory: Memory) -> None:
        for number in range(self.n_layer):
            w, heads = self.weights_of(number), self.heads[0]
            k = linear(w, "cross_attn_k", x, heads.k_width)
            v = linear(w, "cross_attn_v", x, heads.v_width)
            source.store(memory.blocks[self.n_layer + number], split(k, heads.n_head_kv), split(v, heads.n_head_kv))

    def block(self, x: Tensor, block: Block) -> Tensor:
        w = block.weights
        x = x + self.attention(self.norm(w, "attn_norm", x), block)
        a, x = block.outputs(self.cross_attention(self.norm(w, "cross_attn_norm", x), block), x)
        x = block.named("ffn_inp", x + a)
        return x + block.named("ffn_out", self.feed_forward(self.norm(w, "ffn_norm", x), block))

    def cross_attention(self, x: Tensor, block: Block) -> Tensor:
        """Attention of ``x`` [n_embd, T] to the source text."""
        w, heads, number = block.weights, self.heads[0], self.n_layer + block.number
        q = split(linear(w, "cross_attn_q", x, heads.d_k * heads.n_head), heads.n_head)
        y = block.step.attend_source(number, q, heads.n_head_kv, heads.d_v, scale=self.scale)
        return block.named("cross_out", linear(w, "cross_attn_o", y, self.n_embd))

    def hidden(self, x: Tensor) -> Tensor:
        return self.norm(self.w, "dec.output_norm", x)

    def scores(self, x: Tensor) -> Tensor:
        """The logits, scaled as the file says, or else down if the output matrix is that of the token embeddings."""
        usual = 1.0 if "output.weight" in self.w else self.n_embd**-0.5
        factor = usual if self.logit_scale is None else self.logit_scale
        return super().scores(x if factor == 1 else gg.scale(x, factor))
