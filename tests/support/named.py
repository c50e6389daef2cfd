"""What a dotted name in the documentation stands for."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any


def resolve(path: str) -> Any:
    """The object of a dotted path; instance attributes count as their class's when its ``__init__`` sets them."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        break
    for name in parts[cut:]:
        if hasattr(found, name):
            found = getattr(found, name)
        elif inspect.isclass(found) and (
            any(name in inspect.get_annotations(c) for c in found.__mro__)
            or re.search(rf"\bself\.{name}\b(: [^=]+)? =", inspect.getsource(found.__init__))
        ):
            return name
        else:
            raise AttributeError(f"{path}: {found!r} has no {name}")
    return found
