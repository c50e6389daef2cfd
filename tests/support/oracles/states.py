"""Models with a state instead of attention, or together with it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import transformers

from oracles.attention import ARCH, SHAPE
from oracles.family import Array, Change, Family, basic
from oracles.files import N_VOCAB
from oracles.models import Rules, TransformersModel, coarse
from oracles.rwkv7 import RWKV7, Settings


def log_decay(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Logarithms of decays about 1 to 8."""
    return coarse(np.log(np.linspace(0.5, 6, math.prod(shape)).reshape(shape)) + 0.2 * rng.standard_normal(shape))


STATE_RULES: Rules = {
    "A_log": log_decay,
    r"conv\d?d?\.weight|conv\.conv": lambda rng, shape: coarse(0.6 * rng.standard_normal(shape)),
    r"dt_proj\.bias|dt_bias": lambda rng, shape: coarse(-1 + 0.5 * rng.standard_normal(shape)),
    r"\.D$": lambda rng, shape: coarse(1 + 0.3 * rng.standard_normal(shape)),
}


def mamba(seed: int) -> TransformersModel:
    config = transformers.MambaConfig(
        vocab_size=N_VOCAB,
        hidden_size=32,
        state_size=8,
        num_hidden_layers=2,
        expand=2,
        conv_kernel=4,
        time_step_rank=4,
        use_bias=False,
        use_conv_bias=True,
        use_mambapy=False,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return TransformersModel(transformers.MambaForCausalLM, config, seed, embedding=0.3, layer=5.0, rules=STATE_RULES)


def mamba2(seed: int) -> TransformersModel:
    config = transformers.Mamba2Config(
        vocab_size=N_VOCAB,
        hidden_size=32,
        state_size=16,
        num_hidden_layers=2,
        expand=2,
        conv_kernel=4,
        num_heads=4,
        head_dim=16,
        n_groups=2,
        chunk_size=16,
        use_bias=False,
        use_conv_bias=True,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return TransformersModel(transformers.Mamba2ForCausalLM, config, seed, rules=STATE_RULES)


def state_keys(config: Any) -> dict[str, Any]:
    inner = config.expand * config.hidden_size
    return {
        "vocab_size": N_VOCAB,
        "context_length": 1 << 20,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "ssm.conv_kernel": config.conv_kernel,
        "ssm.inner_size": inner,
        "ssm.state_size": config.state_size,
        "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon,
    }


def named(part: str, of: str = "ssm", *, shape: tuple[int, ...] | None = None, end: str = "") -> Change:
    def change(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
        yield f"blk.{name.split('.')[2]}.{of}_{part}{end}", values if shape is None else values.reshape(shape)

    return change


def decay(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    """Stored as what the exponent is multiplied by; Mamba 2 has one for a head, in rows of one."""
    values = -np.exp(values)
    yield f"blk.{name.split('.')[2]}.ssm_a", values if values.ndim == 2 else values[:, None]


def squeezed(config: Any, name: str, values: Array) -> Iterable[tuple[str, Array]]:
    yield name, values.squeeze(1)


def lfm2(seed: int) -> TransformersModel:
    config = transformers.Lfm2Config(
        **SHAPE,
        layer_types=["conv", "full_attention"],
        conv_L_cache=3,
        block_auto_adjust_ff_dim=False,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        tie_word_embeddings=True,
    )
    return TransformersModel(transformers.Lfm2ForCausalLM, config, seed, embedding=0.3, layer=4.0, rules=STATE_RULES)


def lfm2_keys(config: Any) -> dict[str, Any]:
    heads = [config.num_key_value_heads if kind == "full_attention" else 0 for kind in config.layer_types]
    return basic(config) | {
        "attention.head_count_kv": heads,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "shortconv.l_cache": config.conv_L_cache,
    }


DUMMIES = ("blk.0.time_mix_v",)
"""Nothing comes before the first layer, so it mixes no values in, but llama.cpp wants the tensors."""

STATES: dict[str, Family] = {
    "mamba": Family(
        ARCH.MAMBA,
        mamba,
        lambda c: state_keys(c) | {"ssm.time_step_rank": c.time_step_rank, "ssm.dt_b_c_rms": False},
        {"A_log": decay, r"conv1d\.weight": squeezed},
    ),
    "mamba2": Family(
        ARCH.MAMBA2,
        mamba2,
        lambda c: state_keys(c) | {"ssm.time_step_rank": c.num_heads, "ssm.group_count": c.n_groups},
        {
            "A_log": decay,
            r"conv1d\.weight": squeezed,
            r"\.D$": named("d", shape=(-1, 1)),
            "dt_bias": named("dt", end=".bias"),
            r"mixer\.norm": named("norm", shape=(2, -1), end=".weight"),
        },
    ),
    "lfm2": Family(ARCH.LFM2, lfm2, lfm2_keys, {r"conv\.conv": squeezed}),
    "rwkv7": Family(ARCH.RWKV7, lambda seed: RWKV7(seed, Settings()), lambda c: c.keys(), without_effect=DUMMIES),
    "rwkv7-heads": Family(
        ARCH.RWKV7,
        lambda seed: RWKV7(seed, Settings(n=32, head=8, inner=32)),
        lambda c: c.keys(),
        without_effect=DUMMIES,
    ),
}
