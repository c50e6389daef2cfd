"""The example that answers from documents: the prompt, the answer, and what is printed below it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import ggplug_models
from examples.chat_with_docs.__main__ import main
from examples.chat_with_docs.prompts import SYSTEM, as_text, fitting, messages
from examples.semantic_search.passages import Passage, read_folder
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug_models.chat.template import KEY as CHAT_TEMPLATE

FILES = {
    "bread.md": "# Baking\n\nknead the dough\n",
    "stars.txt": "a star shines\n",
    "cats.rst": "cats sleep\n",
}
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "notes"
    place.mkdir()
    for name, text in FILES.items():
        (place / name).write_text(text, encoding="utf-8")
    return place


def with_template(source: Path, path: Path) -> Path:
    with GGUFReader(source) as reader, GGUFWriter(path, "qwen3") as writer:
        writer.add_metadata_of(reader)
        writer.add(CHAT_TEMPLATE, TEMPLATE)
        for name, info in reader.tensors.items():
            writer.add_tensor(name, reader.data(name), info.type, info.ne)
        writer.write()
    return path


def ask(data: Path, folder: Path, *options: object, model: Path | None = None, **how: Any) -> str:
    fixed = (
        "--model",
        model or data / "qwen3.gguf",
        "--encoder",
        data / "bert.gguf",
        "--folder",
        folder,
        "--device",
        "CPU",
        "--temperature",
        0,
        "-n",
        12,
    )
    done = CliRunner().invoke(main, [str(each) for each in (*fixed, *options)], env={"COLUMNS": "80"}, **how)
    assert done.exit_code == 0, done.output
    return done.stdout


def nearest(data: Path, folder: Path, question: str, top: int) -> list[Passage]:
    passages = read_folder(folder)
    with ggplug_models.load(data / "bert.gguf", ["CPU"]) as encoder:
        vectors = encoder.embed([f"{each.heading}. {each.text}" for each in passages])
        scores = vectors @ encoder.embed([question])[0]
    return [passages[place] for place in (-scores).argsort()[:top]]


@pytest.mark.parametrize("templated", [False, True])
def test_the_nearest_passages_are_told_and_shown_with_the_answer(
    templated: bool, data: Path, folder: Path, tmp_path: Path
) -> None:
    question = "why sleep?"
    found = nearest(data, folder, question, 2)
    chat = messages([], question, found)
    path = with_template(data / "qwen3.gguf", tmp_path / "chat.gguf") if templated else data / "qwen3.gguf"
    with ggplug_models.load(path, ["CPU"]) as model, model.session(1024) as session:
        text = model.chat if templated else lambda chat, *n, **how: model.generate(as_text(chat), *n, **how)
        wanted = "".join(text(chat, 12, session=session))
    shown = ask(data, folder, "--top", 2, "--context", 1024, question, model=path)
    answer, _, sources = shown.partition("\n\n[1] ")
    assert answer.partition("passages were embedded in ")[2].partition("\n")[2] == wanted
    assert [line.split()[0] for line in sources.splitlines()] == [
        f"notes/{found[0].path.name}:{found[0].line}",
        "[2]",
    ]
    assert f"notes/{found[1].path.name}:{found[1].line}" in sources


def test_a_chat_answers_question_after_question(data: Path, folder: Path) -> None:
    alone = ask(data, folder, "--top", 1, "--context", 1024, "bread")
    shown = ask(data, folder, "--top", 1, "--context", 1024, input="bread\n\ncats\n")
    assert alone.partition(" s\n")[2].strip() in shown
    assert shown.count("\n[1] ") == 2


def test_what_does_not_fit_is_left_out_what_was_said_first_at_first() -> None:
    def words(chat: Any) -> list[int]:
        return list(range(sum(len(each["content"].split()) for each in chat)))

    passages = [Passage(Path("a"), 1, "", "word " * 30), Passage(Path("b"), 1, "", "word " * 30)]
    said = [{"role": role, "content": "word " * 10} for role in ("user", "assistant") * 2]
    bare = len(words(messages([], "why?", [])))
    for room, turns, count in ((110, 4, 2), (100, 2, 2), (70, 0, 2), (50, 0, 1), (2, 0, 0)):
        prompt, used = fitting(words, said, "why?", passages, bare + room)
        assert used == count
        assert len(prompt) == len(words(messages(said[4 - turns :], "why?", passages[:count])))
    with pytest.raises(ValueError, match=f"a prompt of {bare} tokens; at most 5 are possible"):
        fitting(words, said, "why?", passages, 5)


def test_the_prompt_names_its_parts() -> None:
    passage = Passage(Path("a"), 1, "Baking", "knead it")
    chat = messages([{"role": "user", "content": "hm"}, {"role": "assistant", "content": "ha"}], "how?", [passage])
    assert [each["role"] for each in chat] == ["system", "user", "assistant", "user"]
    assert as_text(chat) == (
        f"{SYSTEM}\n\nhm\n\nAnswer: ha\n\nPassages:\n\n[1] Baking\nknead it\n\nQuestion: how?\n\nAnswer:"
    )


def test_an_encoder_in_place_of_the_language_model_is_refused(data: Path, folder: Path) -> None:
    done = CliRunner().invoke(main, ["--model", str(data / "bert.gguf"), "--folder", str(folder), "a"])
    assert done.exit_code == 1
    assert "cannot generate text" in done.output


def test_its_help_fits_eighty_columns() -> None:
    shown = CliRunner().invoke(main, ["--help"], env={"COLUMNS": "80"}).output
    assert "python -m examples.chat_with_docs --model model.gguf" in shown
    assert max(map(len, shown.splitlines())) <= 80
