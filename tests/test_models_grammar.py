"""Grammars and JSON schemas: whatever the logits, the text follows them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

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


def test_logits_beyond_the_vocabulary_are_forbidden(tokenizer: Tokenizer) -> None:
    wide = Grammars(tokenizer, tokenizer.n_vocab + 60)
    for n_vocab in (tokenizer.n_vocab, tokenizer.n_vocab + 60, tokenizer.n_vocab + 100):
        text = written(tokenizer, wide.regex("[ab]{5}"), 1, n_vocab)
        assert re.fullmatch("[ab]{5}", text)


@pytest.mark.parametrize(
    ("kind", "source", "message"),
    [
        ("json_schema", "{bad", "the JSON schema is of no use: key must be a string"),
        ("json_schema", {"type": "nothing"}, "the JSON schema is of no use: Invalid type: nothing"),
        ("json_schema", {"type": {1, 2}}, "the JSON schema is of no use: .*not JSON serializable"),
        ("regex", "([", "the regular expression is of no use"),
        ("lark", "start: foo", "the grammar is of no use: .*unknown name"),
        ("gbnf", "root ::= (", "the grammar is of no use"),
    ],
)
def test_what_cannot_be_followed_is_refused(grammars: Grammars, kind: str, source: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        getattr(grammars, kind)(source)


def test_a_token_that_was_not_allowed_is_refused(tokenizer: Tokenizer, grammars: Grammars) -> None:
    constraint = grammars.regex("[0-9]+")
    wrong = int(np.flatnonzero(~constraint.allowed())[5])
    with pytest.raises(ParameterError, match="the grammar cannot be followed"):
        constraint.accept(wrong)


def test_a_vocabulary_without_an_end_is_refused() -> None:
    metadata = {
        "tokenizer.ggml.model": "rwkv", "tokenizer.ggml.tokens": ["a", "b"],
    }  # fmt: skip
    with pytest.raises(ModelError, match="no token that ends a text"):
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
