"""Special tokens of folders: which of them end texts, and which are put around texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_models_convert_families import changed, check_refused, made, read, tokenizer_says

import ggplug_models
from ggplug.errors import ModelError
from ggplug_models import load_tokenizer
from ggplug_models.tokenizers.vocabulary import AFTER, BEFORE, ENDING

# -- tokens that end texts -------------------------------------------------------------------------

NAMED = {"<|endoftext|>", "<|im_end|>"}
"""The texts of tokens of the folder qwen2 that end texts in any file."""


@pytest.mark.parametrize(
    ("config", "generation", "text", "eos", "further"),
    [
        (2, None, "<|im_end|>", "<|im_end|>", set()),
        ([290, 299, 10], None, "<|im_end|>", "<|im_end|>", {290, 299, 10}),
        (2, [288, 298, 290], "<|im_end|>", "<|im_end|>", {288, 290}),
        (2, 291, "<|im_end|>", "<|im_end|>", {291}),
        ([290, 299], [288, 291], "<|im_end|>", "<|im_end|>", {288, 291}),
        ([4000, 290], None, "<|im_end|>", "<|im_end|>", {290}),
        (290, None, None, 290, {290}),
        ([290, 299], None, None, 290, {290, 299}),
        ([290, 299], [288, 291], None, 288, {288, 291}),
        (None, [288, 291], None, 288, {288, 291}),
    ],
)
def test_texts_end_at_each_token_that_the_settings_list(
    config: Any, generation: Any, text: str | None, eos: str | int, further: set[int], tmp_path: Path
) -> None:
    folder = made("qwen2", tmp_path)
    changed(folder, "config.json", eos_token_id=config)
    changed(folder, "tokenizer_config.json", eos_token=text)
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}), "utf-8")
    tokenizer = load_tokenizer(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    ids = tokenizer.vocabulary.ids
    assert tokenizer.eos == (ids[eos] if isinstance(eos, str) else eos)
    assert tokenizer.ends == {ids[each] for each in NAMED} | further


def test_the_settings_of_a_model_that_sees_say_what_ends_texts(tmp_path: Path) -> None:
    folder = made("gemma3", tmp_path)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    outer = {"model_type": "gemma3", "text_config": config, "eos_token_id": [1, 106]}
    (folder / "config.json").write_text(json.dumps(outer), "utf-8")
    assert {1, 106} <= load_tokenizer(ggplug_models.convert(folder, tmp_path / "out.gguf")).ends


@pytest.mark.parametrize("value", ["2", [2, "3"], [True], 2.5])
def test_what_is_no_id_of_a_token_is_refused(value: Any, tmp_path: Path) -> None:
    folder = made("qwen2", tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": value}), "utf-8")
    with pytest.raises(
        ModelError, match=r"generation_config\.json: eos_token_id must be the id of a token, or an array"
    ):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_ends_in_a_file_are_tokens_of_it_and_no_text(tmp_path: Path) -> None:
    metadata = read(ggplug_models.convert(made("qwen2", tmp_path), tmp_path / "out.gguf"))
    tokenizer = load_tokenizer({**metadata, ENDING: np.array([299, 290], np.uint32)})
    assert {290, 299} <= tokenizer.ends
    assert tokenizer.decode([290, 299], skip_special=True) == tokenizer.decode([290])
    for odd in (np.array([4000]), np.array([[1]]), 7):
        with pytest.raises(ModelError, match=r"tokenizer\.ggml\.end_token_ids must be"):
            load_tokenizer({**metadata, ENDING: odd})


# -- tokens around texts ---------------------------------------------------------------------------

FIRST = {"qwen2": "<|im_start|>", "llama3": "<|begin_of_text|>", "glm4": "[gMASK]", "nomic-bert-moe": "<s>"}
LAST = {"qwen2": "<|im_end|>", "llama3": "<|eot_id|>", "glm4": "<|user|>", "nomic-bert-moe": "</s>"}


def template(single: str, ids: dict[str, int]) -> dict[str, Any]:
    """A template of ``tokenizer.json``.  ``single``: its special tokens, and ``$A`` for the text."""

    def entry(part: str) -> dict[str, Any]:
        return {"Sequence" if part == "$A" else "SpecialToken": {"id": part.removeprefix("$"), "type_id": 0}}

    special = {each: {"id": each, "ids": [ids[each]], "tokens": [each]} for each in single.split() if each != "$A"}
    parts = [entry(part) for part in single.split()]
    pair = [*parts, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": parts, "pair": pair, "special_tokens": special}


@pytest.mark.parametrize("single", ["$A", "F $A", "$A L", "F $A L", "F L $A", "F F $A", "L $A", "$A F L", "L F $A F F"])
@pytest.mark.parametrize("name", ["qwen2", "llama3", "glm4", "nomic-bert-moe"])
def test_the_tokens_around_texts_are_those_of_the_template(name: str, single: str, tmp_path: Path) -> None:
    folder = made(name, tmp_path)
    single = single.replace("F", FIRST[name]).replace("L", LAST[name])

    def says(content: Any) -> None:
        ids = {each["content"]: each["id"] for each in content["added_tokens"]}
        content["post_processor"] = template(single, ids)

    theirs = tokenizer_says(folder, says)
    ours = load_tokenizer(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    for text in ("The dog", ""):
        assert ours.encode(text, add_special=True) == theirs.encode(text).ids
    before = ours.vocabulary.before
    assert [*before, *ours.vocabulary.after] == theirs.encode("").ids
    written = "".join(ours.vocabulary.texts[each] for each in before)
    assert ours.prompt(f"{written}dog") == ours.prompt("dog") == [*before, *ours.encode("dog")]


@pytest.mark.parametrize("kind", ["BertProcessing", "RobertaProcessing", "TemplateProcessing"])
@pytest.mark.parametrize("name", ["qwen2", "llama3"])
def test_post_processors_decide_which_tokens_are_around_texts_and_not_the_settings(
    name: str, kind: str, tmp_path: Path
) -> None:
    folder = made(name, tmp_path)
    changed(folder, "tokenizer_config.json", add_bos_token=True, add_eos_token=True)

    def says(content: Any) -> None:
        ids = {each["content"]: each["id"] for each in content["added_tokens"]}
        first, last = FIRST[name], LAST[name]
        both = {"type": kind, "cls": [first, ids[first]], "sep": [last, ids[last]]}
        of_roberta = {"trim_offsets": True, "add_prefix_space": False} if kind == "RobertaProcessing" else {}
        content["post_processor"] = template("$A", ids) if kind == "TemplateProcessing" else {**both, **of_roberta}

    theirs = tokenizer_says(folder, says)
    ours = load_tokenizer(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    assert ours.encode("The dog", add_special=True) == theirs.encode("The dog").ids


@pytest.mark.parametrize("added", [True, None])
@pytest.mark.parametrize("name", ["qwen2", "llama3"])
def test_without_a_post_processor_the_settings_say_whether_a_bos_is_added(
    name: str, added: bool | None, tmp_path: Path
) -> None:
    folder = made(name, tmp_path)
    changed(folder, "tokenizer_config.json", bos_token=FIRST[name], add_bos_token=added)
    theirs = tokenizer_says(folder, lambda content: content.update(post_processor=None))
    ours = load_tokenizer(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    before = [theirs.token_to_id(FIRST[name])] if added else []
    assert ours.encode("The dog", add_special=True) == before + theirs.encode("The dog").ids


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"type": "BertProcessing", "cls": ["<s>", 1], "sep": ["</s>"]}, "sep must be a text and an integer from 0 to"),
        (template("$A $A", {}), "single must be one text, with or without special tokens before and after it"),
        (template("<s>", {"<s>": 1}), "single must be one text"),
        (
            template("<s> $A", {"<s>": 4000}),
            r"special_tokens: <s>: ids must be an array of integers from 0 to \d+, got",
        ),
        ({**template("<s> $A", {"<s>": 1}), "special_tokens": {}}, "single must be special tokens of the vocabulary"),
        ({"type": "Sequence", "processors": 2 * [template("$A", {})]}, "one with a single step that adds tokens"),
    ],
)
def test_a_template_that_says_no_tokens_around_a_text_is_refused(value: Any, named: str, tmp_path: Path) -> None:
    check_refused(made("qwen2", tmp_path), ["post_processor"], value, f"post_processor:? .*{named}")


def test_tokens_around_texts_in_a_file_are_tokens_of_it(tmp_path: Path) -> None:
    metadata = read(ggplug_models.convert(made("qwen2", tmp_path), tmp_path / "out.gguf"))
    for key in (BEFORE, AFTER):
        with pytest.raises(ModelError, match=f"{key} must be ids from 0 to 335"):
            load_tokenizer({**metadata, key: np.array([4000])})
