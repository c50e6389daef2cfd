"""Quantises models: chooses the types of tensors, reads importance matrices, and writes the new file.

:func:`quantize_file` does all of this; ``ggplug quantize`` calls it.  :func:`preview_file` says only what it would do.
For arrays there is :func:`ggplug.quantize`.
"""

from ggplug.quantizing.choice import Override
from ggplug.quantizing.importance import Importance, read_importance
from ggplug.quantizing.mixtures import COPY, MIXTURES, Mixture
from ggplug.quantizing.model import Quantized, preview_file, quantize_file

__all__ = [
    "COPY",
    "MIXTURES",
    "Importance",
    "Mixture",
    "Override",
    "Quantized",
    "preview_file",
    "quantize_file",
    "read_importance",
]
