"""GGUF model files: read in place, written atomically.

:class:`GGUFReader` maps a file and checks its whole header; :class:`GGUFWriter` writes a file; :func:`load` loads a
model's tensors into the memory of devices.
"""

from ggplug.gguf.format import Endian, TensorInfo, Value, ValueType
from ggplug.gguf.load import load
from ggplug.gguf.reader import GGUFReader
from ggplug.gguf.writer import GGUFWriter

__all__ = ["Endian", "GGUFReader", "GGUFWriter", "TensorInfo", "Value", "ValueType", "load"]
