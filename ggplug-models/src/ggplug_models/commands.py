"""The commands that this package adds to ``ggplug``."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from ggplug.cli.app import notices_held_back
from ggplug.cli.output import (
    Command,
    byte_count,
    console,
    echo,
    json_option,
    on_one_line,
    print_json,
    print_table,
    printable,
    progress,
)
from ggplug.cli.streams import ended_by_signals, stdin, stdout
from ggplug.errors import ContextFullError, ParameterError
from ggplug.files import open_regular
from ggplug_models.lines import windows, write_text
from ggplug_models.options import (
    cache_option,
    device_option,
    growth_option,
    model_argument,
    pack_option,
    placed,
    split_option,
)
from ggplug_models.terminal import messages

if TYPE_CHECKING:
    from rich.progress import Progress

    from ggplug_models.drafts import Drafts
    from ggplug_models.session import Session
    from ggplug_models.talk import Talk


@click.command(cls=Command)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--type",
    "kind",
    default="F16",
    show_default=True,
    metavar="TYPE",
    help="Type of the matrices, such as F16, Q8_0 or Q6_K; an unknown name is answered with all there are.",
)
def convert(folder: Path, out: Path, kind: str) -> None:
    """Convert a Hugging Face FOLDER (config, tokenizer, safetensors) to the GGUF file OUT."""
    from ggplug_models.convert import convert as run

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with ended_by_signals(), progress(*columns) as bar:
        task = bar.add_task(printable(f"writing {out.name}"), total=None)
        path = run(folder, out, kind, progress=lambda done, total: bar.update(task, completed=done, total=total))
    console(stderr=True).print(printable(f"{path}: {byte_count(path.stat().st_size)}"), soft_wrap=True)


@click.command(cls=Command)
@model_argument
@device_option
@split_option
@pack_option
@growth_option
@click.option(
    "--batch", default=32, show_default=True, type=click.IntRange(1), metavar="N", help="Texts computed together."
)
def embed(
    model: Path, devices: tuple[str, ...], split: str | None, pack: bool, pack_growth: int | None, batch: int
) -> None:
    """Embed texts with MODEL.gguf.

    Reads one text a line from standard input and prints one JSON object a line, in order:
    {"text": ..., "embedding": [...]}. Texts longer than the model takes are cut off.
    """
    from ggplug_models.embedding import check_finite
    from ggplug_models.loading import load

    names, placement = placed(devices, split)
    out = stdout()
    ascii_only = not (out.encoding or "").lower().startswith("utf")
    with load(model, names, placement=placement, pack=pack, pack_growth=pack_growth) as encoder:
        if not hasattr(encoder, "embed"):
            raise ParameterError(f"{model} is a {encoder.architecture} model, which does not embed texts")
        with _progress() as bar:
            task = bar.add_task("embedding", total=0)
            total = 0
            for texts in windows(stdin()):
                total += len(texts)
                bar.update(task, total=total)
                vectors = encoder.embed(texts, batch=batch, progress=lambda n: bar.advance(task, n))
                check_finite(vectors, "line", total - len(texts) + 1)
                for text, vector in zip(texts, vectors, strict=True):
                    out.write('{"text": ')
                    write_text(text, out.write, ascii_only=ascii_only)
                    numbers = json.dumps([float(f"{x:.9g}") for x in vector.tolist()], allow_nan=False)
                    out.write(f', "embedding": {numbers}}}\n')
                out.flush()


@click.command(cls=Command)
@model_argument
@click.argument("text", required=False)
@click.option(
    "--file",
    "file",
    type=click.Path(allow_dash=True, dir_okay=False, path_type=Path),
    metavar="PATH",
    help="Read the text from a file of UTF-8, or with - from standard input.",
)
@click.option(
    "--special/--no-special",
    default=True,
    show_default=True,
    help="Whether BOS and EOS are added where the model wants them, and the texts of special tokens become these.",
)
@json_option
def tokenize(model: Path, text: str | None, file: Path | None, special: bool, as_json: bool) -> None:
    """Show the tokens that MODEL.gguf makes of TEXT.

    Prints the id and the text of each token, a line each.
    """
    from ggplug_models.tokenizers import load_tokenizer

    if (text is None) == (file is None):
        raise click.UsageError("Give either TEXT or --file.")
    content = text if text is not None else _content(file)
    tokenizer = load_tokenizer(model)
    ids = tokenizer.encode(content, add_special=special, parse_special=special)
    pieces = [tokenizer.piece(token) for token in ids]
    if as_json:
        print_json({"ids": ids, "pieces": [piece.decode("utf-8", "backslashreplace") for piece in pieces]})
        return
    width = len(str(tokenizer.n_vocab))
    for token, piece in zip(ids, pieces, strict=True):
        echo(f"{token:{width}} '{on_one_line(piece.decode('utf-8', 'backslashreplace'))}'")


def _content(file: Path | None) -> str:
    """A file's text.  Raises ParameterError for what is not UTF-8, and OSError."""
    assert file is not None
    if str(file) == "-":
        data, name = b"".join(iter(lambda: stdin().readline(1 << 16), b"")), "standard input"
    else:
        with open_regular(file) as opened:
            data, name = opened.read(), str(file)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ParameterError(f"{name} is not UTF-8 at byte {error.start}", got=error.start) from None


