"""``ggplug run``: texts that a language model goes on with, and chats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import ggplug_models
from ggplug.cli.app import app
from ggplug.errors import ModelError
from ggplug_models.chat_template import ChatTemplate
from ggplug_models.decoder import Decoder
from ggplug_models.sampling import Sampler, Sampling
from ggplug_models.talk import Talk

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def model(data: Path) -> Iterator[Decoder]:
    with ggplug_models.load(data / "qwen3.gguf", ["CPU"]) as loaded:
        yield loaded


def run(*arguments: object, **options: object) -> str:
    done = CliRunner().invoke(app, ["run", *map(str, arguments)], **options)  # type: ignore[arg-type]
    assert done.exit_code == 0, done.output
    return done.stdout


def test_without_chance_a_text_goes_on_with_the_most_likely_tokens(data: Path, model: Decoder) -> None:
    wanted = "".join(model.generate("hello", 9))
    assert wanted
    options = ("--device", "CPU", "-n", 9, "--temperature", 0)
    assert run(data / "qwen3.gguf", "-p", "hello", *options) == wanted + "\n"
    assert run(data / "qwen3.gguf", *options, input="hello") == wanted + "\n"


def test_a_seed_gives_the_same_text_again(data: Path) -> None:
    texts = [run(data / "qwen3.gguf", "-p", "a", "-n", 12, "--seed", seed, "--device", "CPU") for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_an_encoder_writes_no_texts(data: Path) -> None:
    done = CliRunner().invoke(app, ["run", str(data / "bert.gguf"), "-p", "a"])
    assert done.exit_code != 0
    assert "writes no texts" in str(done.exception or done.output)


def test_a_stop_string_ends_a_text_and_is_no_part_of_it(model: Decoder) -> None:
    whole = "".join(model.generate("hello", 12))
    stop = whole[4:6]
    assert "".join(model.generate("hello", 12, stop=[stop])) == whole[: whole.index(stop)]


def test_a_chat_remembers_what_was_said(model: Decoder) -> None:
    with model.session(256, cache_type="f32") as session:
        template = ChatTemplate(TEMPLATE, model.tokenizer)
        talk = Talk(model, session, Sampler(GREEDY), system="be short", template=template)
        first = "".join(talk.answer("hello", 5))
        again = "".join(talk.answer("and", 5))
        said = [
            {"role": "system", "content": "be short"}, {"role": "user", "content": "hello"},
            {"role": "assistant", "content": first}, {"role": "user", "content": "and"},
            {"role": "assistant", "content": again},
        ]  # fmt: skip
        assert talk.messages == said
        assert again == "".join(model.texts(template.encode(said[:-1]), 5))
        assert "5 written" in str(talk.pace)
        talk.forget()
        assert talk.messages == said[:1]


def test_of_an_answer_that_is_stopped_the_beginning_is_remembered(model: Decoder) -> None:
    with model.session(256, cache_type="f32") as session:
        talk = Talk(model, session, Sampler(GREEDY), template=ChatTemplate(TEMPLATE, model.tokenizer))
        answer = talk.answer("hello")
        piece = next(answer)
        del answer
        assert talk.messages[-1] == {"role": "assistant", "content": piece}


def test_a_chat_needs_a_template(model: Decoder) -> None:
    with pytest.raises(ModelError, match="chat_template"):
        list(model.chat([{"role": "user", "content": "hello"}]))
