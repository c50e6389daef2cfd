"""The encoder of T5 (arXiv:1910.10683) and of models with the same block, such as Flan-T5 and UMT5."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug_models.layers.attention import projections
from ggplug_models.layers.feed_forward import plain
from ggplug_models.layers.linear import linear
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.encoder import Encoder, Texts
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block
from ggplug_models.networks.transformer import Transformer
from ggplug_models.weights.weights import Weights

FARTHEST = 128
"""Positions that are at least this far apart have the same bias."""


@architecture("t5encoder")
class T5Encoder(Transformer, Encoder):
    """Queries are not scaled; a bias for each head depends on how far tokens are apart, by buckets."""

    rope_mode = None

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.scale = 1.0
        self.n_buckets = hp.integer("attention.relative_buckets_count", at_least=4)

    def weights_of(self, number: int) -> Weights:
        return self.w.block(number, "enc.")

    def buckets(self, behind: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The bucket of each distance: half of them for each direction, of which half hold one distance each, and the
        others distances that grow exponentially."""
        half = self.n_buckets // 2
        exact, apart = half // 2, np.abs(behind)
        grown = np.log(np.maximum(apart, 1).astype(np.float32) / exact) / np.log(FARTHEST / exact) * (half - exact)
        far = np.minimum(exact + grown.astype(np.int64), half - 1)
        return np.where(behind > 0, half, 0) + np.where(apart < exact, apart, far)

    def bias(self, block: Block) -> Tensor:
        """The biases of pairs of tokens, [n, n, n_head], from the block's table, or from the first block's."""
        texts, name = block.inputs, "attn_rel_b.weight"
        assert isinstance(texts, Texts)
        w = block.weights if name in block.weights else self.weights_of(0)
        if w.prefix not in texts.shared:
            n, n_head = texts.n_tok, self.heads[block.number].n_head
            if "pairs" not in texts.shared:
                texts.shared["pairs"] = texts.of_pairs(self.buckets)
            found = gg.get_rows(w(name, n_head, self.n_buckets), texts.shared["pairs"])
            texts.shared[w.prefix] = gg.cont(gg.permute(gg.reshape(found, n_head, n, n), 2, 0, 1, 3))
        return texts.shared[w.prefix]

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

    def hidden(self, x: Tensor) -> Tensor:
        return self.norm(self.w, "enc.output_norm", x)
