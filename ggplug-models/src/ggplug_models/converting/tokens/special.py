"""Converts special tokens, the tokens added around texts, the chat template, and the normalisation of letters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np

from ggplug.errors import ModelError
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.tokens.tokenizer_json import normalizers
from ggplug_models.metadata.values import Values
from ggplug_models.tokenizers.vocabulary import AFTER, BEFORE, ENDING, MODEL, TOKENS

KEYS = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "sep": "seperator",
    "pad": "padding",
    "cls": None,
    "mask": "mask",
    "eot": "eot",
}
"""Special tokens, and their names in llama.cpp's keys; it has none for CLS, which is its BOS."""


def special(folder: Folder, description: Values, settings: Values, config: Values, n_vocab: int) -> dict[str, Any]:
    """The metadata of the special tokens, the chat template and the normalisation.

    ``description``: ``tokenizer.json``.  ``settings``: ``tokenizer_config.json``, which has the texts of the tokens;
    the first and the last token may come from the post-processor's template.  ``config``: those of the language model
    in ``config.json``, which has the ids of tokens without a text.
    """
    texts = {kind: text for kind in KEYS if kind != "eot" and (text := content(settings, f"{kind}_token")) is not None}
    _default(texts, "bos", "cls")
    _default(texts, "eos", "sep")
    added = _added(description, texts)
    for kind in ("bos", "eos", "sep"):
        added.setdefault(kind, settings.boolean(f"add_{kind}_token", None))
    ids = {each.text("content"): each.integer("id", at_least=0) for each in description.objects("added_tokens", [])}
    found: dict[str, Any] = {}
    for kind, name in KEYS.items():
        if name is None:
            continue
        token = ids.get(texts.get(kind, ""))
        if token is None and kind != "eot":
            token = _id_of(folder, config, kind)
        if token is not None and 0 <= token < n_vocab:
            found[f"tokenizer.ggml.{name}_token_id"] = token
    found |= {f"tokenizer.ggml.add_{kind}_token": value for kind, value in added.items() if value is not None}
    template = chat_template(folder, settings)
    return found | template | _letters(description)


def _id_of(folder: Folder, config: Values, kind: str) -> int | None:
    """The id of a special token without a text; of several that end texts the first."""
    stated = (each.values.get(f"{kind}_token_id") for each in (folder.json("config.json"), config))
    one = next((value for value in stated if type(value) is int), None)
    return one if one is not None or kind != "eos" else next(iter(_ends(folder, config)), None)


