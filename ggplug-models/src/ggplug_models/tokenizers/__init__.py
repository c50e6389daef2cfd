"""Tokenizers: one module for each kind."""

from __future__ import annotations

from ggplug_models.tokenizers.streaming import StreamDecoder
from ggplug_models.tokenizers.tokenizer import Tokenizer, load_tokenizer

__all__ = ["StreamDecoder", "Tokenizer", "load_tokenizer"]
