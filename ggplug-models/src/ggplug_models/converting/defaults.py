"""What settings are where ``config.json`` leaves them out: the defaults of the model's class in transformers."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from ggplug_models.metadata.values import Values

FILE = Path(__file__).with_name("defaults.json")
"""The defaults by model type, as ``python -m oracles.folders.defaults`` records them."""


@cache
def _table() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(FILE.read_text("utf-8"))
    return found


def completed(config: Values, kind: str) -> Values:
    """The settings with the defaults of their class, which is that of ``kind`` if they don't name another one.

    A setting that is ``null`` is not left out, unless it is an object.
    """
    table, written = _table(), config.values
    own = written.get("model_type")
    found = {}
    for names, value in table.get(own if own in table else kind, {}).items():
        first, *_ = alternatives = names.split("|")
        if not any(
            written.get(name) is not None if isinstance(value, dict) else name in written for name in alternatives
        ):
            found[first] = value
    return Values({**written, **found}, config.prefix, config.where)
