"""Special tokens and spaces of folders: which end texts, which are put around texts, and how they are found in them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_models_convert_families import SPACES, changed, check_refused, made, read, tokenizer_says

import ggplug_models
from ggplug.errors import ModelError
from ggplug_models import load_tokenizer
from ggplug_models.converting.tokens import vocabulary
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

FIRST = {
    "xverse": "<bos>",
    "qwen2": "<|im_start|>",
    "llama3": "<|begin_of_text|>",
    "glm4": "[gMASK]",
    "nomic-bert-moe": "<s>",
}
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
@pytest.mark.parametrize("name", ["qwen2", "llama3", "xverse", "nomic-bert-moe"])
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


# -- spaces, and tokens within texts ---------------------------------------------------------------


def texts(parts: list[str]) -> list[str]:
    """Texts of one to six of the parts, in an order that is the same each time, and the empty text."""
    draw = random.Random(29)
    return ["", *("".join(draw.choices(parts, k=draw.randint(1, 6))) for _ in range(150))]


def sequence(kind: str, *steps: Any) -> dict[str, Any]:
    return {"type": "Sequence", kind: list(steps)}


def metaspace(scheme: str, *, split: bool = False) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


PREPEND = {"type": "Prepend", "prepend": "▁"}
LEGACY = sequence("normalizers", PREPEND, SPACES)
AT_SPACES = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
NORMALIZED, STRIPS = {"normalized": True}, {"lstrip": True, "rstrip": True}
BEHIND_A_TOKEN = {"content": "<s>a", "normalized": True}


@pytest.mark.parametrize(
    ("normalizer", "splits", "token"),
    [
        (LEGACY, None, {}),
        (LEGACY, None, NORMALIZED),
        (LEGACY, None, NORMALIZED | STRIPS),
        (LEGACY, metaspace("first"), STRIPS),
        (SPACES, None, NORMALIZED),
        (SPACES, AT_SPACES, STRIPS),
        (SPACES, None, NORMALIZED | STRIPS),
        (SPACES, None, BEHIND_A_TOKEN),
        (SPACES, metaspace("first"), {}),
        (None, metaspace("always"), NORMALIZED),
        (None, metaspace("first"), NORMALIZED),
        (None, metaspace("first", split=True), STRIPS),
        (None, metaspace("never"), {}),
    ],
)
def test_merged_pieces_have_spaces_where_the_tokenizer_puts_them(
    normalizer: Any, splits: Any, token: dict[str, Any], tmp_path: Path
) -> None:
    folder = made("llama2", tmp_path)
    (folder / "tokenizer.model").unlink()
    words = ["<unk>", "<s>", "<tool>", *(f"<0x{n:02X}>" for n in range(256)), "▁", *"abs<>", "ab", "▁ab", "<s>a"]
    model = {"type": "BPE", "byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
    model |= {"vocab": {word: n for n, word in enumerate(words)}, "merges": [["a", "b"], ["▁", "ab"]]}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    tool = {**plain, "content": "<tool>", **token}
    begin = {**plain, "id": 1, "content": "<s>", "special": True}
    whole = {"version": "1.0", "model": model, "normalizer": normalizer, "pre_tokenizer": splits}
    whole |= {"added_tokens": [begin, {**tool, "id": words.index(tool["content"])}]}
    whole |= {"post_processor": template("<s> $A", {"<s>": 1})}
    (folder / "tokenizer.json").write_text(json.dumps(whole), "utf-8")
    changed(folder, "tokenizer_config.json", eos_token=None, added_tokens_decoder=None)
    theirs = tokenizer_says(folder, lambda content: None)
    ours = load_tokenizer(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    for text in texts(["ab", " ", "b", "\n", "<tool>", "<s>", "é"]):
        assert ours.encode(text, add_special=True, parse_special=True) == theirs.encode(text).ids
        with_first = text if text.startswith("<s>") else f"<s>{text}"
        assert ours.prompt(with_first) == theirs.encode(with_first, add_special_tokens=False).ids
    ids = theirs.encode("ab ab", add_special_tokens=False).ids
    assert ours.encode("ab") + ours.encode(" ab", begins=False) == ids
    assert ours.decode(ids) == "ab ab"


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        (
            "pre_tokenizer",
            {"type": "Digits", "individual_digits": True},
            "pre_tokenizer must be null or Metaspace alone",
        ),
        ("pre_tokenizer", {**AT_SPACES, "pattern": {"Regex": "o"}}, "pre_tokenizer must be null or Metaspace alone"),
        (
            "pre_tokenizer",
            metaspace("first", split=True),
            "pre_tokenizer: split must be false, because some tokens have",
        ),
        ("pre_tokenizer", {**metaspace("first"), "replacement": "_"}, "pre_tokenizer: replacement must be one of ▁"),
        ("normalizer", None, "pre_tokenizer must be Metaspace, because the normalizer replaces no spaces"),
        ("normalizer", {**SPACES, "content": "_"}, "normalizer: content must be one of ▁, got '_'"),
        ("normalizer", {**PREPEND, "prepend": "a"}, "normalizer: prepend must be one of ▁, got 'a'"),
        (
            "model",
            {"type": "BPE", "byte_fallback": True, "vocab": {"a": 0}, "merges": []},
            "model: vocab must be one with a token for each byte, of which <0x",
        ),
        ("normalizer", {"type": "NFKC"}, "normalizer: type must be one of Prepend, Replace, got 'NFKC'"),
        ("normalizer", sequence("normalizers", PREPEND, LEGACY), "normalizer must be one that puts one space before"),
    ],
)
def test_merged_pieces_of_texts_that_a_file_cannot_say_are_refused(
    place: str, value: Any, named: str, tmp_path: Path
) -> None:
    check_refused(made("xverse", tmp_path), [place], value, named)


def test_a_byte_that_is_a_token_itself_needs_no_other(tmp_path: Path) -> None:
    """As the tab in Gemma 1 and 2."""
    folder = made("xverse", tmp_path)
    path = folder / "tokenizer.json"
    path.write_text(path.read_text("utf-8").replace('"<0x09>"', '"\\t"'), "utf-8")
    theirs = tokenizer_says(folder, lambda content: None)
    ours = load_tokenizer(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    for text in ("a\tb", "\t", " \t the"):
        assert ours.encode(text, add_special=False) == theirs.encode(text, add_special_tokens=False).ids


def test_gemma_4_has_no_key_for_a_space_before_texts(tmp_path: Path) -> None:
    named = "normalizer must be one that puts no space before texts"
    check_refused(made("gemma4", tmp_path), ["normalizer"], sequence("normalizers", PREPEND, SPACES), named)


@pytest.mark.parametrize(
    ("form", "token"),
    [
        ("NFKC", {"content": "<ﬁ>"}),
        ("NFKD", {}),
        ("NFD", {"content": "<\u212b>"}),
        ("NFC", {"content": "<|im_start|>the"}),
    ],
)
def test_added_tokens_are_found_in_the_normalised_text_where_the_tokenizer_says_so(
    form: str, token: dict[str, Any], tmp_path: Path
) -> None:
    folder = made("qwen2", tmp_path)

    def says(content: Any) -> None:
        content["normalizer"] = {"type": form}
        content["added_tokens"][3] |= {**NORMALIZED, "content": "<tool>", **token}

    theirs = tokenizer_says(folder, says)
    ours = load_tokenizer(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    for text in texts(["<ﬁ>", "<fi>", "<\u212b>", "<A\u030a>", "<tool>", "<tool\uff1e", "<|im_start|>", "the", " "]):
        assert ours.encode(text, parse_special=True) == theirs.encode(text, add_special_tokens=False).ids


WORDS, STRIP = {"type": "WhitespaceSplit"}, {"type": "Strip", "strip_left": False, "strip_right": True}
RUNS = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}


@pytest.mark.parametrize(
    ("steps", "splits"),
    [
        ([], sequence("pretokenizers", WORDS, metaspace("always", split=True))),
        ([{**RUNS, "content": " "}], sequence("pretokenizers", WORDS, metaspace("always", split=True))),
        ([STRIP, RUNS], metaspace("always", split=True)),
        ([STRIP, RUNS], metaspace("first", split=True)),
        ([RUNS], metaspace("always", split=True)),
        ([], metaspace("always", split=True)),
        ([], metaspace("first", split=True)),
        ([], metaspace("never", split=True)),
    ],
)
def test_unigrams_have_spaces_where_the_tokenizer_puts_them(steps: Any, splits: Any, tmp_path: Path) -> None:
    folder = made("nomic-bert-moe", tmp_path)

    def says(content: Any) -> None:
        content["normalizer"] = sequence("normalizers", content["normalizer"], *steps)
        content["pre_tokenizer"] = splits
        content["model"]["vocab"].pop()  # the last one is an added token
        content["added_tokens"][-1] |= {"content": "<new>", "lstrip": True}

    theirs = tokenizer_says(folder, says)
    ours = load_tokenizer(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    for text in texts(["the", " ", "fox", "\n", "<new>", "<s>", "▁"]):
        assert ours.encode(text, add_special=True, parse_special=True) == theirs.encode(text).ids


def test_unigrams_with_tokens_of_some_bytes_are_refused(tmp_path: Path) -> None:
    folder = made("nomic-bert-moe", tmp_path)

    def says(content: Any) -> None:
        content["model"]["byte_fallback"] = True
        content["model"]["vocab"][-2] = ["<0x00>", -20.0]

    tokenizer_says(folder, says)
    with pytest.raises(ModelError, match="vocab must be one with a token for each byte, of which <0x01> is missing"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


@pytest.mark.parametrize(
    ("settings", "left", "ids"),
    [
        ({"tokenizer_class": "T5Tokenizer"}, (), {99: 60, 64: 95}),  # the model has 96 tokens
        ({"extra_ids": 3}, (), {0: 62, 2: 60}),
        ({"tokenizer_class": "T5Tokenizer"}, ("added_tokens.json",), {0: 80}),
        ({}, (), {}),
    ],
)
def test_t5_has_its_sentinels_behind_its_pieces(
    settings: dict[str, Any], left: tuple[str, ...], ids: dict[int, int], tmp_path: Path
) -> None:
    folder = made("t5", tmp_path)
    for name in {"tokenizer.json", "added_tokens.json"} - {*left}:
        (folder / name).unlink()
    changed(folder, "tokenizer_config.json", **{"tokenizer_class": None, **settings})
    ours = load_tokenizer(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    found = {text: token for text, token in ours.vocabulary.ids.items() if text.startswith("<extra_id_")}
    assert {number: found[f"<extra_id_{number}>"] for number in ids} == ids
    assert ids or not found
    for number, token in ids.items():
        assert ours.encode(f"<extra_id_{number}>", parse_special=True) == [token]


# -- the same tokens -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("llama3", "normalizer", {"type": "Lowercase"}),
        ("t5", "pre_tokenizer", {"type": "WhitespaceSplit"}),
    ],
)
def test_a_folder_whose_texts_would_have_other_tokens_is_refused(
    name: str, key: str, value: Any, tmp_path: Path
) -> None:
    folder = made(name, tmp_path)
    changed(folder, "tokenizer.json", **{key: value})
    with pytest.raises(ModelError):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_texts_are_compared_with_those_of_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a part of ``tokenizer.json`` was neither followed nor refused."""
    monkeypatch.setattr(vocabulary, "of_bytes", lambda *_: {})
    folder = made("qwen2", tmp_path)
    changed(folder, "tokenizer.json", normalizer={"type": "NFD"})
    with pytest.raises(
        ModelError, match=r"splits texts in a way that GGUF files cannot say: after \d+ tokens of 'naïve Straße"
    ):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


