"""Answers questions from a folder of text, with a language model.

\b
  python -m examples.chat_with_docs --model model.gguf "What is a group?"
  python -m examples.chat_with_docs --model model.gguf --folder ~/notes

The encoder all-MiniLM-L6-v2, or another one, finds the passages that are most similar to the question, as in
examples.semantic_search. The model is any GGUF file that ggplug run supports. Without a question, it starts a chat:
Ctrl-C stops an answer, Ctrl-D ends the chat.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
from rich.console import Console

import ggplug as gg
import ggplug_models
from examples.chat_with_docs.prompts import Message, as_text, fitting
from examples.semantic_search.__main__ import DOCS, embed, listening, model_file
from examples.semantic_search.passages import Passage, read_folder
from ggplug.cli.output import printable
from ggplug_models import Decoder, Encoder, LayerSplit, PromptLookup, Session
from ggplug_models.chat.template import KEY as CHAT_TEMPLATE
from ggplug_models.loading import default_devices
from ggplug_models.sampling import Sampler, Sampling


class Answers:
    """Answers questions from passages, and remembers the questions and answers.

    ``vectors``: of the passages, of length 1.  ``top``: number of passages for each question.
    """

    def __init__(
        self,
        encoder: Encoder,
        model: Decoder,
        session: Session,
        passages: list[Passage],
        vectors: np.ndarray,
        *,
        top: int,
        max_tokens: int,
        sampler: Sampler,
    ) -> None:
        self.encoder, self.model, self.session, self.sampler = encoder, model, session, sampler
        self.passages, self.vectors = passages, vectors
        self.top, self.max_tokens = top, max_tokens
        self.said: list[Message] = []
        self.used: list[Passage] = []
        """The passages in the last prompt."""
        # Answers repeat parts of the passages, which makes prompt lookup effective.
        self.draft = None if model.keeps_states else PromptLookup()

    def encode(self, chat: list[Message]) -> list[int]:
        """The tokens of a chat, by the chat template of the file if it has one."""
        if CHAT_TEMPLATE in self.model.metadata:
            return self.model.template.encode(chat)
        return self.model.tokenizer.prompt(as_text(chat))

    def find(self, question: str) -> list[Passage]:
        """The passages that are most similar to the question, best first."""
        scores = self.vectors @ self.encoder.embed([question])[0]
        return [self.passages[place] for place in np.argsort(-scores)[: self.top]]

    def answer(self, question: str) -> Iterator[str]:
        """The answer in pieces.  Remembers it, also if the caller stops it.  Raises ValueError for a long question."""
        found = self.find(question)
        most = self.session.n_ctx - min(self.max_tokens, self.session.n_ctx // 2)
        prompt, count = fitting(self.encode, self.said, question, found, most)
        self.used = found[:count]
        pieces: list[str] = []
        try:
            for piece in self.model.texts(
                prompt, self.max_tokens, choose=self.sampler, session=self.session, draft=self.draft
            ):
                pieces.append(piece)
                yield piece
        finally:
            self.said += [{"role": "user", "content": question}, {"role": "assistant", "content": "".join(pieces)}]


def print_answer(answers: Answers, question: str, console: Console, folder: Path) -> None:
    """Prints the answer as it comes, and then its passages."""
    out = console.file
    try:
        for piece in answers.answer(question):
            out.write(printable(piece))
            out.flush()
    except KeyboardInterrupt:
        pass
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    out.write("\n\n")
    for number, passage in enumerate(answers.used, 1):
        name = passage.path.relative_to(folder.parent)
        console.print(f"[{number}] {name}:{passage.line}  {passage.heading}", style="dim", markup=False)


def chat(answers: Answers, console: Console, folder: Path) -> None:
    """Questions and answers until the input ends."""
    while True:
        try:
            question = console.input("\n> ", markup=False).strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return
        if question:
            console.print()
            print_answer(answers, question, console, folder)


@click.command(help=__doc__)
@click.argument("question", required=False)
@click.option(
    "--model",
    "path",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="GGUF",
    help="The language model that answers.",
)
@click.option(
    "--encoder",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="GGUF",
    help="The encoder that finds passages.  [default: all-MiniLM-L6-v2]",
)
@click.option(
    "--folder",
    default=DOCS,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Text to answer from.  [default: this repository's documentation]",
)
@click.option(
    "--device",
    "names",
    multiple=True,
    metavar="NAME",
    help="Device to use; repeat it to split the language model's layers.  [default: the best one]",
)
@click.option("--split", metavar="RATIOS", help="Proportions of the split, such as 2,1.  [default: even]")
@click.option(
    "--top", default=3, show_default=True, type=click.IntRange(1), help="Number of passages for each question."
)
@click.option("--context", type=click.IntRange(16), metavar="N", help="Context length of the language model.")
@click.option(
    "-n", "--max-tokens", default=256, show_default=True, type=click.IntRange(1), help="Maximum tokens of an answer."
)
@click.option(
    "--temperature", default=0.2, show_default=True, type=click.FloatRange(0), help="Sampling temperature; 0: greedy."
)
@click.option("--seed", type=click.IntRange(0), help="Seed of the random numbers.")
def main(
    question: str | None,
    path: Path,
    encoder: Path | None,
    folder: Path,
    names: tuple[str, ...],
    split: str | None,
    top: int,
    context: int | None,
    max_tokens: int,
    temperature: float,
    seed: int | None,
) -> None:
    console = Console(highlight=False, soft_wrap=True)
    folder = folder.resolve()
    passages = read_folder(folder)
    if not passages:
        raise click.ClickException(f"{folder} has no .md, .txt or .rst files")
    notes = click.get_current_context().with_resource(listening(console))
    try:
        with contextlib.ExitStack() as stack:
            devices = [gg.device(name) for name in names] or default_devices()
            placement = LayerSplit.parse(split or LayerSplit.EVEN) if len(names) > 1 or split else None
            model = stack.enter_context(ggplug_models.load(path, devices, placement=placement))
            if not isinstance(model, Decoder):
                raise click.ClickException(f"{path} is a {model.architecture} model, which cannot generate text")
            finder = stack.enter_context(ggplug_models.load(encoder or model_file(console, "Q8_0"), devices))
            texts = [f"{passage.heading}. {passage.text}" for passage in passages]
            vectors, seconds = embed(finder, texts, console, notes)
            console.print(f"{len(passages)} passages were embedded in {seconds:.1f} s", style="dim")
            session = stack.enter_context(model.session(context))
            sampler = Sampler(Sampling(temperature=temperature, seed=seed))
            answers = Answers(
                finder, model, session, passages, vectors, top=top, max_tokens=max_tokens, sampler=sampler
            )
            if question is None:
                chat(answers, console, folder)
            else:
                print_answer(answers, question, console, folder)
    except gg.GGPlugError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
