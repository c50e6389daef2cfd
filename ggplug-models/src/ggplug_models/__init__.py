"""Encoders and language models on the graphs of ggplug.

>>> import ggplug_models
>>> model = ggplug_models.load("minilm.gguf")
>>> model.embed(["a sentence", "another"]).shape
(2, 384)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ggplug.system.lazy import member
from ggplug_models.chat.answer import Answer, AnswerPiece, ToolCall
from ggplug_models.chat.template import ChatTemplate
from ggplug_models.chat.text import ChatAnswer
from ggplug_models.chat.tools import Tool
from ggplug_models.generation.drafts import DraftModel, Drafts, PromptLookup
from ggplug_models.generation.finish import Finish
from ggplug_models.loading import load
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.denoiser import Denoiser
from ggplug_models.networks.encoder import Encoder
from ggplug_models.networks.encoder_decoder import EncoderDecoder
from ggplug_models.networks.model import ARCHITECTURES, Model
from ggplug_models.state.session import Session
from ggplug_models.state.steps import Asked, Outputs
from ggplug_models.tokenizers import Tokenizer, load_tokenizer
from ggplug_models.tokenizers.long_text import LongText
from ggplug_models.weights.packing import PackedWeight
from ggplug_models.weights.placement import Placed, Placement
from ggplug_models.weights.rules import CacheOn, ExpertsOn, LayersOn, LayerSplit, Place

if TYPE_CHECKING:
    from ggplug_models.calling import ToolRun, run_tools
    from ggplug_models.converting.convert import convert
    from ggplug_models.fitting import Fit, fit
    from ggplug_models.guessing.kinds import drafts_for
    from ggplug_models.guessing.ngram_drafts import NgramDrafts

__version__ = "0.1.0"

_LAZY = {
    "Fit": "fitting",
    "NgramDrafts": "guessing.ngram_drafts",
    "ToolRun": "calling",
    "convert": "converting.convert",
    "drafts_for": "guessing.kinds",
    "fit": "fitting",
    "run_tools": "calling",
}
"""What is imported when it is first used, because programs that run a model need none of it: names, and modules."""

__all__ = [
    "ARCHITECTURES",
    "Answer",
    "AnswerPiece",
    "Asked",
    "CacheOn",
    "ChatAnswer",
    "ChatTemplate",
    "Decoder",
    "Denoiser",
    "DraftModel",
    "Drafts",
    "Encoder",
    "EncoderDecoder",
    "ExpertsOn",
    "Finish",
    "Fit",
    "LayerSplit",
    "LayersOn",
    "LongText",
    "Model",
    "NgramDrafts",
    "Outputs",
    "PackedWeight",
    "Place",
    "Placed",
    "Placement",
    "PromptLookup",
    "Session",
    "Tokenizer",
    "Tool",
    "ToolCall",
    "ToolRun",
    "convert",
    "drafts_for",
    "fit",
    "load",
    "load_tokenizer",
    "run_tools",
]


def __getattr__(name: str) -> Any:
    return member(globals(), _LAZY, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY} - {"Any", "TYPE_CHECKING", "annotations", "member"})