def further_ends(folder: Folder, config: Values, found: Mapping[str, Any], n_vocab: int) -> dict[str, Any]:
    """The key of ggplug's of all tokens that end texts, if there are others than those with a key of llama.cpp's."""
    ends = [token for token in _ends(folder, config) if 0 <= token < n_vocab]
    named = {found.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")}
    return {} if named.issuperset(ends) else {ENDING: np.array(ends, np.uint32)}


def _ends(folder: Folder, config: Values) -> list[int]:
    """The ids that end texts by ``generation_config.json``, else by a list in ``config.json``.  Raises ModelError.

    A single id in ``config.json`` is only that of the EOS, which the tokenizer's settings may say otherwise.
    """
    whole, generation = folder.json("config.json"), folder.optional_json("generation_config.json")
    key = "eos_token_id"
    if generation is not None and generation.values.get(key) is not None:
        holder = generation
    else:
        holder = next((each for each in (whole, config) if isinstance(each.values.get(key), list)), Values({}))
    ends = holder.values.get(key, [])
    listed = ends if isinstance(ends, list) else [ends]
    if not all(type(each) is int for each in listed):
        raise holder.refused(key, "the id of a token, or an array of ids")
    return listed


def around(description: Values, found: Mapping[str, Any], n_vocab: int) -> dict[str, Any]:
    """What ``tokenizer.json`` puts around texts, where llama.cpp's keys in ``found`` do not say it.

    Under keys of ggplug's, but where it puts nothing, under those of llama.cpp.  Raises ModelError.
    """
    steps = _adding(description)
    kind = found[MODEL]
    if not steps or kind == "bert":  # whose whole tokenizer.json is in the file
        return {}
    if len(steps) > 1:
        raise description.refused("post_processor", "one with a single step that adds tokens")
    before, after = (_of_two if steps[0].text("type") in _OF_TWO else _of_template)(steps[0], found, n_vocab)
    more: dict[str, Any] = {}
    for name, key, tokens in (("bos", BEFORE, before), ("eos", AFTER, after)):
        says = f"tokenizer.ggml.add_{name}_token"
        if not tokens and found.get(says, name == ("eos" if kind == "t5" else "bos")):  # what is added otherwise
            more[says] = False
        elif tokens and (tokens != [found.get(f"tokenizer.ggml.{name}_token_id")] or found.get(says) is not True):
            more[key] = np.array(tokens, np.uint32)
    return more


def bare(description: Values, name: str) -> dict[str, bool]:
    """Without a step of the post-processor that adds tokens, the key that llama.cpp's default does not hold.

    ``name``: "bos" or "eos", which llama.cpp would add.  The settings may say otherwise.
    """
    return {} if _adding(description) else {f"tokenizer.ggml.add_{name}_token": False}


def _adding(description: Values) -> list[Values]:
    """The steps of the post-processor that add tokens."""
    return [step for step in _steps(description) if step.text("type", "") in ("TemplateProcessing", *_OF_TWO)]


_OF_TWO = ("BertProcessing", "RobertaProcessing")
"""Post-processors that put one token before and one after a text."""


def _of_two(step: Values, found: Mapping[str, Any], n_vocab: int) -> tuple[list[int], list[int]]:
    """The ids before and after a text, ``cls`` and ``sep``, each a text and an id."""
    ids = []
    for name in ("cls", "sep"):
        value = step.values.get(name)
        if not (isinstance(value, list) and len(value) == 2 and type(value[1]) is int and 0 <= value[1] < n_vocab):
            raise step.refused(name, f"a text and an integer from 0 to {n_vocab - 1}")
        ids.append([value[1]])
    return ids[0], ids[1]


def _of_template(step: Values, found: Mapping[str, Any], n_vocab: int) -> tuple[list[int], list[int]]:
    """The ids before and after a text, by the template of single texts."""
    single = step.objects("single")
    place = next((number for number, entry in enumerate(single) if "Sequence" in entry), None)
    if place is None or any("Sequence" in entry for entry in single[place + 1 :]):
        raise step.refused("single", "one text, with or without special tokens before and after it")
    ids = [_ids(step, _special(entry) or "", found, n_vocab) for entry in single]
    return [*chain(*ids[:place])], [*chain(*ids[place:])]


def _ids(step: Values, token: str, found: Mapping[str, Any], n_vocab: int) -> list[int]:
    """The ids that a special token of a template stands for; none for that of the text, which is empty."""
    if not token:
        return []
    named = step.inner("special_tokens", Values({}))
    if token not in named:
        if token not in found[TOKENS]:
            raise step.refused("single", f"special tokens of the vocabulary, which has no {token!r}")
        return [found[TOKENS].index(token)]
    ids = named.inner(token).values.get("ids")
    if not isinstance(ids, list) or not all(type(each) is int and 0 <= each < n_vocab for each in ids):
        raise named.inner(token).refused("ids", f"an array of integers from 0 to {n_vocab - 1}")
    return ids


def _default(texts: dict[str, str], kind: str, other: str) -> None:
    if kind not in texts and other in texts:
        texts[kind] = texts[other]


def content(settings: Values, key: str) -> str | None:
    """The text of a special token in the settings."""
    value = settings.values.get(key)
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _added(description: Values, texts: dict[str, str]) -> dict[str, bool | None]:
    """Whether BOS, EOS and a separator are added to texts.  Adds texts of tokens that only the template names."""
    added: dict[str, bool | None] = {}
    for step in _steps(description):
        kind = step.text("type", "")
        if kind == "ByteLevel":
            added.setdefault("bos", False)
            added.setdefault("eos", False)
        elif kind == "RobertaProcessing":
            added |= {"bos": True, "eos": True, "sep": True}
            for name in ("cls", "sep"):
                value = step.values.get(name)
                if isinstance(value, list) and value and isinstance(value[0], str):
                    texts.setdefault(name, value[0])
        elif kind == "TemplateProcessing":
            _template(step, texts, added)
    return added


def _steps(description: Values) -> Iterator[Values]:
    if "post_processor" in description:
        whole = description.inner("post_processor")
        yield from whole.objects("processors", [whole])


def _template(step: Values, texts: dict[str, str], added: dict[str, bool | None]) -> None:
    single = [_special(each) for each in step.objects("single", [])]
    pair = [_special(each) for each in step.objects("pair", [])]
    if len(single) < 2:
        single = []
    first, last = (single[0], single[-1]) if single else (None, None)
    if first:
        texts.setdefault("bos", first)
        texts.setdefault("cls", first)
        added["bos"] = first in (texts["bos"], texts["cls"])
    if last:
        # Texts end with this token; the EOS of the settings then ends a turn of a chat.
        if texts.get("eos", last) != last:
            texts["eot"] = texts["eos"]
        texts["eos"] = last
        added["eos"] = True
    if first and pair[:1] == [first]:
        pair = pair[1:]
    if last and pair[-1:] == [last]:
        pair = pair[:-1]
    if len(pair) > 2 and pair[0] is None and pair[-1] is None:
        separators = {texts.get("sep"), texts.get("eos")} - {None}
        between = [token for token in pair[1:-1] if token in separators]
        added["sep"] = bool(between) and (not last or len(pair) == 4)


def _special(entry: Values) -> str | None:
    """The special token of a template's entry; None for an entry that is the text."""
    return entry.inner("SpecialToken").text("id") if "SpecialToken" in entry else None


def chat_template(folder: Folder, settings: Values) -> dict[str, Any]:
    """The chat template, or several by name, of which "default" is the usual one; files of them before settings."""
    texts: dict[str, str | None] = {"default": folder.text("chat_template.jinja")}
    for path in sorted((folder.path / TEMPLATES).glob("*.jinja")):
        texts[path.stem] = folder.text(f"{TEMPLATES}/{path.name}")
    if list(texts.values()) == [None]:
        written = settings.values.get("chat_template")
        if isinstance(written, (list, tuple)):
            texts = {each.text("name"): each.text("template") for each in settings.objects("chat_template")}
        elif (file := folder.optional_json("chat_template.json")) is not None and written is None:
            texts = {"default": file.text("chat_template", None)}
        else:
            texts = {"default": settings.text("chat_template", None)}
    names = [name for name in texts if name != "default"]
    found: dict[str, Any] = {f"tokenizer.chat_template.{name}": texts[name] for name in names}
    if texts.get("default") is not None:
        found["tokenizer.chat_template"] = texts["default"]
    return found | ({"tokenizer.chat_templates": names} if names else {})


TEMPLATES = "additional_chat_templates"
"""The folder of templates that are not the usual one."""


def _letters(description: Values) -> dict[str, bool]:
    """The keys of the normalisation: whether texts are lowercased, and accents removed."""
    found: dict[str, bool] = {}
    for step in normalizers(description):
        kind = step.text("type", "")
        if kind == "Lowercase":
            found["lowercase"] = True
        elif kind == "StripAccents":
            found["strip_accents"] = True
        elif kind == "BertNormalizer":
            for name in ("lowercase", "strip_accents"):
                if name in step:
                    found[name] = step.boolean(name)
    return {f"tokenizer.ggml.normalizer.{name}": value for name, value in found.items()}


def looks_special(text: str) -> bool:
    """Whether a token is special, judged by its text: Gemma, DeepSeek and Command R do not mark all special tokens."""
    pairs = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))
    return text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]") or any(
        text.startswith(first) and text.endswith(last) for first, last in pairs
    )


def refused_model(description: Values, wanted: str) -> ModelError:
    return description.inner("model").refused("type", f"{wanted}; no other type is supported for this family")
