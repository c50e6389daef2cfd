"""The Hugging Face ``tokenizers`` library: its errors as ours, and text that it takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ggplug.errors import GGPlugError, ModelError


class CallerFailed(Exception):
    """``error``: what a callable of the caller's raised, which is not the library's fault."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def library(source: str) -> Iterator[None]:
    """Around calls of ``tokenizers``, which raises bare Exception, and panics by what is no Exception at all.

    ``source``: the metadata key that the library was given; the ModelError names it.
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
        raise ModelError(f"{source} describes no tokenizer that works: {error}") from error


def encodable(text: str) -> str:
    """The text with halves of surrogate pairs, which have no UTF-8 form, as ``?``."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode("utf-8")
    return text