@pytest.mark.parametrize("key", ["eos_token", "additional_special_tokens", "extra_special_tokens"])
def test_tokens_that_only_the_settings_name_are_refused(key: str, tmp_path: Path) -> None:
    folder = made("qwen2", tmp_path)
    changed(folder, "tokenizer_config.json", **{key: "<new>" if key == "eos_token" else ["<new>"]})
    with pytest.raises(ModelError, match=rf"{key} must be made of tokens of tokenizer\.json, which has no '<new>'"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


@pytest.mark.parametrize("key", ["split_special_tokens", "add_prefix_space"])
def test_settings_that_change_the_tokens_of_byte_pairs_are_refused(key: str, tmp_path: Path) -> None:
    folder = made("qwen2", tmp_path)
    changed(folder, "tokenizer_config.json", tokenizer_class="Qwen2Tokenizer", **{key: True})
    with pytest.raises(ModelError, match=rf"tokenizer_config\.json: {key} must be false: .*, got True"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_tokens_without_an_embedding_are_left_out(tmp_path: Path) -> None:
    folder = made("qwen2", tmp_path)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)

    def says(content: Any) -> None:
        content["added_tokens"].append({"id": 4000, "content": "<pad>", "special": True, **flags})

    tokenizer_says(folder, says)
    ours = load_tokenizer(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    assert len(ours.encode("<pad>", parse_special=True)) > 1


@pytest.mark.parametrize("name", ["phi-3-mini", "modern-bert-base", "other"])
def test_the_name_of_a_model_decides_about_no_white_space_where_the_tokenizer_does(name: str, tmp_path: Path) -> None:
    folder = made("qwen2", tmp_path).rename(tmp_path / name)

    def says(content: Any) -> None:
        content["added_tokens"][0]["content"] = "[MASK]"

    theirs = tokenizer_says(folder, says)
    ours = load_tokenizer(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    for text in ("the [MASK] dog", "the <|im_end|> dog"):
        assert ours.encode(text, parse_special=True) == theirs.encode(text).ids


def test_a_token_of_another_file_that_the_vocabulary_lacks_is_refused(tmp_path: Path) -> None:
    folder = made("qwen2", tmp_path)
    (folder / "added_tokens.json").write_text('{"<|im_end|>": 298, "<new>": 300}', "utf-8")
    with pytest.raises(ModelError, match=r"added_tokens\.json: <new> must be a token of tokenizer\.json, too, got 300"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_the_padding_and_truncation_of_a_tokenizer_change_no_tokens(tmp_path: Path) -> None:
    folder = made("qwen2", tmp_path)
    theirs = tokenizer_says(folder, lambda content: None)
    theirs.enable_padding(length=64)
    theirs.enable_truncation(4)
    theirs.save(str(folder / "tokenizer.json"))
    ours = load_tokenizer(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    assert ours.encode("The dog")


def test_texts_of_modern_bert_have_no_tokens_around_them_without_a_post_processor(tmp_path: Path) -> None:
    folder = made("modern-bert", tmp_path)
    theirs = tokenizer_says(folder, lambda content: content.update(post_processor=None))
    ours = load_tokenizer(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    assert ours.encode("The dog", add_special=True) == theirs.encode("The dog").ids
