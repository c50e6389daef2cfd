"""gpt-oss (arXiv:2508.10925)."""

from __future__ import annotations

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug_models.layers.attention import Heads
from ggplug_models.layers.experts import Experts, Gating
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.model import architecture
from ggplug_models.networks.transformer import Transformer
from ggplug_models.weights.weights import Weights


@architecture("gpt-oss")
class GptOss(Transformer, Decoder):
    """Experts with biases, a clipped gate, and a softmax of the chosen ones; attention sinks; alternating windows."""

    needs = ("attn_output.bias", "ffn_gate_inp.bias", "ffn_gate_exps.bias", "ffn_up_exps.bias", "ffn_down_exps.bias")
    feed_forward_norm = "post_attention_norm"

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.slide_with_rope(hp, 2)
        self.experts = Experts.of(hp, gating=Gating.SOFTMAX_OF_CHOSEN, normalized=False)

    def sinks(self, w: Weights, heads: Heads) -> Tensor:
        return w("attn_sinks.weight", heads.n_head)

    def gate(self, x: Tensor, up: Tensor) -> Tensor:
        return gg.swiglu_oai(x, up, alpha=1.702, limit=7.0)
