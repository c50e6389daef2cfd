"""``ggplug run``: texts that a language model goes on with, and chats."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import ggplug as gg
import ggplug_models
from ggplug.cli.app import app
from ggplug.errors import BusyError, ModelError, ParameterError
from ggplug_models import Finish, LayerSplit
from ggplug_models.chat.template import ChatTemplate
from ggplug_models.commands.chat import Chat
from ggplug_models.commands.device_use import device_uses, ranges
from ggplug_models.commands.run import _print_pieces
from ggplug_models.generation.loop import greedy
from ggplug_models.networks.decoder import Decoder
from ggplug_models.sampling import Sampler, Sampling, breakers_of
from ggplug_testing import FakeDevice

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
GREEDY = Sampling(temperature=0)


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
    assert "cannot generate text" in str(done.exception or done.output)


def test_a_stop_string_ends_a_text_and_is_no_part_of_it(model: Decoder) -> None:
    whole = "".join(model.generate("hello", 12))
    stop = whole[4:6]
    assert "".join(model.generate("hello", 12, stop=[stop])) == whole[: whole.index(stop)]


def test_a_text_says_why_it_ended(model: Decoder) -> None:
    ends = min(model.tokenizer.ends)

    def end_after(n: int) -> Callable[[Any, Sequence[int]], int]:
        return lambda logits, history: ends if len(history) == n else greedy(logits, history)

    whole = "".join(model.generate("hello", 12))
    prompt = len(model.tokenizer.encode("hello", add_special=True))
    for text, finish in (
        (model.generate("hello", 12), Finish.LENGTH),
        (model.generate("hello", 0), Finish.LENGTH),
        (model.generate("hello", 12, stop=[whole[4:6]]), Finish.STOP),
        (model.generate("hello", choose=end_after(prompt)), Finish.STOP),
    ):
        assert text.finish is None
        list(text)
        assert text.finish is finish
        text.close()
        assert text.finish is finish
    left = model.generate("hello", 12)
    assert whole.startswith(next(left))
    left.close()
    assert list(left) == []
    assert left.finish is Finish.CANCELLED


def test_a_stop_string_may_end_in_what_was_held_back(model: Decoder) -> None:
    """A character whose last bytes do not come is written as U+FFFD, when no more tokens come."""

    def held(token: int) -> str:
        stream = model.tokenizer.stream(skip_special=True)
        return "" if stream.push(token) else stream.finish()

    token = next(token for token in range(len(model.tokenizer.vocabulary)) if held(token) == "\ufffd")
    for stop, written, finish in ((["\ufffd"], "", Finish.STOP), ([], "\ufffd", Finish.LENGTH)):
        text = model.generate("hello", 1, choose=lambda logits, history: token, stop=stop)
        assert ("".join(text), text.finish) == (written, finish)


def test_a_text_that_is_closed_while_it_is_computed_ends_with_the_next_token(model: Decoder) -> None:
    def closes(logits: Any, history: Sequence[int]) -> int:
        text.close()
        with pytest.raises(BusyError, match="made from within"):
            next(text)
        return greedy(logits, history)

    text = model.generate("hello", 12, choose=closes)
    assert (list(text), text.finish) == ([], Finish.CANCELLED)


def test_a_chat_remembers_what_was_said(model: Decoder) -> None:
    with model.session(256, cache_type="f32") as session:
        template = ChatTemplate(TEMPLATE, model.tokenizer)
        chat = Chat(model, session, Sampler(GREEDY), system="be short", template=template)
        first = "".join(chat.answer("hello", 5))
        again = "".join(chat.answer("and", 5))
        said = [
            {"role": "system", "content": "be short"},
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": first},
            {"role": "user", "content": "and"},
            {"role": "assistant", "content": again},
        ]
        assert chat.messages == said
        assert again == "".join(model.texts(template.encode(said[:-1]), 5))
        assert "5 tokens generated" in str(chat.timings)
        chat.clear()
        assert chat.messages == said[:1]


def test_of_an_answer_that_is_stopped_the_beginning_is_remembered(model: Decoder) -> None:
    with model.session(256, cache_type="f32") as session:
        chat = Chat(model, session, Sampler(GREEDY), template=ChatTemplate(TEMPLATE, model.tokenizer))
        answer = chat.answer("hello")
        piece = next(answer)
        del answer
        assert chat.messages[-1] == {"role": "assistant", "content": piece}


def test_an_answer_that_is_stopped_before_it_begins_says_so(model: Decoder) -> None:
    def leave(logits: object, history: object) -> int:
        raise KeyboardInterrupt

    with model.session(256, cache_type="f32") as session:
        chat = Chat(model, session, leave)  # type: ignore[arg-type]
        with pytest.raises(KeyboardInterrupt):
            next(chat.complete("hello"))
        assert str(chat.timings) == "stopped before the first token"


def test_no_notice_stands_in_the_midst_of_a_text(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("ggplug")

    def pieces() -> Iterator[str]:
        for piece in ("a", "b"):
            log.info("before %s", piece)
            log.warning("about %s", piece)
            yield piece
        log.info("behind")

    log.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.INFO, "ggplug"):
            _print_pieces(pieces())
            log.info("below")
    finally:
        log.removeHandler(caplog.handler)
    assert list(dict.fromkeys(caplog.messages)) == ["before a", "about a", "about b", "below"]


def test_a_chat_needs_a_template(model: Decoder) -> None:
    with pytest.raises(ModelError, match="chat_template"):
        list(model.chat([{"role": "user", "content": "hello"}]))


def test_verbose_output_lists_the_layers_of_each_device(data: Path) -> None:
    fake, cpu = FakeDevice("Fake0", inner=gg.device("CPU")), gg.device("CPU")
    with ggplug_models.load(data / "qwen3.gguf", [fake, cpu], placement=LayerSplit([1, 3])) as model:
        with model.session(64) as session:
            with pytest.raises(ParameterError, match="nothing to explain"):
                session.explain()
            session.decode({0: [5, 6]})
            first, second = device_uses(model, session.explain())
            (step,) = session._steps.values()
            computed = sum(not node.op.is_view for node in step.graph.nodes)  # type: ignore[union-attr]
        weights = {weight.name: weight.nbytes for weight in model.weights}
    assert (first.device, second.device) == ("Fake0", "CPU")
    assert set(first.layers) | set(second.layers) == set(range(model.n_layer))
    assert max(first.layers) < min(second.layers)
    assert first.nbytes == sum(
        size
        for name, size in weights.items()
        if name == "token_embd.weight" or name.startswith(tuple(f"blk.{layer}." for layer in first.layers))
    )
    assert first.nbytes + second.nbytes == sum(weights.values())
    assert first.packed == 0 < second.packed < second.nbytes
    assert first.nodes + second.nodes == computed
    assert 0 < first.nodes < second.nodes
    assert second.copied > 0
    assert [ranges(numbers) for numbers in ((), (3,), (0, 1, 2, 5), (1, 3))] == ["none", "3", "0-2, 5", "1, 3"]


def test_verbose_ends_with_a_table_of_devices(data: Path) -> None:
    command = ["run", str(data / "qwen3.gguf"), "-p", "hello", "-n", "3", "--device", "CPU", "-v"]
    done = CliRunner().invoke(app, command, env={"COLUMNS": "80"})
    *_, headings, rule, row = done.stderr.splitlines()
    assert headings.split() == ["device", "layers", "weights", "packed", "nodes", "copied", "to", "it"]
    assert row.startswith("CPU      0-")
    assert len(rule) <= 80


def test_a_template_of_ones_own_takes_the_place_of_the_files(model: Decoder) -> None:
    messages = [{"role": "user", "content": "hello"}]
    template = ChatTemplate(TEMPLATE, model.tokenizer)
    assert "".join(model.chat(messages, 5, template=template)) == "".join(model.texts(template.encode(messages), 5))


class ThreeTimes:
    """Allows a token three times, then one that ends the text."""

    def __init__(self, model: Decoder, token: int) -> None:
        self.answer = [token, token, token, min(model.tokenizer.ends)]
        self.n_vocab = model.n_vocab
        self.left: list[int] = []

    def begin(self) -> None:
        self.left = [*self.answer]

    def allowed(self) -> Any:
        found = np.zeros(self.n_vocab, bool)
        found[self.left[:1] or self.answer[-1:]] = True
        return found

    def accept(self, token: int) -> None:
        self.left.remove(token)


def test_each_answer_of_a_chat_follows_the_grammar_from_its_beginning(model: Decoder) -> None:
    token = model.tokenizer.encode("a")[-1]
    sampler = Sampler(GREEDY, constraint=ThreeTimes(model, token))
    with model.session(256) as session:
        chat = Chat(model, session, sampler, template=ChatTemplate(TEMPLATE, model.tokenizer))
        answers = ["".join(chat.answer("hello", 9)) for _ in range(3)]
        assert answers == ["aaa"] * 3
        assert chat.timings.generated == 4
        assert ["".join(chat.complete("hello", 9)) for _ in range(2)] == answers[:2]
        left = chat.answer("hello", 9)
        assert next(left) == "a"
        assert "".join(chat.answer("hello", 9)) == "aaa"


def test_what_ends_a_repetition_is_known_to_a_chat(model: Decoder) -> None:
    settings = Sampling(temperature=0, dry_multiplier=1.0)
    sampler = Sampler(settings)
    with model.session(64) as session:
        list(Chat(model, session, sampler).complete("hello", 2))
    assert sampler.breakers == breakers_of(model.tokenizer, settings.dry_breakers) != {}
