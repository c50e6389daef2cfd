"""What Sentence Transformers keeps next to a model: what makes one vector of a text's, and prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ggplug_models.converting.folder import Folder, unreadable
from ggplug_models.converting.tokens.tokenizer_json import normalizers
from ggplug_models.embedding.pooling import Pooling
from ggplug_models.metadata.values import Values
from ggplug_models.networks.texts import DIMENSIONS, LONGEST, PROMPT

MODULES = "modules.json"
POOLING = "1_Pooling"
"""The folder of the pooling where no file lists the modules."""

_ORDER = ("Transformer", "Pooling", "Dense", "Normalize")
"""The modules that follow each other; Dropout may stand anywhere, and there may be several of Dense."""

_MOST = 2
"""How many linear layers files have."""

_MODES = {"mean_tokens": Pooling.MEAN, "cls_token": Pooling.CLS, "lasttoken": Pooling.LAST}
_MODE = "pooling_mode"


class Modules(NamedTuple):
    """The folder of the pooling, if there is one, and the linear layers behind it."""

    pooling: str | None
    dense: tuple[Values, ...]


def modules(folder: Folder) -> Modules:
    """The modules behind the model.  Raises ModelError for those that files cannot have."""
    if MODULES not in folder:
        return Modules(POOLING if f"{POOLING}/config.json" in folder else None, ())
    path = folder.path / MODULES
    with unreadable(path):
        listed = Values({"modules": json.loads(folder.read(MODULES))}, where=str(path)).objects("modules")
    pooling, dense, before = None, list[Values](), -1
    for each in listed:
        kind = each.text("type").rpartition(".")[2]
        if kind == "Dropout":
            continue
        here = _ORDER.index(kind) if kind in _ORDER else -1
        if not (before in (1, 2) if kind == "Dense" else here > before):
            raise each.refused("type", f"one of {', '.join(_ORDER)}, in this order: GGUF files have nothing else")
        before = here
        name = each.text("path", "")
        if kind in ("Pooling", "Dense") and (name in ("", "..") or name != Path(name).name):
            raise each.refused("path", "the name of a folder in this folder")
        if kind == "Pooling":
            pooling = name
        elif kind == "Dense":
            dense.append(each)
    if len(dense) > _MOST:
        raise dense[_MOST].refused("type", f"Normalize: GGUF files have at most {_MOST} layers behind the pooling")
    return Modules(pooling, tuple(dense))


def keys(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of the pooling, the linear layers, prompts by name, and lengths to which vectors and texts are cut."""
    found: dict[str, Any] = {}
    pooling, dense = modules(folder)
    if pooling is not None:
        found["pooling_type"] = _pooling(folder.json(f"{pooling}/config.json"))
    for number, each in enumerate(dense, 2):
        layer = _layer(each, folder)
        for end, needed in (("in", each is dense[0]), ("out", each is dense[-1])):
            n = found[f"dense_{number}_feat_{end}"] = layer.integer(f"{end}_features")
            if needed and n != config.integer("hidden_size"):
                raise layer.refused(f"{end}_features", "hidden_size, which is the length of vectors in GGUF files")
    about = folder.optional_json("config_sentence_transformers.json")
    prompts = None if about is None else about.inner("prompts", None)
    if about is not None and "default_prompt_name" in about:
        raise about.refused("default_prompt_name", "null: GGUF files have no prompt that all texts get")
    if prompts is not None:
        found |= {f"{PROMPT}{name}": prompts.text(name) for name in prompts.values}
    texts = folder.optional_json("sentence_bert_config.json")
    if texts is not None and "max_seq_length" in texts:
        found[LONGEST] = texts.integer("max_seq_length")
    elif MODULES in folder:
        found |= _longest_of_tokenizer(config, folder)
    if texts is not None and texts.boolean("do_lower_case", False) and not _lowers(folder):
        raise texts.refused("do_lower_case", "false: tokenizers of GGUF files do not make texts lower case")
    if (lengths := config.values.get("matryoshka_dimensions")) is not None:
        if not isinstance(lengths, list) or not all(type(each) is int and each > 0 for each in lengths):
            raise config.refused("matryoshka_dimensions", "a list of positive integers")
        found[DIMENSIONS] = np.array(lengths, np.uint32)
    return found


def _longest_of_tokenizer(config: Values, folder: Folder) -> dict[str, Any]:
    """The length to which texts are cut that the tokenizer has, if it is less than the model's."""
    settings = folder.optional_json("tokenizer_config.json") or Values({})
    settings.text("truncation_side", "right", one_of=("right",))
    longest, of_model = settings.values.get("model_max_length"), config.values.get("max_position_embeddings")
    fits = type(longest) is int and longest > 0 and type(of_model) is int and longest < of_model
    return {LONGEST: longest} if fits else {}


def _lowers(folder: Folder) -> bool:
    """Whether the tokenizer makes letters lower case itself."""
    steps = normalizers(folder.optional_json("tokenizer.json") or Values({}))
    return any(step.text("type") == "Lowercase" or step.boolean("lowercase", False) for step in steps)


def _pooling(modes: Values) -> Pooling:
    """How the vectors of tokens become one; the mean, if the settings name no way."""
    if not modes.boolean("include_prompt", True):
        raise modes.refused("include_prompt", "true: with GGUF files the tokens of a prompt are pooled, too")
    if _MODE in modes:
        names = {name.partition("_")[0]: kind for name, kind in _MODES.items()}
        return names[modes.text(_MODE, one_of=names)]
    chosen = [name for name in modes.values if name.startswith(f"{_MODE}_") and modes.boolean(name, False)]
    known = {f"{_MODE}_{name}": kind for name, kind in _MODES.items()}
    if not chosen and modes.boolean(f"{_MODE}_mean_tokens", True):
        return Pooling.MEAN
    if len(chosen) == 1 and chosen[0] in known:
        return known[chosen[0]]
    name = chosen[-1] if chosen else f"{_MODE}_mean_tokens"
    raise modes.refused(name, f"such that one of {', '.join(known)} is true, and no other way of pooling")


def _layer(module: Values, folder: Folder) -> Values:
    """The settings of a linear layer, which files have without a bias or an activation."""
    layer = folder.json(f"{module.text('path')}/config.json")
    if layer.boolean("bias", True):
        raise layer.refused("bias", "false: GGUF files have no biases of these layers")
    activation = layer.text("activation_function", "torch.nn.modules.activation.Tanh")
    if not activation.endswith(".Identity"):
        raise layer.refused("activation_function", "torch.nn.modules.linear.Identity: GGUF files have no other")
    return layer
