"""``ggplug run``: a language model answers, or chats in the terminal."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ggplug.cli.app import notices_held_back
from ggplug.cli.output import Command, byte_count, console, print_table, printable
from ggplug.cli.streams import stdout
from ggplug.errors import ContextFullError, ParameterError
from ggplug_models.commands.lines import content_of
from ggplug_models.commands.options import (
    cache_option,
    device_option,
    growth_option,
    model_argument,
    pack_option,
    placed,
    split_option,
)
from ggplug_models.commands.terminal import messages

if TYPE_CHECKING:
    from ggplug_models.commands.talk import Talk
    from ggplug_models.generation.drafts import Drafts
    from ggplug_models.networks.decoder import Decoder
    from ggplug_models.state.session import Session


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
    from ggplug_models.chat.template import KEY as CHAT_TEMPLATE
    from ggplug_models.commands.talk import Talk
    from ggplug_models.loading import load_language_model
    from ggplug_models.sampling import Sampler, Sampling

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
                text = content_of(Path("-")) if prompt is None else prompt
                try:
                    _say((talk.go_on if raw else talk.answer)(text, max_tokens))
                except ContextFullError as error:
                    raise _too_long(error, session, "--context N makes room for N tokens") from None
                if verbose:
                    err.print(str(talk.pace), style="dim")
            if verbose and talk.pace.written:
                _print_shares(loaded, session)


def _too_long(error: ContextFullError, session: Session, remedy: str) -> ContextFullError:
    """What is told of a prompt that there is no room for."""
    whole = session.n_ctx - error.wanted + error.got
    message = f"the prompt has {whole} tokens, and the context {session.n_ctx}"
    return ContextFullError(message, got=whole, wanted=session.n_ctx, remedy=remedy)


def _print_shares(model: Decoder, session: Session) -> None:
    """What runs where: a line for each device."""
    from ggplug_models.commands.shares import runs, shares

    rows = [
        (
            each.device,
            runs(each.layers),
            byte_count(each.nbytes),
            byte_count(each.packed),
            str(each.nodes),
            byte_count(each.copied),
        )
        for each in shares(model, session.explain())
    ]
    headings = ("device", "layers", "weights", "packed", "nodes", "copied to it")
    print_table(headings, rows, right=headings[2:], stderr=True)


@contextlib.contextmanager
def _draft(path: Path | None, names: list[str] | None, context: int | None, *, pack: bool) -> Iterator[Drafts]:
    """What guesses tokens: the model of a file, or without one what came before."""
    from ggplug_models.generation.drafts import DraftModel, PromptLookup
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
