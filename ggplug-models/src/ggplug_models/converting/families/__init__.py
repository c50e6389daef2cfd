"""The tables of the families, by ``model_type``: the conversion of their tensors and settings."""

from __future__ import annotations

from ggplug_models.converting.defaults import completed
from ggplug_models.converting.families import (
    bert,
    deltas,
    dense,
    diffusion,
    early,
    encoders,
    gemma,
    granite,
    hybrids,
    large,
    latents,
    layer_norms,
    loops,
    mixtures,
    multimodal,
    plamo,
    recent,
    rwkv,
    varying,
)
from ggplug_models.converting.family import Family
from ggplug_models.metadata.values import Values

FAMILIES: dict[str, Family] = {
    **dense.FAMILIES,
    **gemma.FAMILIES,
    **mixtures.FAMILIES,
    **granite.FAMILIES,
    **hybrids.FAMILIES,
    **deltas.FAMILIES,
    **latents.FAMILIES,
    **layer_norms.FAMILIES,
    **early.FAMILIES,
    **loops.FAMILIES,
    **plamo.FAMILIES,
    **recent.FAMILIES,
    **large.FAMILIES,
    **varying.FAMILIES,
    **multimodal.FAMILIES,
    **diffusion.FAMILIES,
    **rwkv.FAMILIES,
    **encoders.FAMILIES,
    **bert.FAMILIES,
}
"""By ``model_type`` of ``config.json``."""

_TIED = "tie_word_embeddings"
"""The setting that models with several parts have outside of their parts."""


def family_of(config: Values) -> tuple[Family, Values]:
    """The family of a model, and the settings of its language model.  Raises ModelError for an unknown family."""
    kind = config.text("model_type")
    if kind not in FAMILIES:
        raise config.refused("model_type", f"one of {', '.join(sorted(FAMILIES))}: no other family is supported")
    family = FAMILIES[kind]
    inner = config.inner(family.inner, config) if family.inner else config
    if inner is not config and completed(config, kind).boolean(_TIED, False):
        inner = Values({**inner.values, _TIED: True}, where=inner.where)
    settings = completed(inner, kind)
    return next((other for fits, other in family.variants if fits(settings)), family), settings
