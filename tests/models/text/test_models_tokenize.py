"""`ggplug tokenize`: the tokens of a text, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from ggplug.errors import ParameterError
from ggplug.gguf import GGUFWriter
from ggplug_models.commands.tokenize import tokenize

TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "ab", "\u2581ab"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenize") / "words.gguf"
    with GGUFWriter(path) as writer:
        writer.add("tokenizer.ggml.model", "llama")
        writer.add("tokenizer.ggml.tokens", TOKENS)
        writer.add("tokenizer.ggml.token_type", np.array([2, 3, 3, *[6] * 256, *[1] * 5], np.int32))
        writer.add("tokenizer.ggml.scores", np.array([0] * 259 + [-5, -5, -5, -1, -2], np.float32))
    return path


def run(model: Path, *arguments: str, given: bytes | None = None) -> Result:
    return CliRunner().invoke(tokenize, [str(model), *arguments], input=given)


def test_each_token_stands_on_a_line_with_its_text(model: Path) -> None:
    assert run(model, "ab ab\n", "--no-special").output == "263 ' ab'\n263 ' ab'\n 13 '\\n'\n"


def test_special_tokens_are_added_and_parsed_as_models_read_them(model: Path) -> None:
    assert run(model, "ab</s>").output == "  1 '<s>'\n263 ' ab'\n  2 '</s>'\n"
    assert run(model, "ab</s>", "--no-special").output.split("'")[1::2] == [" ab", "<", "/", "s", ">"]


def test_programs_get_json(model: Path) -> None:
    assert json.loads(run(model, "ab\u00e9", "--no-special", "--json").output) == {
        "ids": [263, 198, 172],
        "pieces": [" ab", "\\xc3", "\\xa9"],
    }


def test_texts_come_from_files_and_from_standard_input(model: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(b"ab\nab")
    from_file = run(model, "--file", str(tmp_path / "text.txt"), "--no-special", "--json")
    assert json.loads(from_file.output)["ids"] == [263, 13, 262]
    assert run(model, "--file", "-", "--no-special", "--json", given=b"ab\nab").output == from_file.output


def test_what_is_no_utf_8_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(b"ab\xff")
    error = run(model, "--file", str(tmp_path / "text.txt")).exception
    assert isinstance(error, ParameterError)
    assert "is not valid UTF-8 at byte 2" in str(error)


def test_a_text_comes_either_as_an_argument_or_from_a_file(model: Path) -> None:
    for arguments in ((), ("ab", "--file", "-")):
        result = run(model, *arguments)
        assert result.exit_code == 2
        assert "Give either TEXT or --file, not both." in result.output
