"""LLaDA (arXiv:2502.09992, arXiv:2509.24389), Dream (arXiv:2508.15487), RND1 (Radical Numerics, 2025): the blocks of
other families, with attention in both directions."""

from __future__ import annotations

from ggplug.types import RopeMode
from ggplug_models.architectures.qwen import HeadNorms
from ggplug_models.networks.denoiser import Denoiser
from ggplug_models.networks.model import architecture
from ggplug_models.networks.transformer import Transformer


@architecture("dream")
class Dream(Transformer, Denoiser):
    """Dream: Qwen 2's block."""


@architecture("llada")
class Llada(Transformer, Denoiser):
    """LLaDA: LLaMA's block."""

    rope_mode = RopeMode.NORMAL


@architecture("rnd1")
class Rnd1(HeadNorms, Denoiser):
    """RND1: Qwen 3's block with experts, whose weights are normalised."""


@architecture("llada-moe")
class LladaMoe(Rnd1):
    """LLaDA-MoE: the same; weights of experts are not normalised."""

    normalized_experts = False
