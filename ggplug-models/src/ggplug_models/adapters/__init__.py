"""Adapters, from files in llama.cpp's format: low-rank changes of weights (LoRA), and control vectors.

:meth:`.Network.adapt` and :meth:`.Network.steer` compute with them, while the weights stay as they are;
:func:`.merging.merge` writes a model that has the changes of LoRA adapters in its weights.
"""
