"""Adapters, from files in llama.cpp's format: low-rank changes of weights (LoRA), and control vectors.

:meth:`.Network.adapt` and :meth:`.Network.steer` compute with them, while the weights stay as they are; :func:`merge`
writes a model that has the changes of LoRA adapters in its weights.
"""

from ggplug_models.adapters.control_vector import ControlVector
from ggplug_models.adapters.lora import LoraAdapter, LoraFile, Pair
from ggplug_models.adapters.merging import merge

__all__ = ["ControlVector", "LoraAdapter", "LoraFile", "Pair", "merge"]