@click.command(cls=Command)
@model_argument
@click.option(
    "-p",
    "--prompt",
    metavar="TEXT",
    help="Answer this, and end. Default: a chat; or standard input, where that is no terminal.",
)
@click.option("--raw", is_flag=True, help="Go on with the text as it is, without a chat template.")
@click.option("--system", metavar="TEXT", help="What the model is told before the chat.")
@click.option("-n", "--max-tokens", type=click.IntRange(1), metavar="N", help="Tokens that it writes at most.")
@click.option("--context", type=click.IntRange(1), metavar="N", help="Tokens that it remembers. Default: up to 4096.")
@cache_option
@click.option(
    "--temperature",
    default=0.8,
    show_default=True,
    type=click.FloatRange(0),
    metavar="T",
    help="0: the most likely tokens.",
)
@click.option(
    "--top-k", default=40, show_default=True, type=click.IntRange(0), metavar="N", help="So many tokens; 0: all."
)
@click.option(
    "--top-p",
    default=0.95,
    show_default=True,
    type=click.FloatRange(0, 1),
    metavar="P",
    help="The likeliest tokens that have this probability together.",
)
@click.option(
    "--min-p",
    default=0.05,
    show_default=True,
    type=click.FloatRange(0, 1),
    metavar="P",
    help="Tokens with this part of the largest probability.",
)
@click.option(
    "--repeat-penalty",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    metavar="X",
    help="What logits of repeated tokens are divided by.",
)
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Equal seeds, equal texts. Default: any.")
@device_option
@split_option
@pack_option
@growth_option
@click.option(
    "--draft",
    "drafter",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="GGUF",
    help="A smaller model with the same vocabulary that guesses tokens, to be confirmed several at once.",
)
@click.option("--lookup", is_flag=True, help="Guess tokens by what followed the same words before.")
@click.option("-v", "--verbose", is_flag=True, help="Tell what runs where, and how fast.")
def run(
    model: Path,
    prompt: str | None,
    raw: bool,
    system: str | None,
    max_tokens: int | None,
    context: int | None,
    cache_type: str,
    devices: tuple[str, ...],
    split: str | None,
    pack: bool,
    pack_growth: int | None,
    drafter: Path | None,
    lookup: bool,
    verbose: bool,
    **sampling: Any,
) -> None:
    """Let the language model MODEL.gguf answer, or chat with it.

    In a chat Ctrl-C stops an answer, /clear begins anew, /exit or Ctrl-D ends it, and /help tells so. Guessed tokens
    (--draft, --lookup) make it faster where they are right, and never change the text.
    """
    from ggplug_models.chat_template import KEY as CHAT_TEMPLATE
    from ggplug_models.loading import load_language_model
    from ggplug_models.sampling import Sampler, Sampling
    from ggplug_models.talk import Talk

    if drafter is not None and lookup:
        raise click.UsageError("Give either --draft or --lookup.")
    if raw and system is not None:
        raise click.UsageError("Give either --system, which begins a chat, or --raw, which makes none.")
    names, placement = placed(devices, split)
    err = console(stderr=True)
    with contextlib.ExitStack() as stack:
        how = {"placement": placement, "pack": pack, "pack_growth": pack_growth}
        loaded = stack.enter_context(load_language_model(model, names, **how))
        if verbose:
            err.print(printable(repr(loaded)), style="dim", soft_wrap=True)
        draft = stack.enter_context(_draft(drafter, names, context, pack=pack)) if drafter or lookup else None
        with loaded.session(context, cache_type=cache_type) as session:
            raw = raw or CHAT_TEMPLATE not in loaded.metadata
            if raw and system is not None:
                raise ParameterError(f"{model} has no chat template, so --system has no place")
            talk = Talk(loaded, session, Sampler(Sampling(**sampling)), system=system, draft=draft)
            if prompt is None and sys.stdin is not None and sys.stdin.isatty():
                with messages() as message:
                    _chat(talk, message, raw=raw, max_tokens=max_tokens)
            else:
                text = _content(Path("-")) if prompt is None else prompt
                try:
                    _say((talk.go_on if raw else talk.answer)(text, max_tokens))
                except ContextFullError as error:
                    raise _too_long(error, session, "--context N makes room for N tokens") from None
                if verbose:
                    err.print(str(talk.pace), style="dim")
            if verbose and talk.pace.written:
                _print_shares(session)


def _too_long(error: ContextFullError, session: Session, remedy: str) -> ContextFullError:
    """What is told of a prompt that there is no room for."""
    whole = session.n_ctx - error.wanted + error.got
    message = f"the prompt has {whole} tokens, and the context {session.n_ctx}"
    return ContextFullError(message, got=whole, wanted=session.n_ctx, remedy=remedy)


