"""``python -m oracles.folders.defaults``: records the settings that ``config.json`` may leave out.

It writes ``ggplug_models/converting/defaults.json``: for each ``model_type`` that has a converter and a class in
``transformers``, and for the text part of those with several, the class's defaults of the settings that converters
read.  ``a|b`` is the setting ``a``, which folders may call ``b``.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ggplug_models import converting
from ggplug_models.converting.defaults import FILE
from ggplug_models.converting.families import FAMILIES
from ggplug_models.converting.family import Family

_NOT_OF_NETWORKS = re.compile(r".*_token_id|vocab_size|num_nextn_predict_layers|num_mtp_layers|prefix_lm")
"""Tokens, which the tokeniser's files say, blocks that transformers has not, and how a processor makes masks."""

_BASES = {"modernbert": ("global_rope_theta", "local_rope_theta")}
"""The settings of two bases of RoPE where they aren't Gemma's."""

_OLDER = {
    "gpt_neox": ({"rope_theta", "rotary_emb_base"}, {"partial_rotary_factor", "rotary_pct"}),
    "nomic_bert": ({"rope_theta", "rotary_emb_base"}, {"hidden_act", "activation_function"}),
}
"""Names of one setting that neither the class nor the converter's tables have side by side."""

_ANOTHER = {"git"}
"""Types of published settings, here Grok's, of which transformers has another model."""


def words() -> set[str]:
    """All words of the code of converters, among which are the names of the settings that they read."""
    files = Path(converting.__file__).parent.rglob("*.py")
    return {word for path in files for word in re.findall(r"\w+", path.read_text("utf-8"))}


def settings(kind: type[PreTrainedConfig]) -> Iterator[tuple[str, Any]]:
    """The defaults of a class."""
    for each in dataclasses.fields(kind):
        made = each.default_factory
        yield each.name, each.default if made is dataclasses.MISSING else made()
    yield from positions(kind)


def positions(kind: type[PreTrainedConfig]) -> Iterator[tuple[str, Any]]:
    """The settings of RoPE of a class: its bases, or the whole object if there is more to it."""
    found = getattr(kind(), "rope_parameters", None)
    if not found:
        return
    full, local = found.get("full_attention", found), found.get("sliding_attention", found)
    if isinstance(kind.default_theta, dict):
        names = _BASES.get(kind.model_type, ("rope_theta", "rope_local_base_freq"))
        yield from zip(names, (full["rope_theta"], local["rope_theta"]), strict=True)
    elif full == local and full["rope_type"] == "default":
        yield from ((name, full[name]) for name in ("rope_theta", "partial_rotary_factor") if name in full)
    elif full is found:
        followed = kind(rope_theta=1.0).rope_parameters["rope_theta"] == 1
        yield "rope_theta", kind.default_theta
        yield "rope_parameters|rope_scaling", {key: found[key] for key in found if key != "rope_theta" or not followed}
    else:
        yield "rope_parameters|rope_scaling|rope_theta", found


def defaults(kind: type[PreTrainedConfig], family: Family, read: set[str]) -> dict[str, Any]:
    """The defaults of a class of the settings that are in ``read``."""
    tables = [
        table for each in (family, *(other for _, other in family.variants)) for table in (each.integers, each.numbers)
    ]
    groups = [{*each.rstrip("?").split("|")} for table in tables for each in table]
    groups += [*_OLDER.get(kind.model_type, ()), *({*each} for each in kind.attribute_map.items())]
    found = {}
    for names, value in settings(kind):
        name, *others = names.split("|")
        others += sorted({other for group in groups if name in group for other in group} - {name})
        if {name, *others} & read and known(value) and not _NOT_OF_NETWORKS.fullmatch(name):
            found["|".join([name, *others])] = value
    return found


def known(value: Any) -> bool:
    """Whether JSON has the value, and it says something."""
    if isinstance(value, (list, tuple)):
        return all(map(known, value))
    return isinstance(value, (str, dict)) or (isinstance(value, (bool, int, float)) and math.isfinite(value))


def table() -> dict[str, dict[str, Any]]:
    read, found = words(), {}
    for kind in sorted((FAMILIES.keys() & {*CONFIG_MAPPING}) - _ANOTHER):
        whole, family = CONFIG_MAPPING[kind], FAMILIES[kind]
        part = type(getattr(whole(), family.inner or "", whole()))
        found.setdefault(part.model_type, defaults(part, family, read))
        tied = getattr(whole(), "tie_word_embeddings", False)
        found[kind] = defaults(part, family, read) | {"tie_word_embeddings": bool(tied)}
    return found


if __name__ == "__main__":
    lines = (f"{json.dumps(kind)}: {json.dumps(each, allow_nan=False)}" for kind, each in sorted(table().items()))
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
