"""Libraries that only some of this package needs: imported at the door of what needs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ggplug.errors import ModelError


@contextmanager
def required(library: str, purpose: str, extra: str | None = None) -> Iterator[None]:
    """Around the import of a library: where it fails, ModelError says for what it is needed and how to get it.

    ``extra``: the extra of ggplug-core that it belongs to, if there are several libraries to get.
    """
    try:
        yield
    except ImportError as error:
        raise ModelError(
            f"{purpose} needs the library {library}, which cannot be imported: {error}",
            got=library,
            remedy=f"pip install {library}" if extra is None else f'pip install "ggplug-core[{extra}]"',
        ) from error
