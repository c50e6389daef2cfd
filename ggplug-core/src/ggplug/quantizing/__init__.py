"""Quantising models: which tensor becomes which type, by what importance, and the new file.

:func:`quantize_file` does it all; ``ggplug quantize`` is that function.  For arrays there is :func:`ggplug.quantize`.
"""

from ggplug.quantizing.choice import Override
from ggplug.quantizing.importance import Importance, read_importance
from ggplug.quantizing.mixtures import COPY, MIXTURES, Mixture
from ggplug.quantizing.model import Quantized, quantize_file

__all__ = ["COPY", "MIXTURES", "Importance", "Mixture", "Override", "Quantized", "quantize_file", "read_importance"]
