"""Families that ``transformers`` lacks: random weights under the names of the file, and llama.cpp's outputs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np

from oracles import files
from oracles.attention import ARCH
from oracles.family import Family
from oracles.files import N_VOCAB
from oracles.models import Array, OwnModel, coarse

N, HEADS, KV, D, FF = 32, 4, 2, 8, 32
Shapes = Mapping[str, tuple[int, ...]]
RMS = {"attention.layer_norm_rms_epsilon": 1e-6}
EPS = {"attention.layer_norm_epsilon": 1e-5}


class LlamaCppModel(OwnModel):
    """``shapes``: of the weights, slowest axis first."""

    def __init__(self, seed: int, arch: str, keys: Mapping[str, Any], shapes: Shapes, *, encoder: bool = False) -> None:
        self.config = SimpleNamespace(num_hidden_layers=keys["block_count"])
        self.arch, self.keys, self.encoder = arch, keys, encoder
        rng = np.random.default_rng(seed)
        self.weights = {name: drawn(rng, name, shape) for name, shape in shapes.items()}

    def outputs(self, tokens: Sequence[int], noise: float = 0.0) -> Array:
        from oracles.llama_cpp import rows  # other recordings need no llama.cpp

        embeddings = {"token_embd.weight": self.noisy(self.weights["token_embd.weight"], noise)}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            files.write(path, self.arch, self.keys, self.weights | embeddings, words=False, exact=True)
            return rows(path, [tokens], encoder=self.encoder)[0].astype(np.float64)


def drawn(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
    """As :func:`oracles.models.draw`, for the names of files."""
    normal = rng.standard_normal(shape)
    if name.endswith(("exp_probs_b.bias", "exp_probs_b")):
        return coarse(0.2 * normal)
    if "rope_factors" in name:
        return coarse(rng.uniform(1, 4, shape))
    if name.endswith("ssm_a"):
        return coarse(-np.exp(normal))
    if "lerp" in name:
        return coarse(rng.uniform(0, 1, shape))
    if name.endswith("time_mix_decay.weight"):
        return coarse(-1 + 0.7 * normal)
    if name.endswith(".bias"):
        return coarse(0.2 * normal)
    if name.endswith(
        ("norm.weight", "norm", "ssm_d", "norm_2.weight", "norm_exps.weight", "_ln.weight", "enc.output_norm.weight")
    ):
        return coarse(1 + 0.3 * normal)
    if name == "token_embd.weight":
        return coarse(normal)
    gain = 2.0 if "ffn_gate_inp" in name or name == "output.weight" else 1.2
    return coarse(gain * normal / np.sqrt(shape[-1]))


def keys(n_layer: int = 2, **more: Any) -> dict[str, Any]:
    found = {
        "vocab_size": N_VOCAB,
        "context_length": 64,
        "embedding_length": N,
        "block_count": n_layer,
        "feed_forward_length": FF,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV,
        "rope.freq_base": 100.0,
    }
    return found | more


def blocks(n_layer: int, shapes: Shapes, *, norm: str = "output_norm", tied: bool = False, **of: Shapes) -> Shapes:
    """The shapes of a model whose blocks all have the same; ``of``: of the blocks ``b0``, ``b1`` more."""
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (N_VOCAB, N), f"{norm}.weight": (N,)}
    if not tied:
        found["output.weight"] = (N_VOCAB, N)
    for i in range(n_layer):
        found |= {f"blk.{i}.{name}": shape for name, shape in {**shapes, **of.get(f"b{i}", {})}.items()}
    return found


def attention(n: int = N, heads: int = HEADS, kv: int = KV, d: int = D) -> Shapes:
    return {
        "attn_norm.weight": (n,),
        "attn_q.weight": (heads * d, n),
        "attn_k.weight": (kv * d, n),
        "attn_v.weight": (kv * d, n),
        "attn_output.weight": (n, heads * d),
    }


def fused(heads: int = HEADS, kv: int = KV, d: int = D) -> Shapes:
    return {
        "attn_norm.weight": (N,),
        "attn_qkv.weight": ((heads + 2 * kv) * d, N),
        "attn_output.weight": (N, heads * d),
    }


def network(width: int = FF, of: str = "", n: int = N) -> Shapes:
    return {f"ffn_gate{of}.weight": (width, n), f"ffn_up{of}.weight": (width, n), f"ffn_down{of}.weight": (n, width)}


def experts(width: int, count: int = 4, shared: int = 0) -> Shapes:
    found = {name: (count, *shape) for name, shape in network(width, "_exps").items()}
    return {**found, "ffn_gate_inp.weight": (count, N), **(network(shared, "_shexp") if shared else {})}


def biased(shapes: Shapes) -> Shapes:
    """The shapes, with a bias for each weight."""
    return {**shapes, **{name.replace(".weight", ".bias"): shape[:1] for name, shape in shapes.items()}}


HEAD_NORMS: Shapes = {"attn_q_norm.weight": (D,), "attn_k_norm.weight": (D,)}
NORM: Shapes = {"ffn_norm.weight": (N,)}
FOUR: dict[str, Any] = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 12}
LATENT: Shapes = {
    "attn_norm.weight": (N,),
    "attn_q.weight": (HEADS * 12, N),
    "attn_kv_a_mqa.weight": (20, N),
    "attn_kv_a_norm.weight": (16,),
    "attn_kv_b.weight": (HEADS * (8 + 12), 16),
    "attn_output.weight": (N, HEADS * 12),
}
PAIRS = {"rope.dimension_count": D}


MASKED = {"attention.causal": False, "tokenizer.ggml.mask_token_id": N_VOCAB - len(files.SPECIAL)}


def biases(heads: int = HEADS, kv: int = KV, d: int = D) -> Shapes:
    return {"attn_q.bias": (heads * d,), "attn_k.bias": (kv * d,), "attn_v.bias": (kv * d,)}


def family(
    arch: gguf.MODEL_ARCH | str, values: Mapping[str, Any], shapes: Shapes, *, encoder: bool = False, **how: Any
) -> Family:
    name = arch if isinstance(arch, str) else str(gguf.MODEL_ARCH_NAMES[arch])
    if encoder:
        values = {**values, "attention.causal": False, "pooling_type": 1}
    make: Callable[[int], Any] = lambda seed: LlamaCppModel(seed, name, values, shapes, encoder=encoder)  # noqa: E731
    return Family(arch, make, lambda c: values, encoder=encoder, **how)


def rwkv6() -> Shapes:
    n, mix, decay = 64, 8, 8
    found: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (N_VOCAB, n),
        "output.weight": (N_VOCAB, n),
        **biased({"token_embd_norm.weight": (n,), "output_norm.weight": (n,)}),
    }
    shapes: dict[str, tuple[int, ...]] = {
        **biased({"attn_norm.weight": (n,), "attn_norm_2.weight": (n,), "time_mix_ln.weight": (n,)}),
        "time_mix_w1.weight": (5 * mix, n),
        "time_mix_w2.weight": (5, n, mix),
        "time_mix_lerp_fused.weight": (5, 1, 1, n),
        "time_mix_first.weight": (1, n),
        "time_mix_decay_w1.weight": (decay, n),
        "time_mix_decay_w2.weight": (n, decay),
        **{f"time_mix_{name}.weight": (n, n) for name in ("key", "value", "receptance", "gate", "output")},
        **{f"{name}.weight": (n,) for name in ("time_mix_lerp_x", "time_mix_decay", "channel_mix_lerp_k")},
        "channel_mix_lerp_r.weight": (n,),
        "channel_mix_key.weight": (FF, n),
        "channel_mix_value.weight": (n, FF),
        "channel_mix_receptance.weight": (n, n),
    }
    for i in range(2):
        found |= {f"blk.{i}.{name}": shape for name, shape in shapes.items()}
    return found


def without(name: str, shapes: Shapes) -> Shapes:
    return {each: shape for each, shape in shapes.items() if each != name}


WINDOW = {"attention.sliding_window": 12, "rope.freq_base_swa": 1000.0}
HEAD_WIDTH = {"attention.key_length": D, "attention.value_length": D}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}
BEHIND: Shapes = {"post_attention_norm.weight": (N,), "post_ffw_norm.weight": (N,)}
INDEXED = {
    "attention.head_count_kv": 1,
    "attention.key_length": 20,
    "attention.value_length": 16,
    "attention.key_length_mla": 12,
    "attention.value_length_mla": 12,
    "attention.kv_lora_rank": 16,
    "attention.q_lora_rank": 16,
    "attention.indexer.head_count": 8,
    "attention.indexer.key_length": 64,
    "attention.indexer.top_k": 8,
    "rope.dimension_count": 4,
}
SPARSE: Shapes = {
    "attn_norm.weight": (N,),
    "attn_q_a.weight": (16, N),
    "attn_q_a_norm.weight": (16,),
    "attn_q_b.weight": (HEADS * 12, 16),
    "attn_kv_a_mqa.weight": (20, N),
    "attn_kv_a_norm.weight": (16,),
    "attn_k_b.weight": (HEADS, 16, 8),
    "attn_v_b.weight": (HEADS, 12, 16),
    "attn_output.weight": (N, HEADS * 12),
    "indexer.k_norm.weight": (64,),
    "indexer.k_norm.bias": (64,),
    "indexer.proj.weight": (8, N),
    "indexer.attn_k.weight": (64, N),
    "indexer.attn_q_b.weight": (8 * 64, 16),
}

NEWER: dict[str, Family] = {
    "mellum": family(
        "mellum",
        keys(4, **RMS, **WINDOW, **HEAD_WIDTH) | FOUR | YARN,
        blocks(4, {**attention(), **HEAD_NORMS, **NORM, **experts(12)}),
    ),
    "maple": family(
        "maple",
        keys(3, **RMS, **WINDOW, **HEAD_WIDTH)
        | FOUR
        | {"attention.sliding_window_pattern": [True, False, True], "swiglu_clamp_exp": [0.3, 0.0, 0.6]},
        blocks(3, {**attention(), **HEAD_NORMS, **NORM, **experts(12)}),
    ),
    "spark2_5": family(
        "spark2_5",
        keys(3, **RMS, **WINDOW, **HEAD_WIDTH) | {"attention.sliding_window_pattern": [True, False, True]},
        blocks(3, {**fused(), "attn_gate.weight": (HEADS, N), **NORM, **network()}),
    ),
    "muse-glimmer": family(
        "muse-glimmer",
        keys(4, **RMS, **WINDOW, **HEAD_WIDTH) | {"logit_scale": 0.8, "final_logit_softcapping": 5.0},
        blocks(
            4,
            {**attention(), "attn_gate.weight": (HEADS * D, N), **HEAD_NORMS, **NORM, **BEHIND, **network()},
        ),
    ),
    "laguna": family(
        "laguna",
        keys(3, **RMS, **WINDOW, **HEAD_WIDTH)
        | FOUR
        | YARN
        | {
            "attention.head_count": [4, 2, 2],
            "rope.dimension_count_swa": 4,
            "leading_dense_block_count": 1,
            "expert_shared_count": 1,
            "expert_shared_feed_forward_length": 16,
            "expert_weights_scale": 1.5,
            "expert_weights_norm": True,
        },
        blocks(
            3,
            {**HEAD_NORMS, **NORM},
            b0={**attention(), "attn_gate.weight": (HEADS * D, N), **network()},
            **{
                f"b{number}": {
                    **attention(heads=2),
                    "attn_gate.weight": (2, N),
                    **experts(12, shared=16),
                    "exp_probs_b.bias": (4,),
                }
                for number in (1, 2)
            },
        ),
    ),
    "granite_swa": family(
        "granite_swa",
        keys(3, **RMS, **PAIRS)
        | {
            "attention.sliding_window": 12,
            "attention.sliding_window_pattern": [True, False, True],
            "attention.rope_pattern": [True, False, True],
            "attention.scale": 0.3,
            "logit_scale": 1.5,
            "residual_scale": 0.7,
            "embedding_scale": 2.0,
        },
        blocks(3, {**attention(), "attn_sinks.weight": (HEADS,), **NORM, **network()}),
    ),
    "hy_v3": family(
        "hy_v3",
        keys(**RMS, **HEAD_WIDTH) | FOUR | {"expert_weights_scale": 1.5, "expert_weights_norm": True},
        blocks(
            2,
            {**attention(), **HEAD_NORMS, **NORM},
            b0=network(),
            b1={**experts(12, shared=12), "exp_probs_b": (4,)},
        ),
    ),
    "cohere2moe": family(
        "cohere2moe",
        keys(5, **EPS, **PAIRS)
        | FOUR
        | {
            "attention.sliding_window": 12,
            "logit_scale": 0.5,
            "leading_dense_block_count": 1,
            "expert_shared_count": 1,
            "expert_weights_norm": True,
        },
        blocks(
            5,
            attention(),
            b0=network(),
            **{f"b{number}": experts(12, shared=12) for number in range(1, 5)},
        ),
    ),
    "talkie": family(
        "talkie",
        keys(**RMS, **HEAD_WIDTH) | {"logit_scale": 0.9},
        without(
            "output_norm.weight",
            blocks(
                2,
                {
                    **without("attn_norm.weight", attention()),
                    "attn_q_norm.weight": (HEADS, 1),
                    **network(),
                    "layer_output_scale.weight": (1,),
                },
            ),
        ),
        without_effect=("layer_output_scale",),  # reversed, a single number is the same
    ),
    "nanbeige": family(
        "nanbeige", keys(**RMS, **PAIRS) | {"num_loops": 2}, blocks(2, {**attention(), **NORM, **network()})
    ),
    "hrm_text": family(
        "hrm_text",
        keys(6, **RMS, **HEAD_WIDTH)
        | {"hrm.layers_per_stack": 1, "hrm.h_cycles": 2, "hrm.l_cycles": 2, "embedding_scale": 1.5},
        {
            **without(
                "output_norm.weight",
                blocks(
                    2,
                    {**without("attn_norm.weight", attention()), "attn_gate.weight": (HEADS * D, N), **network()},
                ),
            ),
            "hrm.z_l_init": (N,),
        },
    ),
    "deepseek32": family(
        "deepseek32",
        keys(**RMS)
        | FOUR
        | INDEXED
        | {
            "leading_dense_block_count": 1,
            "expert_shared_count": 1,
            "expert_weights_scale": 1.5,
            "expert_weights_norm": True,
            "expert_gating_func": 2,
        },
        blocks(2, {**SPARSE, **NORM}, b0=network(), b1={**experts(12, shared=12), "exp_probs_b.bias": (4,)}),
        seed=4,
    ),
}
"""Families that the published package ``gguf`` does not know yet; these are the keys of llama.cpp's source."""

