"""Grammars and JSON schemas: whatever the logits, the text follows them."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggplug_models
from ggplug.errors import ModelError, ParameterError
from ggplug_models import Tokenizer, load_tokenizer
from ggplug_models.sampling import Sampler, Sampling

pytest.importorskip("llguidance")
pytest.importorskip("tokenizers")

from ggplug_models.sampling.grammar import GrammarConstraint, Grammars

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "count": {"type": "integer", "minimum": 0, "maximum": 50},
        "kind": {"enum": ["a", "b"]},
    },
    "required": ["name", "count", "kind"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module", params=["spaces before words", "bytes"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    special = ["<unk>", "<s>", "</s>"]
    if request.param == "bytes":
        from ggplug_models.tokenizers.byte_pairs import LETTERS

        tokens = list(dict.fromkeys([*special, *LETTERS, "na", "me", "co", "un", "coun"]))
        merges = ["n a", "m e", "c o", "u n", "co un"]
        extra: dict[str, Any] = {"tokenizer.ggml.merges": merges, "tokenizer.ggml.pre": "gpt-2"}
        kinds = [2, 3, 3, *[1] * (len(tokens) - 3)]
    else:
        words = ["\u2581", *map(chr, range(33, 127)), '{"', '":', "name", "count", "\u2581{", ', "']
        tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *words]
        extra = {"tokenizer.ggml.scores": np.array([0] * 259 + [-n for n in range(len(words))], np.float32)}
        kinds = [2, 3, 3, *[6] * 256, *[1] * len(words)]
    return load_tokenizer(
        {
            "tokenizer.ggml.model": "gpt2" if request.param == "bytes" else "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": np.array(kinds, np.int32),
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            **extra,
        }
    )


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer)


def written(tokenizer: Tokenizer, constraint: GrammarConstraint, seed: int, n_vocab: int | None = None) -> str:
    """What a sampler writes by random logits until the text ends."""
    random = np.random.default_rng(seed)
    sampler = Sampler(Sampling(seed=seed), constraint=constraint)
    history: list[int] = []
    for _ in range(400):
        row = random.normal(0, 3, n_vocab or tokenizer.n_vocab).astype(np.float32)
        row[list(tokenizer.ends)] += 3
        token = sampler(row, history)
        if token in tokenizer.ends:
            assert constraint.complete
            return b"".join(map(tokenizer.piece, history)).decode("utf-8", "replace")
        history.append(token)
    raise AssertionError("the text did not end")


def test_random_logits_write_json_that_fits_the_schema(tokenizer: Tokenizer, grammars: Grammars) -> None:
    for seed in range(5):
        found = json.loads(written(tokenizer, grammars.json_schema(SCHEMA), seed))
        assert found.keys() == {"name", "count", "kind"}
        assert len(found["name"]) <= 5
        assert 0 <= found["count"] <= 50
        assert found["kind"] in ("a", "b")


def test_without_a_schema_any_object_is_json(tokenizer: Tokenizer, grammars: Grammars) -> None:
    assert isinstance(json.loads(written(tokenizer, grammars.json_schema(), 3)), dict)


def test_regular_expressions_and_grammars_are_followed(tokenizer: Tokenizer, grammars: Grammars) -> None:
    assert re.fullmatch("[0-9]{3}-[a-f]{1,9}x", written(tokenizer, grammars.regex("[0-9]{3}-[a-f]{1,9}x"), 1))
    assert written(tokenizer, grammars.lark('start: "yes" | "no" "!"'), 1) in ("yes", "no!")
    assert written(tokenizer, grammars.gbnf('root ::= "yes" | "no" ("!" | "?")'), 2) in ("yes", "no!", "no?")


# What llama.cpp's parser accepts, with a text that matches and one that does not.
GBNF: tuple[tuple[str, str, str], ...] = (
    (r'root ::= "\u00e9"', "\u00e9", "e"),
    (r'root ::= "\U0001F600\x41"', "\U0001f600A", "A"),
    (r"root ::= [\u00e0-\u00e9]+", "\u00e0\u00e9", "\u00ea"),
    (r"root ::= [^\U0001F600-\U0001F64F]", "\U0001f5ff", "\U0001f601"),
    ('root ::= start "b"\nstart ::= "a"', "ab", "b"),
    ('start::="a"\nroot ::= start*', "aa", "b"),
    ('root ::= ("a"?)*', "aaa", "b"),
    ('root ::= "a"*? "b"', "aab", "c"),
    ('root ::= "a"{0} "b"', "b", "ab"),
    ('root ::= ("a" | "b"){0,0} "c"', "c", "ac"),
    ('root ::= "a"{ 2 } "b"{1,} "c"{0,2}', "aabbcc", "ab"),
    ('root ::= a-b aB\na-b ::= "1"\naB ::= "2"\nab ::= root', "12", "11"),
    ("root ::= .", "\n", "ab"),
    (r'root ::= [a\-z] [a-] [-a] [\]\[/"\\]+', '--a]["/\\', "b"),
    ('root ::= (\n "a" |\n "b" # either\n)\n # the end\r\n', "b", "c"),
    ('root ::= "a" |\n () | []', "", "b"),
    ('root ::= x\nx ::= "a"\nx ::= "b"', "b", "a"),
    ('root ::= "(" root ")" | "x"', "((x))", "((x)"),
    # What follows may begin with what a repetition can take, too.
    ('root ::= ws " x"\nws ::= " "*', "  x", "x"),
    ('root ::= num "00"\nnum ::= [0-9]+', "100", "00"),
    ('root ::= a b\na ::= [0-9]+\nb ::= [0-9] "x"', "12x", "1x"),
    ('root ::= "<" t "</a>"\nt ::= [^>]*', "<b</a>", "<b>"),
    ('root ::= "yes" | "y" "es!"', "yes!", "ye"),
    ('root ::= "b"{2,} | ("bb")+ "a"', "bbb", "ba"),
    ('root ::= ("bb")* ("bb" "b") ("bb"){2}', "bbbbbbb", "bbbbbb"),
    ('root ::= (x "=" ws x "\\n")+\nx ::= [a-z] ws | "(" x ")" ws\nws ::= [ \\t\\n]*', "(a) = b\n\na=c\n", "a=b"),
    ('root ::= n | "[" root "0]"\nn ::= "1"{2,3} | [0-9]+ "."?', "[[10]0]", "[1.]"),
)


@pytest.mark.parametrize(("grammar", "right", "wrong"), GBNF)
def test_grammars_of_llama_cpp_allow_what_they_allow_there(
    tokenizer: Tokenizer, grammars: Grammars, grammar: str, right: str, wrong: str
) -> None:
    assert matches(tokenizer, grammars.gbnf(grammar), right)
    assert not matches(tokenizer, grammars.gbnf(grammar), wrong)


def matches(tokenizer: Tokenizer, constraint: GrammarConstraint, text: str) -> bool:
    for token in tokenizer.encode(text, begins=False):
        if not constraint.allowed()[token]:
            return False
        constraint.accept(token)
    return constraint.complete


def test_a_grammar_of_llama_cpp_has_tokens(tokenizer: Tokenizer, grammars: Grammars) -> None:
    letter = tokenizer.encode("x", begins=False)[0]
    for grammar, allowed in (
        ("root ::= <s>", {1}),
        ("root ::= <[1]> | <[2]>", {1, 2}),
        (f"root ::= a\na ::= <[{letter}]>", {letter}),
        ("root ::= !<s>", {*range(tokenizer.n_vocab)} - {1}),
    ):
        found = np.flatnonzero(grammars.gbnf(grammar).allowed())
        assert {*found.tolist()} - tokenizer.ends == allowed - tokenizer.ends


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('root ::= "a"\nx ::= (', r"in line 2, expected '\)', got the end of the grammar"),
        ('root ::= "a', "expected the end of the string or class"),
        ("root ::= [a", "expected the end of the string or class"),
        (r'root ::= "\q"', "expected an escape such as"),
        (r'root ::= "\ud83d\ude00"', r"U\+D83D is no character; write those above U\+FFFF as"),
        (r'root ::= "\UFFFFFFFF"', r"U\+FFFFFFFF is no character"),
        ("root ::= a", "it has no rule 'a'"),
        ('a ::= "b"', "it has no rule 'root'"),
        ('root: "a"', "expected '::=', got ': \"a\"'"),
        ('root ::= "a" )', "expected a part of the rule, or the end of its line, got '\\)'"),
        ("root ::= *", "expected a part of the rule"),
        ('root ::= "a"{3,2}', "a part cannot occur 3 to 2 times"),
        ('root ::= "a"{,2}', "expected a count such as"),
        ("root ::= <nothing>", "the vocabulary has no token '<nothing>'"),
        ("root ::= " + "(" * 101, "more than 100 nested parentheses"),
        ("root ::= " + "(" * 99 + '"a"' + ")" * 99, "its parentheses are nested too deeply"),
        ('root ::= "a"' + "*" * 200, "expected a part of the rule"),
    ],
)
def test_what_llama_cpp_refuses_of_a_grammar_is_refused_with_its_place(
    grammars: Grammars, grammar: str, reason: str
) -> None:
    with pytest.raises(ParameterError, match=f"the grammar is not valid: .*{reason}"):
        grammars.gbnf(grammar)


def test_a_grammar_that_says_so_is_in_the_notation_of_the_library(tokenizer: Tokenizer, grammars: Grammars) -> None:
    assert matches(tokenizer, grammars.gbnf('%llguidance {}\nstart: "a"'), "a")


def test_logits_beyond_the_vocabulary_are_forbidden(tokenizer: Tokenizer) -> None:
    wide = Grammars(tokenizer, tokenizer.n_vocab + 60)
    for n_vocab in (tokenizer.n_vocab, tokenizer.n_vocab + 60, tokenizer.n_vocab + 100):
        text = written(tokenizer, wide.regex("[ab]{5}"), 1, n_vocab)
        assert re.fullmatch("[ab]{5}", text)


@pytest.mark.parametrize(
    ("kind", "source", "message"),
    [
        ("json_schema", "{bad", "the JSON schema is not valid: Expecting property name"),
        ("json_schema", {"type": "nothing"}, "the JSON schema is not valid: Invalid type: nothing"),
        ("json_schema", {"type": {1, 2}}, "the JSON schema is not valid: .*not JSON serializable"),
        ("regex", "([", "the regular expression is not valid"),
        ("lark", "start: foo", "the grammar is not valid: .*unknown name"),
        ("gbnf", "root ::= (", "the grammar is not valid"),
    ],
)
def test_what_cannot_be_followed_is_refused(grammars: Grammars, kind: str, source: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        getattr(grammars, kind)(source)


def chained(length: int, part: str) -> dict[str, Any]:
    """A schema of definitions that refer to one another in a row."""

    def one(number: int) -> dict[str, Any]:
        reference = {"$ref": f"#/$defs/d{number + 1}"}
        return {"properties": {"a": reference}} if part == "properties" else {part: [reference]}

    definitions = {f"d{number}": one(number) for number in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{length}": {"type": "string"}}}


def nested(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"allOf": [schema]}
    return schema


HOSTILE = [
    ("json_schema", chained(200, "allOf"), "the JSON schema has 60[0-9] levels with its references; at most"),
    ("json_schema", chained(200, "properties"), "levels with its references"),
    ("json_schema", chained(3000, "anyOf"), "the JSON schema has [0-9]+ bytes; at most 131072 are allowed"),
    ("json_schema", {"$defs": {f"d{n}": {"$anchor": f"a{n}", "$ref": f"#a{n + 1}"} for n in range(99)}}, "an .id or"),
    ("json_schema", nested(40), "nested objects and lists; at most 64 are allowed"),
    ("json_schema", nested(5000), "recursion"),
    ("json_schema", "[" * 20_000, "nested objects and lists"),
    ("json_schema", {"properties": {f"p{n}": {} for n in range(2001)}}, "2001 keys or items in one object"),
    (
        "json_schema",
        {"type": "string", "pattern": "(" * 200 + ")" * 200},
        "a pattern of the JSON schema has 200 nested paren",
    ),
    ("json_schema", {"patternProperties": {"(a{200}){200}": {}}}, "40000 repetitions; at most 10000 are allowed"),
    ("json_schema", {"const": 1, "x": "a" * 200_000}, "bytes; at most"),
    ("regex", "a" * 5000, "the regular expression has 5000 characters; at most 4096"),
    ("regex", "(" * 101 + ")" * 101, "101 nested parentheses"),
    ("regex", "((a{100})?b|c){1,101}", "10100 repetitions"),
    ("regex", "a{" + "9" * 5000 + "}", "characters|repetitions"),
    ("regex", "a{1,9999999999}", "more repetitions"),
    ("lark", "start: R0\n" + "".join(f"R{n}: R{n + 1}\n" for n in range(600)) + 'R600: "a"', "601|602 lines"),
    ("lark", "start: %json " + json.dumps(chained(200, "allOf")), "levels with its references"),
    ("lark", "start: " + "a " * 40_000, "the grammar has [0-9]+ characters; at most 65536"),
    ("gbnf", "#\n" * 40_000 + 'root ::= "a"', "characters; at most 65536"),
    ("gbnf", "\n" * 60_000 + 'root ::= "a"', "60001 lines; at most 5000 are allowed"),
]


@pytest.mark.parametrize(("kind", "source", "message"), HOSTILE, ids=[str(number) for number in range(len(HOSTILE))])
def test_what_would_overflow_the_library_does_not_reach_it(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch, kind: str, source: Any, message: str
) -> None:
    def reached(*grammar: Any) -> None:
        raise AssertionError("it reached the library")

    monkeypatch.setattr(grammars, "_constraint", reached)
    with pytest.raises(ParameterError, match=message):
        getattr(grammars, kind)(source)


@pytest.mark.parametrize("schema", [{"type": "a" * 100_000}, {"$ref": "#/" + "a" * 100_000}])
def test_an_error_that_repeats_a_long_text_is_reported_in_a_short_line(grammars: Grammars, schema: Any) -> None:
    with pytest.raises(
        ParameterError, match=r"^the JSON schema is not valid: (Invalid type: a|it refers to /a)"
    ) as caught:
        grammars.json_schema(schema)
    assert len(caught.value.message) < 1100


TREE = {
    "$ref": "#/$defs/a~1node",
    "$defs": {
        "a/node": {
            "type": "object",
            "required": ["kind", "left"],
            "additionalProperties": False,
            "properties": {
                "kind": {"enum": ["leaf", "fork"]},
                "left": {
                    "anyOf": [
                        {"$ref": "#/$defs/a~1node"},
                        {"$ref": "#/$defs/end"},
                        {"type": "null"},
                    ]
                },
            },
        },
        "end": {"$anchor": "end", "type": "array", "maxItems": 2, "items": {"$ref": "#"}},
    },
}


@pytest.mark.parametrize(
    "schema",
    [
        TREE,
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
        chained(60, "allOf"),
        {"enum": [f"v{n}" for n in range(5000)]},
        {
            "type": "object",
            "properties": {f"p{n}": {"type": "string", "pattern": "^[a-z]{2,40}(-(a|b){3}){4}$"} for n in range(200)},
        },
    ],
)
def test_schemas_that_refer_to_themselves_and_large_ones_are_followed(grammars: Grammars, schema: Any) -> None:
    assert grammars.json_schema(schema).allowed().any()


def test_a_token_that_was_not_allowed_is_refused(tokenizer: Tokenizer, grammars: Grammars) -> None:
    constraint = grammars.regex("[0-9]+")
    wrong = int(np.flatnonzero(~constraint.allowed())[5])
    with pytest.raises(ParameterError, match="the grammar cannot be applied"):
        constraint.accept(wrong)


def test_a_vocabulary_without_an_end_is_refused() -> None:
    metadata = {
        "tokenizer.ggml.model": "rwkv",
        "tokenizer.ggml.tokens": ["a", "b"],
    }
    with pytest.raises(ModelError, match="no end token"):
        Grammars(load_tokenizer(metadata))


def test_without_llguidance_an_error_says_how_to_get_it() -> None:
    code = """