def _print_shares(session: Session) -> None:
    """What runs where: a line for each device."""
    from ggplug_models.shares import runs, shares

    rows = [
        (
            each.device,
            runs(each.layers),
            byte_count(each.nbytes),
            byte_count(each.packed),
            str(each.nodes),
            byte_count(each.copied),
        )
        for each in shares(session.model, session.explain())
    ]
    headings = ("device", "layers", "weights", "packed", "nodes", "copied to it")
    print_table(headings, rows, right=headings[2:], stderr=True)


@contextlib.contextmanager
def _draft(path: Path | None, names: list[str] | None, context: int | None, *, pack: bool) -> Iterator[Drafts]:
    """What guesses tokens: the model of a file, or without one what came before."""
    from ggplug_models.drafts import DraftModel, PromptLookup
    from ggplug_models.loading import load_language_model

    if path is None:
        yield PromptLookup()
    else:
        with load_language_model(path, names, pack=pack) as model, DraftModel(model, context) as draft:
            yield draft


def _say(pieces: Iterator[str]) -> None:
    """Writes pieces as they come; to a terminal, control characters as escapes."""
    out = stdout()
    shown = printable if out.isatty() else str
    with contextlib.ExitStack() as stack:
        for number, piece in enumerate(pieces):
            out.write(shown(piece))
            out.flush()
            if number == 0:
                stack.enter_context(notices_held_back())
    out.write("\n")
    out.flush()


CHAT_HELP = """\
/clear   begins a new chat
/help    shows this
/exit    ends the chat, as Ctrl-D does
Ctrl-C   stops an answer; earlier lines come back with the arrow keys.
A text that is pasted is one message, with all its lines."""


def _chat(talk: Talk, message: Callable[[str], str], *, raw: bool, max_tokens: int | None) -> None:
    """``message``: see :func:`.messages`."""
    err = console(stderr=True)
    err.print("/help tells what there is, Ctrl-D ends the chat.", style="dim")
    while True:
        try:
            text = message("> ")
        except EOFError:
            err.print()
            return
        except KeyboardInterrupt:
            err.print("\n/exit or Ctrl-D ends the chat.", style="dim")
            continue
        except UnicodeDecodeError as error:
            err.print(f"The line is not UTF-8 at byte {error.start}.", style="yellow")
            continue
        command = text.strip()
        if command == "/exit":
            return
        if command == "/clear":
            talk.forget()
        elif command == "/help":
            err.print(CHAT_HELP)
        elif re.fullmatch("/[a-z]+", command):
            err.print(f"There is no {command}; /help tells what there is.", style="yellow")
        elif command:
            try:
                _say((talk.go_on if raw else talk.answer)(text, max_tokens))
            except KeyboardInterrupt:
                stdout().write("\n")
            except ContextFullError as error:
                remedy = "say less, or start with a larger --context" if raw else "/clear begins a new chat"
                found = _too_long(error, talk.session, remedy)
                err.print(f"{found.message}: {found.remedy}", style="yellow", soft_wrap=True)
                continue
            err.print(str(talk.pace), style="dim", soft_wrap=True)


@click.command(cls=Command)
@model_argument
@click.argument("file", type=click.Path(allow_dash=True, dir_okay=False, path_type=Path))
@click.option(
    "--context",
    type=click.IntRange(4),
    metavar="N",
    help="Tokens of a chunk; those of its second half count. Default: 512, or as many as the model takes.",
)
@click.option("--chunks", type=click.IntRange(1), metavar="N", help="Only the first N chunks. Default: all.")
@cache_option
@device_option
@split_option
@pack_option
@growth_option
@json_option
def perplexity(
    model: Path,
    file: Path,
    context: int | None,
    chunks: int | None,
    cache_type: str,
    devices: tuple[str, ...],
    split: str | None,
    pack: bool,
    pack_growth: int | None,
    as_json: bool,
) -> None:
    """Measure how well the language model MODEL.gguf predicts the text of FILE.

    Prints the perplexity of the text with its standard error, as llama-perplexity defines them; smaller is better.
    With FILE - the text comes from standard input.
    """
    from ggplug_models.loading import load_language_model
    from ggplug_models.perplexity import chunks_of, perplexities

    names, placement = placed(devices, split)
    text = _content(file)
    with load_language_model(model, names, placement=placement, pack=pack, pack_growth=pack_growth) as loaded:
        tokens = loaded.tokenizer.encode(text, add_special=True)
        count, n_ctx = chunks_of(loaded, len(tokens), context)
        with _progress() as bar:
            task = bar.add_task("reading chunks", total=min(count, chunks or count))
            for found in perplexities(loaded, tokens, n_ctx, chunks=chunks, cache_type=cache_type):
                bar.update(task, completed=found.chunks, description=f"perplexity {found.value:.4f}")
    if as_json:
        print_json(
            {
                "perplexity": found.value,
                "standard_error": found.error,
                "chunks": found.chunks,
                "context": n_ctx,
                "tokens": found.tokens,
            }
        )
        return
    echo(f"perplexity {found.value:.4f} +/- {found.error:.4f}")
    console(stderr=True).print(f"{found.tokens} tokens of {found.chunks} chunks of {n_ctx}", style="dim")


def _progress() -> Progress:
    """A bar on standard error where that is a terminal, which leaves nothing behind."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return progress(*columns)
