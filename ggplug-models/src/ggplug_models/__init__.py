"""Models on ggplug graphs.

>>> import ggplug_models
>>> model = ggplug_models.load("minilm.gguf")
>>> model.embed(["a sentence", "another"]).shape
(2, 384)
"""

from __future__ import annotations

from ggplug_models.chat_template import ChatTemplate
from ggplug_models.convert import convert
from ggplug_models.decoder import Decoder
from ggplug_models.drafts import DraftModel, Drafts, PromptLookup
from ggplug_models.encoder import Encoder
from ggplug_models.finish import Finish
from ggplug_models.loading import load
from ggplug_models.long_text import LongText
from ggplug_models.model import ARCHITECTURES, Model
from ggplug_models.packing import PackedWeight
from ggplug_models.placement import LayerSplit, Placement
from ggplug_models.session import Session
from ggplug_models.steps import Asked
from ggplug_models.tokenizers import Tokenizer, load_tokenizer

__version__ = "0.1.0"

__all__ = [
    "ARCHITECTURES",
    "Asked",
    "ChatTemplate",
    "Decoder",
    "DraftModel",
    "Drafts",
    "Encoder",
    "Finish",
    "LayerSplit",
    "LongText",
    "Model",
    "PackedWeight",
    "Placement",
    "PromptLookup",
    "Session",
    "Tokenizer",
    "convert",
    "load",
    "load_tokenizer",
]
