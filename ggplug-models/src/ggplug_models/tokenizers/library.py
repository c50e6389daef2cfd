"""Calls the Hugging Face library ``tokenizers``: converts its errors, and texts that it cannot read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ggplug.errors import GGPlugError, ModelError


class CallerFailed(Exception):
    """Carries ``error``, which the caller's callable raised, through the library's error handling."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def library(source: str) -> Iterator[None]:
    """A ``with`` block around calls of ``tokenizers`` that converts its errors to ModelError.

    The library raises bare Exception, and for a panic a BaseException.  ``source``: the metadata key that the library
    reads, for the message.
    """
    try:
        yield
    except (GGPlugError, MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except CallerFailed as failed:
        raise failed.error from None
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ModelError(f"{source} is not a valid tokenizer: {error}") from error


def encodable(text: str) -> str:
    """The text with lone surrogates, which UTF-8 cannot encode, replaced by ``?``."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode("utf-8")
    return text
