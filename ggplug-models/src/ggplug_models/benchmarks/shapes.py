"""Families of language models as sizes: the tensors of a random model, and its metadata.

Sizes are by default those of a published model, with fewer blocks, experts or elements, so that there is about 1 G of
parameters.  What blocks add to a token's vector is about as large as its embedding, as where training begins: in a deep
network of larger random blocks rounding errors would grow until no two programs agreed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.types import F16, F32
from ggplug_models.benchmarks.synthetic import Values, drawn, write_model

Extents = dict[str, tuple[int, ...]]
"""The extents ``ne`` of tensors by name."""

N_VOCAB = 32000
N_CTX = 8192
EPS = 1e-6


@dataclass(frozen=True)
class FamilyShape:
    """A family with sizes.  ``keys``: the metadata below ``architecture``.

    ``scales``: the magnitude of products with some matrices, by the ends of their names; 1 for others.
    """

    architecture: str
    keys: Mapping[str, Any]
    tensors: Extents
    scales: Mapping[str, float]

    @property
    def n_vocab(self) -> int:
        return self.tensors["token_embd.weight"][1]


def mixture(
    n_embd: int = 1024,
    n_layer: int = 12,
    n_head: int = 16,
    n_head_kv: int = 4,
    d: int = 128,
    n_ff: int = 768,
    n_expert: int = 32,
    n_expert_used: int = 4,
    n_vocab: int = N_VOCAB,
) -> FamilyShape:
    """Qwen 3 with experts, like its 30B-A3B with half as wide vectors, a quarter of the blocks and of the experts."""
    block = {
        **_norms(n_embd, "attn_norm", "ffn_norm"),
        **_attention(n_embd, d * n_head, d * n_head_kv),
        **_norms(d, "attn_q_norm", "attn_k_norm"),
        **_experts(n_embd, n_ff, n_expert),
    }
    keys = {
        **_common(n_embd, n_layer, n_ff, n_head, n_head_kv, d),
        "expert_count": n_expert,
        "expert_used_count": n_expert_used,
        "expert_feed_forward_length": n_ff,
        "rope.freq_base": 1e6,
    }
    tensors = {**_ends(n_embd, n_vocab), **_blocks([block] * n_layer)}
    return FamilyShape("qwen3moe", keys, tensors, _scales(n_embd, 2 * n_layer))


def delta_net(
    n_embd: int = 1024,
    n_layer: int = 16,
    n_head: int = 8,
    n_head_kv: int = 2,
    d: int = 256,
    n_key: int = 8,
    n_value: int = 16,
    n_state: int = 128,
    n_ff: int = 512,
    n_expert: int = 32,
    n_expert_used: int = 4,
    n_vocab: int = N_VOCAB,
    every: int = 4,
) -> FamilyShape:
    """Qwen 3 Next with half as wide vectors and half as many heads, a third of the blocks, 32 of 512 experts.

    Of ``every`` blocks the last has attention, and the others have a gated delta net.
    """
    inner = n_state * n_value
    network = {**_experts(n_embd, n_ff, n_expert), **_shared_expert(n_embd, n_ff)}
    norms = _norms(n_embd, "attn_norm", "post_attention_norm")
    attends = {
        **norms,
        **_attention(n_embd, d * n_head, d * n_head_kv),
        "attn_q.weight": (n_embd, 2 * d * n_head),
        **_norms(d, "attn_q_norm", "attn_k_norm"),
        **network,
    }
    recurrent = {
        **norms,
        "attn_qkv.weight": (n_embd, inner + 2 * n_key * n_state),
        "attn_gate.weight": (n_embd, inner),
        "ssm_ba.weight": (n_embd, 2 * n_value),
        "ssm_conv1d.weight": (4, inner + 2 * n_key * n_state),
        "ssm_dt.bias": (n_value,),
        "ssm_a": (n_value,),
        **_norms(n_state, "ssm_norm"),
        "ssm_out.weight": (inner, n_embd),
        **network,
    }
    keys = {
        **_common(n_embd, n_layer, n_ff, n_head, n_head_kv, d),
        "expert_count": n_expert,
        "expert_used_count": n_expert_used,
        "expert_feed_forward_length": n_ff,
        "expert_shared_feed_forward_length": n_ff,
        "full_attention_interval": every,
        "rope.freq_base": 1e7,
        "rope.dimension_count": d // 4,
        **_state_space(4, inner, n_state, n_value, n_key),
    }
    blocks = [recurrent if (number + 1) % every else attends for number in range(n_layer)]
    tensors = {**_ends(n_embd, n_vocab), **_blocks(blocks)}
    return FamilyShape("qwen3next", keys, tensors, _scales(n_embd, 2 * n_layer))


def mamba(
    n_embd: int = 1536,
    n_layer: int = 28,
    n_head: int = 12,
    n_head_kv: int = 4,
    n_state_head: int = 48,
    n_state: int = 128,
    n_ff: int = 4096,
    n_vocab: int = N_VOCAB,
    attends: tuple[int, ...] = (5, 15, 25),
) -> FamilyShape:
    """Granite 4.0 H 1B with 28 of 40 blocks and a third of its vocabulary: Mamba 2, and attention in three blocks."""
    d, inner = n_embd // n_head, 2 * n_embd
    network = {**_norms(n_embd, "attn_norm", "ffn_norm"), **_network(n_embd, n_ff)}
    recurrent = {
        **network,
        "ssm_in.weight": (n_embd, 2 * inner + 2 * n_state + n_state_head),
        "ssm_conv1d.weight": (4, inner + 2 * n_state),
        "ssm_conv1d.bias": (inner + 2 * n_state,),
        "ssm_dt.bias": (n_state_head,),
        "ssm_a": (1, n_state_head),
        "ssm_d": (1, n_state_head),
        **_norms(inner, "ssm_norm"),
        "ssm_out.weight": (inner, n_embd),
    }
    attending = {**network, **_attention(n_embd, n_embd, d * n_head_kv)}
    keys = {
        **_common(n_embd, n_layer, n_ff, n_head, n_head_kv, d),
        "attention.head_count_kv": [n_head_kv if number in attends else 0 for number in range(n_layer)],
        "rope.dimension_count": d,
        "rope.scaling.finetuned": False,
        "embedding_scale": 12.0,
        "attention.scale": 1 / d,
        "residual_scale": 0.22,
        "logit_scale": 6.0,
        **_state_space(4, inner, n_state, n_state_head, 1),
    }
    blocks = [attending if number in attends else recurrent for number in range(n_layer)]
    tensors = {**_ends(n_embd, n_vocab), **_blocks(blocks)}
    del tensors["output.weight"]
    scales = {"token_embd.weight": n_embd**0.5 / keys["embedding_scale"]}  # what blocks add has a scale of its own
    return FamilyShape("granitehybrid", keys, tensors, scales)


def encoder_decoder(
    n_embd: int = 1024,
    n_layer: int = 24,
    n_head: int = 16,
    d: int = 64,
    n_ff: int = 2816,
    n_vocab: int = 32128,
    n_buckets: int = 32,
) -> FamilyShape:
    """Flan-T5 large: as many blocks of the encoder as of the decoder, and a gated network.

    Queries are small, because T5 does not scale their products with keys.
    """
    inner = d * n_head
    attends = {f"attn_{end}.weight": ne for end, ne in _projections(n_embd, inner, inner).items()}
    crosses = {f"cross_{name}": ne for name, ne in attends.items()}
    network = {**_norms(n_embd, "attn_norm", "ffn_norm"), **_network(n_embd, n_ff)}
    tensors = _ends(n_embd, n_vocab)
    del tensors["output_norm.weight"]
    for part, more in (("enc", {}), ("dec", {**crosses, **_norms(n_embd, "cross_attn_norm")})):
        blocks = _blocks([{**network, **attends, **more}] * n_layer)
        tensors |= {f"{part}.{name}": ne for name, ne in blocks.items()}
        tensors[f"{part}.blk.0.attn_rel_b.weight"] = (n_head, n_buckets)
        tensors[f"{part}.output_norm.weight"] = (n_embd,)
    keys = {
        **_common(n_embd, n_layer, n_ff, n_head, n_head, d),
        "attention.layer_norm_epsilon": EPS,
        "attention.relative_buckets_count": n_buckets,
        "decoder_block_count": n_layer,
        "decoder_start_token_id": 0,
    }
    return FamilyShape("t5", keys, tensors, {**_scales(n_embd, 3 * n_layer), "attn_q.weight": d**-0.5})


def _scales(n_embd: int, added: int) -> dict[str, float]:
    """Scales for a network with ``added`` residual connections."""
    ends = ("attn_output", "attn_o", "ssm_out", "ffn_down", "ffn_down_exps", "ffn_down_shexp")
    return {"token_embd.weight": n_embd**0.5, **dict.fromkeys((f"{end}.weight" for end in ends), added**-0.5)}


def _common(n_embd: int, n_layer: int, n_ff: int, n_head: int, n_head_kv: int, d: int) -> dict[str, Any]:
    return {
        "block_count": n_layer,
        "context_length": N_CTX,
        "embedding_length": n_embd,
        "feed_forward_length": n_ff,
        "attention.head_count": n_head,
        "attention.head_count_kv": n_head_kv,
        "attention.key_length": d,
        "attention.value_length": d,
        "attention.layer_norm_rms_epsilon": EPS,
    }


def _state_space(taps: int, inner: int, state: int, rank: int, groups: int) -> dict[str, Any]:
    return {
        "ssm.conv_kernel": taps,
        "ssm.inner_size": inner,
        "ssm.state_size": state,
        "ssm.time_step_rank": rank,
        "ssm.group_count": groups,
    }


def _ends(n_embd: int, n_vocab: int) -> Extents:
    both = {"token_embd.weight": (n_embd, n_vocab), "output.weight": (n_embd, n_vocab)}
    return {**both, **_norms(n_embd, "output_norm")}


def _blocks(blocks: list[Extents]) -> Extents:
    return {f"blk.{number}.{name}": ne for number, block in enumerate(blocks) for name, ne in block.items()}


def _norms(n: int, *names: str) -> Extents:
    return {f"{name}.weight": (n,) for name in names}


def _projections(n_embd: int, n_q: int, n_kv: int) -> Extents:
    return {"q": (n_embd, n_q), "k": (n_embd, n_kv), "v": (n_embd, n_kv), "o": (n_q, n_embd)}


def _attention(n_embd: int, n_q: int, n_kv: int) -> Extents:
    found = _projections(n_embd, n_q, n_kv)
    return {f"attn_{'output' if end == 'o' else end}.weight": ne for end, ne in found.items()}


def _network(n_embd: int, n_ff: int, kind: str = "", experts: tuple[int, ...] = ()) -> Extents:
    return {
        f"ffn_gate{kind}.weight": (n_embd, n_ff, *experts),
        f"ffn_up{kind}.weight": (n_embd, n_ff, *experts),
        f"ffn_down{kind}.weight": (n_ff, n_embd, *experts),
    }


def _experts(n_embd: int, n_ff: int, count: int) -> Extents:
    return {"ffn_gate_inp.weight": (n_embd, count), **_network(n_embd, n_ff, "_exps", (count,))}


def _shared_expert(n_embd: int, n_ff: int) -> Extents:
    return {"ffn_gate_inp_shexp.weight": (n_embd,), **_network(n_embd, n_ff, "_shexp")}


Draws = Callable[[np.random.Generator, tuple[int, ...]], npt.NDArray[Any]]


def _ones(_: np.random.Generator, ne: tuple[int, ...]) -> npt.NDArray[Any]:
    return np.ones(ne[::-1])


def _normal(generator: np.random.Generator, ne: tuple[int, ...]) -> npt.NDArray[Any]:
    return generator.normal(0.0, ne[0] ** -0.5, ne[::-1])


def _decays(generator: np.random.Generator, ne: tuple[int, ...]) -> npt.NDArray[Any]:
    return -generator.uniform(1.0, 16.0, ne[::-1])


def _time_steps(generator: np.random.Generator, ne: tuple[int, ...]) -> npt.NDArray[Any]:
    """What softplus makes step sizes from 0.001 to 0.1 of, with which Mamba's training begins (arXiv:2312.00752)."""
    return np.log(np.expm1(np.exp(generator.uniform(np.log(0.001), np.log(0.1), ne[::-1]))))