import sys
sys.modules["llguidance"] = None
from ggplug_models.sampling.grammar import Grammars, ModelError
try:
    Grammars(None)
except ModelError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install llguidance" in done.stdout


def test_each_text_follows_the_grammar_from_its_beginning(data: Path) -> None:
    with ggplug_models.load(data / "qwen3.gguf", ["CPU"]) as model:
        sampler = Sampler(Sampling(seed=1), constraint=Grammars(model.tokenizer, model.n_vocab).regex("[ab]{4}"))
        for most, wanted in ((None, "[ab]{4}"), (2, "[ab]{2}"), (None, "[ab]{4}")):  # the second is cut off
            assert re.fullmatch(wanted, "".join(model.generate("x", most, choose=sampler)))


def test_a_copy_of_a_sampler_continues_from_the_same_place_of_the_grammar(
    tokenizer: Tokenizer, grammars: Grammars
) -> None:
    row = np.random.default_rng(0).normal(0, 3, tokenizer.n_vocab).astype(np.float32)
    sampler = Sampler(Sampling(seed=1), constraint=grammars.regex("[a-z][0-9]{3}"))
    first = sampler(row, [])
    copied = copy.deepcopy(sampler)
    texts = [b"".join(tokenizer.piece(each(row, [])) for _ in range(3)).decode() for each in (sampler, copied)]
    assert texts[0] == texts[1]
    assert re.fullmatch("[a-z][0-9]{3}", tokenizer.piece(first).decode().strip() + texts[0])