THEIRS: dict[str, Family] = {
    **NEWER,
    "plamo": family(ARCH.PLAMO, keys(**RMS, **PAIRS), blocks(2, {**attention(), **network()})),
    "plamo3": family(
        ARCH.PLAMO3,
        keys(**RMS, **PAIRS)
        | {
            "attention.key_length": D,
            "attention.value_length": D,
            "attention.sliding_window": 12,
            "attention.sliding_window_pattern": 2,
            "rope.freq_base_swa": 1000.0,
        },
        blocks(
            2,
            {
                **fused(),
                **HEAD_NORMS,
                **NORM,
                "post_attention_norm": (N,),
                "post_ffw_norm": (N,),
                "ffn_up.weight": (2 * FF, N),
                "ffn_down.weight": (N, FF),
            },
        ),
    ),
    "refact": family(ARCH.REFACT, keys(**RMS), blocks(2, {**attention(), **NORM, **network()})),
    "grovemoe": family(
        ARCH.GROVEMOE,
        keys(**RMS, **PAIRS, **HEAD_WIDTH)
        | {"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 12}
        | {"experts_per_group": 2, "expert_group_scale": 0.3, "expert_chunk_feed_forward_length": 8},
        blocks(
            2,
            {
                **attention(),
                **HEAD_NORMS,
                **NORM,
                **experts(12, count=8),
                **{name: (4, *shape) for name, shape in network(8, "_chexps").items()},
            },
        ),
    ),
    "phimoe": family(
        ARCH.PHIMOE,
        keys(**RMS, **PAIRS)
        | {"expert_count": 4, "expert_used_count": 2, "feed_forward_length": 12}
        | {"rope.scaling.original_context_length": 16, "rope.scaling.attn_factor": 1.2},
        {
            **blocks(2, {**biased({**attention(), **NORM}), **experts(12)}),
            "output_norm.bias": (N,),
            "output.bias": (N_VOCAB,),
            "rope_factors_long.weight": (D // 2,),
            "rope_factors_short.weight": (D // 2,),
        },
        without_effect=("rope_factors_short", "attn_k.bias"),  # the context is longer than the original one
    ),
    "jais": family(
        ARCH.JAIS,
        keys(**EPS) | {"attention.head_count_kv": HEADS, "attention.max_alibi_bias": 8.0},
        {**blocks(2, biased({**fused(kv=HEADS), **NORM, **network()})), "output_norm.bias": (N,)},
    ),
    "deci": family(
        ARCH.DECI,
        keys(3, **RMS, **PAIRS)
        | {
            "attention.head_count": [4, 4, 0],
            "attention.head_count_kv": [2, 0, 0],
            "feed_forward_length": [32, 16, 24],
            "attention.key_length": D,
            "attention.value_length": D,
        },
        blocks(
            3,
            NORM,
            b0={**attention(), **network()},
            b1={"attn_norm.weight": (N,), "attn_output.weight": (N, N), **network(16)},
            b2=network(24),
        ),
    ),
    "openelm": family(
        ARCH.OPENELM,
        keys(**RMS, **PAIRS)
        | {
            "attention.head_count": [2, 4],
            "attention.head_count_kv": [1, 2],
            "feed_forward_length": [16, 32],
            "attention.key_length": D,
            "attention.value_length": D,
        },
        blocks(2, {**HEAD_NORMS, **NORM}, tied=True, b0={**fused(2, 1), **network(16)}, b1={**fused(), **network()}),
    ),
    "plm": family(
        ARCH.PLM,
        keys(**RMS)
        | {
            "attention.head_count_kv": HEADS,
            "attention.key_length": 12,
            "attention.value_length": 12,
            "attention.kv_lora_rank": 16,
            "rope.dimension_count": 4,
        },
        blocks(2, {**LATENT, **NORM, "ffn_up.weight": (FF, N), "ffn_down.weight": (N, FF)}, tied=True),
    ),
    "deepseek": family(
        ARCH.DEEPSEEK,
        keys(**RMS, **PAIRS)
        | FOUR
        | {"leading_dense_block_count": 1, "expert_shared_count": 2, "expert_weights_scale": 1.5},
        blocks(2, {**attention(), **NORM}, b0=network(), b1=experts(12, shared=24)),
    ),
    "deepseek2-ocr": family(
        ARCH.DEEPSEEK2OCR,
        keys(**RMS)
        | FOUR
        | {
            "attention.head_count_kv": HEADS,
            "rope.freq_base": 10000.0,  # llama.cpp knows no other
            "rope.dimension_count": 0,
            "leading_dense_block_count": 1,
            "expert_shared_count": 2,
        },
        blocks(2, {**attention(kv=HEADS), **NORM}, b0=network(), b1=experts(12, shared=24)),
    ),
    "bailingmoe": family(
        ARCH.BAILINGMOE,
        keys(**RMS, **PAIRS) | FOUR | {"expert_shared_count": 2, "expert_weights_norm": True},
        blocks(2, {**attention(), **NORM, **experts(12, shared=24)}),
    ),
    "bailingmoe2": family(
        ARCH.BAILINGMOE2,
        keys(**RMS, **PAIRS)
        | {
            "expert_count": 8,
            "expert_used_count": 2,
            "expert_feed_forward_length": 8,
            "expert_group_count": 4,
            "expert_group_used_count": 2,
            "leading_dense_block_count": 1,
            "expert_shared_count": 2,
            "expert_shared_feed_forward_length": 12,
            "expert_weights_scale": 1.5,
            "expert_weights_norm": True,
            "expert_gating_func": 2,
        },
        blocks(
            2,
            {**fused(), **HEAD_NORMS, **NORM},
            b0=network(),
            b1={**experts(8, 8, shared=24), "exp_probs_b.bias": (8,)},
        ),
    ),
    "arctic": family(
        ARCH.ARCTIC,
        keys(**RMS, **PAIRS) | {"expert_count": 4, "expert_used_count": 2, "feed_forward_length": 12},
        blocks(2, {**attention(), **NORM, **network(N), "ffn_norm_exps.weight": (N,), **experts(12)}),
    ),
    "grok": family(
        ARCH.GROK,
        keys(**RMS, **PAIRS)
        | FOUR
        | {
            "feed_forward_length": 16,
            "embedding_scale": 1.5,
            "logit_scale": 0.9,
            "attention.output_scale": 0.3,
            "attn_logit_softcapping": 2.0,
            "router_logit_softcapping": 30.0,
            "final_logit_softcapping": 5.0,
        },
        blocks(
            2,
            {
                **attention(),
                **NORM,
                "attn_output_norm.weight": (N,),
                "post_ffw_norm.weight": (N,),
                **network(16),
                **experts(12),
            },
        ),
    ),
    "smallthinker": family(
        ARCH.SMALLTHINKER,
        keys(3, **RMS, **PAIRS)
        | FOUR
        | {
            "expert_gating_func": 2,
            "attention.sliding_window": 4096,
            "rope.freq_base_swa": 1000.0,
        },
        blocks(3, {**attention(), **NORM, **experts(12)}),
    ),
    "plamo2": family(
        ARCH.PLAMO2,
        keys(**RMS, **PAIRS)
        | {
            "attention.head_count": [4, 0],
            "attention.head_count_kv": [2, 0],
            "attention.key_length": D,
            "attention.value_length": D,
            "ssm.conv_kernel": 4,
            "ssm.inner_size": 64,
            "ssm.state_size": 16,
            "ssm.time_step_rank": 4,
            "ssm.group_count": 0,
        },
        blocks(
            2,
            {
                "attn_norm.weight": (N,),
                "post_attention_norm": (N,),
                **NORM,
                "post_ffw_norm": (N,),
                "ffn_up.weight": (2 * FF, N),
                "ffn_down.weight": (N, FF),
            },
            b1={
                "ssm_in.weight": (128, N),
                "ssm_conv1d.weight": (64, 4),
                "ssm_x.weight": (64 + 2 * 16, 64),
                "ssm_dt.weight": (4, 64),
                "ssm_dt.bias": (4,),
                "ssm_a": (4,),
                "ssm_d": (4,),
                "ssm_out.weight": (N, 64),
                "ssm_dt_norm": (64,),
                "ssm_b_norm": (16,),
                "ssm_c_norm": (16,),
            },
            b0={
                **fused(),
                "attn_q_norm.weight": (HEADS, D),
                "attn_k_norm.weight": (KV, D),
            },
        ),
    ),
    "dream": family(
        ARCH.DREAM,
        keys(**RMS) | MASKED | {"diffusion.shift_logits": True},
        blocks(2, {**attention(), **biases(), **NORM, **network()}),
        masked=True,
        without_effect=("attn_k.bias",),
    ),
    "llada": family(
        ARCH.LLADA,
        keys(**RMS, **PAIRS) | MASKED | {"diffusion.shift_logits": False},
        blocks(2, {**attention(), **NORM, **network()}),
        masked=True,
    ),
    "llada-moe": family(
        ARCH.LLADA_MOE,
        keys(**RMS) | FOUR | MASKED | {"diffusion.shift_logits": False},
        blocks(2, {**attention(), **HEAD_NORMS, **NORM, **experts(12)}),
        masked=True,
    ),
    "rnd1": family(
        ARCH.RND1,
        keys(**RMS) | FOUR | MASKED,
        blocks(2, {**attention(), **HEAD_NORMS, **NORM, **experts(12)}),
        masked=True,
    ),
    "nomic-bert-moe": family(
        ARCH.NOMIC_BERT_MOE,
        keys(**EPS)
        | {
            "attention.head_count_kv": HEADS,
            "expert_count": 4,
            "expert_used_count": 2,
            "moe_every_n_layers": 2,
            "tokenizer.ggml.token_type_count": 2,
        },
        {
            **{
                name: shape
                for name, shape in blocks(
                    2,
                    {
                        **biased(fused(kv=HEADS)),
                        **biased({"attn_output_norm.weight": (N,), "layer_output_norm.weight": (N,)}),
                    },
                    tied=True,
                    b0=biased({"ffn_up.weight": (FF, N), "ffn_down.weight": (N, FF)}),
                    b1={
                        "ffn_up_exps.weight": (4, FF, N),
                        "ffn_down_exps.weight": (4, N, FF),
                        "ffn_gate_inp.weight": (4, N),
                    },
                ).items()
                if "attn_norm" not in name and not name.startswith("output_norm")
            },
            **biased({"token_embd_norm.weight": (N,)}),
            "token_types.weight": (2, N),
        },
        encoder=True,
        without_effect=("attn_k.bias",),
    ),
    "neo-bert": family(
        ARCH.NEO_BERT,
        keys(**RMS, **PAIRS) | {"attention.head_count_kv": HEADS},
        blocks(
            2,
            {**fused(kv=HEADS), **NORM, "ffn_up.weight": (2 * FF, N), "ffn_down.weight": (N, FF)},
            norm="enc.output_norm",
            tied=True,
        ),
        encoder=True,
    ),
    "rwkv6": family(
        ARCH.RWKV6,
        {
            "context_length": 1 << 20,
            "embedding_length": 64,
            "block_count": 2,
            **EPS,
            "wkv.head_size": 64,
            "time_mix_extra_dim": 8,
            "time_decay_extra_dim": 8,
            "rescale_every_n_layers": 2,
            "feed_forward_length": FF,
            "attention.head_count": 0,
        },
        rwkv6(),
    ),
}