IN_F32: dict[str, Draws] = {
    "norm.weight": _ones,
    "ssm_d": _ones,
    "ssm_a": _decays,
    "ssm_dt.bias": _time_steps,
    "ssm_conv1d.bias": _normal,
    "ssm_conv1d.weight": _normal,
    "ffn_gate_inp.weight": _normal,
    "ffn_gate_inp_shexp.weight": _normal,
}
"""How the values of tensors in single precision are drawn, by the ends of their names; others are F16 matrices."""


def write_family(path: str | os.PathLike[str], shape: FamilyShape) -> Path:
    """Writes a model of random weights.  Raises OSError."""
    keys = {f"{shape.architecture}.{key}": value for key, value in shape.keys.items()}
    keys |= {"general.name": f"random {shape.architecture}", f"{shape.architecture}.vocab_size": shape.n_vocab}
    tensors = {name: _values(shape, number, name) for number, name in enumerate(shape.tensors)}
    return write_model(path, shape.architecture, shape.n_vocab, keys, tensors)


def _values(shape: FamilyShape, number: int, name: str) -> Values:
    ne = shape.tensors[name]
    draws = next((draws for end, draws in IN_F32.items() if name.endswith(end)), None)
    if draws is None:
        scale = next((scale for end, scale in shape.scales.items() if name.endswith(end)), 1.0)
        return F16, ne, drawn(np.random.default_rng(number), ne, scale)

    def values() -> Iterator[npt.NDArray[np.float32]]:
        yield draws(np.random.default_rng(number), ne).astype(np.float32)

    return F32, ne, values