def test_grammars_are_made_of_a_tokeniser() -> None:
    with pytest.raises(ParameterError, match="tokenizer must be a Tokenizer"):
        Grammars("x")  # type: ignore[arg-type]


def test_a_schema_that_is_no_json_is_reported_once(tokenizer: Tokenizer) -> None:
    with pytest.raises(ParameterError) as caught:
        Grammars(tokenizer).json_schema("{nothing")
    assert caught.value.message.count("is not valid") == 1


NAMES_OF_THE_LIBRARY = re.compile(r"[a-z][A-NP-Z]|_|Resource|registry|Unimplemented|option|limit \d|\n|regex|start:")

IN_WORDS: list[tuple[str, Any, str]] = [
    *(
        ("json_schema", schema, "no text matches it")
        for schema in (
            {"$ref": "#"},
            {"anyOf": [{"$ref": "#"}]},
            {"$id": "x", "$ref": "x"},
            {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        )
    ),
    *(("json_schema", schema, "must be an object, got ") for schema in (True, False, [], 5, "true", "5", '"x"', "[]")),
    ("json_schema", {"not": {}}, 'it uses keys that are not supported: "not"'),
    ("json_schema", {"if": {}, "then": {}}, 'it uses keys that are not supported: "if", "then"'),
    ("json_schema", {"oneOf": [{"type": "string"}, {"$ref": "#"}]}, "it uses oneOf, which is not supported"),
    ("json_schema", {"$ref": "http://a/b"}, "it refers to http://a/b, which it does not contain"),
    ("json_schema", {"$ref": "other.json#/a"}, "it refers to other.json, which it does not contain"),
    ("json_schema", {"$ref": "#/definitions/a"}, "it refers to /definitions/a, which it does not contain"),
    ("json_schema", {"type": "string", "pattern": "("}, "is not valid: unclosed group"),
    ("json_schema", {"patternProperties": {"(?=a)": {}}}, "look-around.* is not supported"),
    ("json_schema", {"const": float("nan")}, "Out of range float"),
    ("json_schema", "", "Expecting value"),
    ("regex", "(", "the regular expression is not valid: unclosed group"),
    ("regex", "[^\\x00-\\x{10FFFF}]", "no text matches it"),
    ("lark", "start: start", "no text matches it"),
    ("lark", "start: a\na: b\nb: a", "no text matches it"),
    ("lark", 'start: %json {"$ref": "#"}', "no text matches it"),
    ("gbnf", "root ::= root | root", "no text matches it"),
    *((kind, "\ud800", "which is no character") for kind in ("regex", "lark", "gbnf")),
    *((kind, value, "must be a string, got ") for kind in ("regex", "lark", "gbnf") for value in (None, 5, b"a")),
]


@pytest.mark.parametrize(("kind", "source", "message"), IN_WORDS, ids=str)
def test_a_grammar_without_texts_is_reported_in_words_when_it_is_made(
    grammars: Grammars, kind: str, source: Any, message: str
) -> None:
    with pytest.raises(ParameterError, match=message) as caught:
        getattr(grammars, kind)(source)
    assert not NAMES_OF_THE_LIBRARY.search(caught.value.message)
    assert len(caught.value.message) < 150


@pytest.mark.parametrize(
    ("kind", "grammar", "text"),
    [
        ("lark", 'start: "a" start', "aaa"),
        ("lark", 'start: T " x"\nT: " "*', "   "),
        ("lark", 'start: T " x"\nT: " "*\n%llguidance {"no_forcing": false}', "   "),
        ("gbnf", 'root ::= ws "ax" root?\nws ::= "a"+', "aaa"),
    ],
)
def test_where_only_one_endless_text_is_allowed_each_token_of_it_is_found(
    tokenizer: Tokenizer, grammars: Grammars, kind: str, grammar: str, text: str
) -> None:
    constraint = getattr(grammars, kind)(grammar)
    for token in tokenizer.encode(text, begins=False):
        assert constraint.allowed()[token]
        constraint.accept(token)
