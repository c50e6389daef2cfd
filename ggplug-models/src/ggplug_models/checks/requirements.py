"""Imports optional libraries, with errors that say how to install them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

from ggplug.errors import ModelError


@contextmanager
def required(library: str, purpose: str, extra: str | None = None) -> Iterator[None]:
    """A ``with`` block around the import of a library: raises ModelError with install instructions if that fails.

    ``purpose``: what the library is needed for.  ``extra``: the extra of ggplug-core that installs it.
    """
    try:
        yield
    except ImportError as error:
        raise ModelError(
            f"{purpose} needs the library {library}, which cannot be imported: {error}",
            got=library,
            remedy=f"pip install {library}" if extra is None else f'pip install "ggplug-core[{extra}]"',
        ) from error


def require_server(purpose: str) -> None:
    """Raises ModelError with install instructions if a library of the server cannot be imported."""
    for library in ("fastapi", "uvicorn", "prometheus_client"):
        with required(library, purpose, extra="serve"):
            importlib.import_module(library)
