"""What is learned of texts, chats and files; and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import ggplug_models
from ggplug.cli.app import app
from ggplug.errors import ParameterError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug_models import ChatTemplate, Decoder, Tokenizer
from ggplug_models.finetuning import Learned, Texts, learned_chat, learned_text, read_learned
from ggplug_models.finetuning.texts import hold_out

PLAIN = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
LAST_REASONING = (
    "{% for m in messages %}[{{ m.role }}]"
    "{% if m.reasoning_content and loop.last %}({{ m.reasoning_content }}){% endif %}{{ m.content }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yes", "reasoning_content": "why"},
    {"role": "user", "content": "and now?"},
    {"role": "assistant", "content": "no", "reasoning_content": "hm"},
]


def texts(tokenizer: Tokenizer, found: Learned, *, learned: bool) -> list[str]:
    """The runs of tokens that are learned, or are not, as texts."""
    runs: list[list[int]] = [[]]
    for token, each in zip(found.ids, found.learned, strict=True):
        if each == learned:
            runs[-1].append(token)
        elif runs[-1]:
            runs.append([])
    return [tokenizer.decode(run) for run in runs if run]


def test_answers_are_learned_up_to_their_end_token(model: Decoder) -> None:
    tokenizer = model.tokenizer
    end = tokenizer.vocabulary.texts[tokenizer.eos or 0]
    (found,) = learned_chat(ChatTemplate(PLAIN, tokenizer), CHAT)
    assert texts(tokenizer, found, learned=True) == [f"yes{end}", f"no{end}"]
    prompt = f"[system]be kind{end}\n[user]hi{end}\n[assistant]"
    assert texts(tokenizer, found, learned=False) == [prompt, f"\n[user]and now?{end}\n[assistant]", "\n"]


BETWEEN = (
    "{% for m in messages %}{{ '' if loop.first else eos_token + '\n' }}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ eos_token }}\n[assistant]{% endif %}"
)
BEGINNING = (
    "{% for m in messages %}{{ eos_token if m.role == 'user' else '[' + m.role + ']' }}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
TWICE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}\n{% if loop.last and not "
    "add_generation_prompt %}{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


ALWAYS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}[assistant]"


@pytest.mark.parametrize(
    "source",
    [BETWEEN, BEGINNING, TWICE, ALWAYS],
    ids=["between messages", "before the user", "twice", "before the beginning of an answer"],
)
def test_the_end_token_is_learned_wherever_the_template_writes_it(source: str, model: Decoder) -> None:
    tokenizer = model.tokenizer
    end = tokenizer.vocabulary.texts[tokenizer.eos or 0]
    found = learned_chat(ChatTemplate(source, tokenizer), CHAT[1:])
    assert [text for each in found for text in texts(tokenizer, each, learned=True)] == [f"yes{end}", f"no{end}"]


def test_a_chat_is_several_texts_where_the_template_changes_earlier_messages(model: Decoder) -> None:
    tokenizer = model.tokenizer
    end = tokenizer.vocabulary.texts[tokenizer.eos or 0]
    first, last = learned_chat(ChatTemplate(LAST_REASONING, tokenizer), CHAT)
    assert texts(tokenizer, first, learned=True) == [f"(why)yes{end}"]
    assert texts(tokenizer, last, learned=True) == [f"(hm)no{end}"]
    assert "(why)" not in tokenizer.decode(last.ids)


def test_the_reasoning_is_learned_under_the_key_that_the_template_reads(model: Decoder) -> None:
    source = LAST_REASONING.replace("m.reasoning_content", "m.reasoning")
    of_key = learned_chat(ChatTemplate(source, model.tokenizer), CHAT)
    assert of_key == learned_chat(ChatTemplate(LAST_REASONING, model.tokenizer), CHAT)


@pytest.mark.parametrize("content", ["0 be kind", "1", "be kind"])
def test_of_a_chat_that_begins_with_an_answer_only_the_answer_is_learned(content: str, model: Decoder) -> None:
    tokenizer = model.tokenizer
    end = tokenizer.vocabulary.texts[tokenizer.eos or 0]
    template = ChatTemplate("[system]be kind 0 1\n" + PLAIN, tokenizer)
    (found,) = learned_chat(template, [{"role": "assistant", "content": content}, *CHAT[1:3]])
    assert texts(tokenizer, found, learned=True) == [f"{content}{end}", f"yes{end}"]


def test_texts_end_with_the_end_token(model: Decoder) -> None:
    found = learned_text(model.tokenizer, "the end")
    assert found.ids == [*model.tokenizer.encode("the end"), model.tokenizer.eos]
    assert all(found.learned)


def test_files_of_lines_and_of_plain_text_are_read(model: Decoder, tmp_path: Path) -> None:
    lines = [json.dumps({"text": "one"}), "", json.dumps({"messages": CHAT}), json.dumps({"text": "é"})]
    (tmp_path / "data.jsonl").write_text("\r\n".join(lines), encoding="utf-8")
    template = ChatTemplate(PLAIN, model.tokenizer)
    one, chat, accent = read_learned(tmp_path / "data.jsonl", model.tokenizer, template)
    assert (one, accent) == (learned_text(model.tokenizer, "one"), learned_text(model.tokenizer, "é"))
    assert [chat] == learned_chat(template, CHAT)
    (tmp_path / "data.txt").write_text("one two\n{}", encoding="utf-8")
    (plain,) = read_learned(tmp_path / "data.txt", model.tokenizer, None)
    assert plain.ids == model.tokenizer.encode("one two\n{}")
    assert len(plain) == len(plain.ids) - 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: it is no JSON"),
        ("[]", r"line 2: it must be \{\"text\""),
        ('{"text": 1}', "line 2: it must be"),
        ('{"text": "a", "x": 1}', "line 2: it must be"),
        ('{"messages": "a"}', "line 2: it must be"),
        ('{"messages": [1]}', "line 2: it must be"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "line 2: the chat has no message of the assistant"),
        ('{"messages": [{"role": "assistant", "content": 1}]}', "line 2: the content of messages"),
        ('{"messages": [], "tools": 1}', "line 2: it must be"),
    ],
)
def test_lines_that_are_no_texts_are_named(line: str, said: str, model: Decoder, tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"text": "a"}\n' + line, encoding="utf-8")
    with pytest.raises(ParameterError, match=said):
        read_learned(tmp_path / "data.jsonl", model.tokenizer, ChatTemplate(PLAIN, model.tokenizer))


def test_other_files_are_refused(model: Decoder, tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text(json.dumps({"messages": CHAT}), encoding="utf-8")
    with pytest.raises(ParameterError, match="line 1: the model has no chat template"):
        read_learned(tmp_path / "data.jsonl", model.tokenizer, None)
    (tmp_path / "data.txt").write_bytes(b"ab\xff")
    with pytest.raises(ParameterError, match="not valid UTF-8 at byte 2"):
        read_learned(tmp_path / "data.txt", model.tokenizer, None)
    never = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}:{% endif %}"
    with pytest.raises(ParameterError, match="does not write the answer messages"):
        learned_chat(ChatTemplate(never, model.tokenizer), CHAT)


def test_batches_are_as_long_as_their_longest_text() -> None:
    dataset = Texts([Learned(list(range(n)), [True] * n) for n in (5, 30, 70, 101)], 100)
    assert [batch.data.shape for batch in dataset.batches(2)] == [(2, 32), (2, 100)]
    one = next(dataset.batches(1))
    assert one.labels is not None
    np.testing.assert_array_equal(one.data[0, :5], [0, 1, 2, 3, 0])
    np.testing.assert_array_equal(one.labels[0, 0, :5], [1, 2, 3, 4, 0])
    assert (one.labels[0, 1, :5] > 0).tolist() == [True] * 4 + [False]
    with pytest.raises(ParameterError, match="a text has 101 tokens, of which 100 would be read, not 99 at most"):
        Texts([Learned(list(range(101)), [True] * 101)], 99)


def test_what_is_held_out_follows_from_the_seed() -> None:
    items = [Learned([n, n], [True] * 2) for n in range(20)]
    kept, others = hold_out(items, 0.2, 1)
    assert (len(kept), len(others)) == (16, 4)
    assert sorted([*kept, *others], key=lambda each: each.ids[0]) == items
    assert (kept, others) == hold_out(items, 0.2, 1) != hold_out(items, 0.2, 2)
    assert hold_out(items, 0.001, 1)[1]
    assert hold_out(items, 0, 1) == (items, [])
    assert hold_out(items[:1], 0.5, 1) == (items[:1], [])


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_template(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chat") / "chat.gguf"
    with GGUFReader(data / "qwen3.gguf") as reader, GGUFWriter(path) as writer:
        writer.add_metadata_of(reader)
        writer.add("tokenizer.chat_template", PLAIN)
        for name, info in reader.tensors.items():
            writer.add_tensor(name, reader.data(info), info.type, info.ne)
        writer.write()
    return path


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_the_command_trains_an_adapter_that_another_command_computes_with(with_template: Path, tmp_path: Path) -> None:
    data, out, kept = (tmp_path / name for name in ("data.jsonl", "adapter.gguf", "checkpoint.gguf"))
    data.write_text("\n".join([json.dumps({"messages": CHAT})] * 4), encoding="utf-8")
    command = ["finetune", with_template, data, "--lora", out, "--batch", 2, "--learning-rate", 0.03, "--rank", 4]
    command += ["--checkpoint", kept, "--device", "CPU", "--held-out", 0.25]
    found = run(*command, "--epochs", 6)
    assert found.exit_code == 0, found.output
    first, before, *epochs, last = found.output.splitlines()
    assert first == f"{data}: 4 texts, 24 tokens to learn"
    assert before.startswith("before: held out ")
    assert [each.split(":")[0] for each in epochs] == [f"epoch {n}" for n in range(1, 7)]
    assert last.startswith(f"{out}: ")
    assert run(*command, "--epochs", 7).output.splitlines()[1].startswith("epoch 7: ")
    say = ["run", with_template, "-p", "hi", "--system", "be kind", "--temperature", 0, "-n", 8, "--device", "CPU"]
    answer = run(*say, "--lora", out)
    assert answer.exit_code == 0, answer.output
    assert answer.output.splitlines()[0] == "yes"
    assert run(*say).output.splitlines()[0] != "yes"


def test_the_command_trains_whole_weights(with_template: Path, tmp_path: Path) -> None:
    data, out = tmp_path / "data.txt", tmp_path / "model.gguf"
    data.write_text("one two three four " * 20, encoding="utf-8")
    found = run(
        "finetune", with_template, data, "--full", out, "--learning-rate", 1e-3, "--context", 16, "--device", "CPU"
    )
    assert found.exit_code == 0, found.output
    with ggplug_models.load(out, ["CPU"]) as model:
        assert model.logits([1, 2]).shape == (2, 300)


def test_the_command_wants_one_file_to_write(with_template: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.txt"
    data.write_text("abc")
    for options in ([], ["--lora", tmp_path / "a", "--full", tmp_path / "b"]):
        found = run("finetune", with_template, data, *options)
        assert found.exit_code == 2
        assert "either with --lora or with --full" in found.output
    found = run("finetune", with_template, data, "--full", with_template)
    assert isinstance(found.exception, ParameterError)
    assert "which would be overwritten" in str(found.exception)
