"""Sampling: chooses tokens from logits, with one sampler for each sequence."""

from __future__ import annotations

from ggplug_models.sampling.parameters import Sampling
from ggplug_models.sampling.penalties import breakers_of
from ggplug_models.sampling.sampler import Chooses, Constraint, LogitsError, Sampler
from ggplug_models.sampling.stop_strings import StopStrings

__all__ = ["Chooses", "Constraint", "LogitsError", "Sampler", "Sampling", "StopStrings", "breakers_of"]
