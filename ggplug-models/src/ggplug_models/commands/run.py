"""``ggplug run``: answers a prompt, or chats in the terminal."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ggplug.cli.app import notices_held_back
from ggplug.cli.model_file import ModelFile
from ggplug.cli.output import Command, byte_count, console, print_table, printable
from ggplug.cli.placement import PlaceRules, placement_options
from ggplug.cli.streams import stdout
from ggplug.cli.tracing import traced
from ggplug.errors import ContextFullError, ParameterError
from ggplug_models.commands.lines import content_of
from ggplug_models.commands.options import (
    adapted,
    cache_option,
    control_option,
    device_option,
    draft_option,
    draft_tokens_option,
    drafted_tokens,
    fitted,
    growth_option,
    lora_option,
    model_argument,
    pack_option,
    pipeline_option,
    placed,
    policy_option,
)
from ggplug_models.commands.terminal import messages

if TYPE_CHECKING:
    from ggplug_models.commands.chat import Chat
    from ggplug_models.generation.drafts import Drafts
    from ggplug_models.networks.decoder import Decoder
    from ggplug_models.networks.denoiser import Denoiser
    from ggplug_models.state.session import Session


MASKED_TOKENS = 128
"""Default length of the texts of models that write masked tokens."""


@click.command(cls=Command)
@model_argument
@click.option(
    "-p",
    "--prompt",
    metavar="TEXT",
    help="Prompt to answer; the command then ends. Default: chat in the terminal, or read the prompt from standard "
    "input if that is not a terminal.",
)
@click.option("--raw", is_flag=True, help="Continue the prompt as plain text; do not apply a chat template.")
@click.option("--system", metavar="TEXT", help="System prompt of the chat.")
@click.option(
    "-n",
    "--max-tokens",
    type=click.IntRange(1),
    metavar="N",
    help="Maximum number of tokens to generate for an answer. Default: until the text ends or the context is full; "
    f"{MASKED_TOKENS} for models that write masked tokens in any order.",
)
@click.option(
    "--context",
    type=click.IntRange(1),
    metavar="N",
    help="Context length: maximum number of tokens of the prompt and the answer together. Default: what the model "
    "supports, at most 4096.",
)
@cache_option
@click.option(
    "--temperature",
    default=0.8,
    show_default=True,
    type=click.FloatRange(0),
    metavar="T",
    help="Sampling temperature: higher values make the text more random; 0 chooses the most probable token.",
)
@click.option(
    "--top-k",
    default=40,
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="Top-k sampling: choose among the N most probable tokens; 0 disables it.",
)
@click.option(
    "--top-p",
    default=0.95,
    show_default=True,
    type=click.FloatRange(0, 1),
    metavar="P",
    help="Top-p sampling: choose among the most probable tokens whose probabilities sum up to P; 1 disables it.",
)
@click.option(
    "--min-p",
    default=0.05,
    show_default=True,
    type=click.FloatRange(0, 1),
    metavar="P",
    help="Min-p sampling: leave out tokens less probable than P times the most probable one; 0 disables it.",
)
@click.option(
    "--repeat-penalty",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    metavar="X",
    help="Penalty for tokens that occurred among the last 64; values above 1 make them less probable, 1 disables it.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    metavar="N",
    help="Seed of the random numbers; the same seed gives the same text. Default: a random one.",
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    metavar="N",
    help="Of models that write masked tokens in any order: how often the text is computed. Default: once for a token.",
)
@click.option(
    "--block",
    type=click.IntRange(1),
    metavar="N",
    help="Of these models: so many tokens are complete before the next ones are written. Default: all are one block.",
)
@click.option(
    "--order",
    type=click.Choice(["probability", "entropy", "margin", "random"]),
    help="Of these models: what decides which tokens are written first. Default: probability.",
)
@device_option
@placement_options
@policy_option
@pack_option
@growth_option
@pipeline_option
@lora_option
@control_option
@draft_option
@draft_tokens_option
@click.option("--lookup", is_flag=True, help="The same as --draft lookup.")
@click.option("-v", "--verbose", is_flag=True, help="Print which device computes what, and the speed.")
@traced
def run(
    model: ModelFile,
    prompt: str | None,
    raw: bool,
    system: str | None,
    max_tokens: int | None,
    context: int | None,
    cache_type: str,
    devices: tuple[str, ...],
    place_rules: PlaceRules,
    policy: str,
    pack: bool,
    pack_growth: int | None,
    n_copies: int | None,
    adapters: tuple[tuple[Path, float], ...],
    vectors: tuple[tuple[Path, float], ...],
    draft: str | ModelFile | None,
    draft_tokens: int | None,
    lookup: bool,
    verbose: bool,
    steps: int | None,
    block: int | None,
    order: str | None,
    **sampling: Any,
) -> None:
    """Generate text with the language model MODEL.gguf, or chat with it.

    In a chat, Ctrl-C stops an answer, /clear starts a new chat, /exit or Ctrl-D ends it, and /help lists the commands.
    Speculative decoding (--draft) can make generation faster; it does not change the text.
    """
    from ggplug_models.chat.template import KEY as CHAT_TEMPLATE
    from ggplug_models.commands.chat import Chat
    from ggplug_models.loading import load, refuse
    from ggplug_models.networks.decoder import Decoder
    from ggplug_models.networks.denoiser import Denoiser
    from ggplug_models.sampling import Sampler, Sampling

    if draft is not None and lookup:
        raise click.UsageError("--draft and --lookup cannot be combined.")
    most = drafted_tokens(lookup or draft, draft_tokens)
    if raw and system is not None:
        raise click.UsageError("--system and --raw cannot be combined: --raw uses no chat template.")
    names, placement = placed(devices, place_rules)
    err = console(stderr=True)
    with contextlib.ExitStack() as stack:
        loading: dict[str, Any] = {"pack": pack, "pack_growth": pack_growth, "n_copies": n_copies}
        used, placement = fitted(model, names, placement, policy, n_ctx=context, cache_type=cache_type, **loading)
        loaded = stack.enter_context(load(model, used, placement=placement, **loading))
        if not isinstance(loaded, (Decoder, Denoiser)):
            raise refuse(model, loaded)
        adapted(stack, loaded, adapters, vectors)
        if verbose:
            err.print(printable(repr(loaded)), style="dim", soft_wrap=True)
            if placement.rules:
                err.print(printable(str(loaded.placement)), style="dim", soft_wrap=True)
        what = "lookup" if lookup else draft
        writing = {name: value for name, value in (("steps", steps), ("block", block), ("order", order)) if value}
        if isinstance(loaded, Denoiser):
            for option, value in (("a draft", what), ("--context", context)):
                if value is not None:
                    raise ParameterError(f"{model} writes its tokens in any order, without {option}", got=value)
            text = content_of(Path("-")) if prompt is None else prompt
            raw = raw or CHAT_TEMPLATE not in loaded.metadata
            if raw and system is not None:
                raise _no_template(model)
            _write(loaded, text if raw else _asked(loaded, text, system), max_tokens, sampling, writing)
            return
        if writing:
            raise ParameterError(
                f"{model} writes one token after the other, so --{next(iter(writing))} cannot be used", got=writing
            )
        drafts: Drafts | None = None
        if what is not None:
            from ggplug_models.guessing.kinds import drafts_for

            made = drafts_for(loaded, what, n_ctx=context, most=most, pack=pack)
            (drafts,) = stack.enter_context(made)
        with loaded.session(context, cache_type=cache_type) as session:
            raw = raw or CHAT_TEMPLATE not in loaded.metadata
            if raw and system is not None:
                raise _no_template(model)
            chat = Chat(loaded, session, Sampler(Sampling(**sampling)), system=system, draft=drafts)
            if prompt is None and sys.stdin is not None and sys.stdin.isatty():
                with messages() as message:
                    _chat(chat, message, raw=raw, max_tokens=max_tokens)
            else:
                text = content_of(Path("-")) if prompt is None else prompt
                try:
                    _print_pieces((chat.complete if raw else chat.answer)(text, max_tokens))
                except ContextFullError as error:
                    raise _too_long(error, session, "use a larger --context, or a shorter prompt") from None
                if verbose:
                    err.print(str(chat.timings), style="dim", soft_wrap=True)
            if verbose and chat.timings.generated:
                _print_device_uses(loaded, session)


def _no_template(path: ModelFile) -> ParameterError:
    return ParameterError(f"{path} has no chat template, so --system cannot be used")


def _asked(model: Denoiser, text: str, system: str | None) -> str:
    """The prompt of a chat with the user's message ``text``."""
    from ggplug_models.chat.prepared import prepared

    before = [] if system is None else [{"role": "system", "content": system}]
    return prepared(model.template, [*before, {"role": "user", "content": text}]).prompt


def _write(
    model: Denoiser, prompt: str, max_tokens: int | None, sampling: dict[str, Any], writing: dict[str, Any]
) -> None:
    """Prints the text that a model writes in any order, with a progress bar until it is complete."""
    from ggplug_models.commands.bars import counting
    from ggplug_models.sampling import Sampler, Sampling

    count = MASKED_TOKENS if max_tokens is None else max_tokens
    with counting() as bar:
        task = bar.add_task("tokens", total=count)
        sampler = Sampler(Sampling(**sampling))
        how = {**writing, "choose": sampler, "seed": sampler.seed, "progress": lambda n: bar.advance(task, n)}
        found = model.generate(prompt, count, **how)
    _print_pieces(iter([found]))


def _too_long(error: ContextFullError, session: Session, remedy: str) -> ContextFullError:
    """The error for a prompt that is longer than the context, with the lengths of both."""
    whole = session.n_ctx - error.wanted + error.got
    message = f"the prompt has {whole} tokens; the context length is {session.n_ctx}"
    return ContextFullError(message, got=whole, wanted=session.n_ctx, remedy=remedy)


def _print_device_uses(model: Decoder, session: Session) -> None:
    """Prints a table with a line for each device: its layers, weights, nodes and copies."""
    from ggplug_models.commands.device_use import device_uses, ranges

    rows = [
        (
            each.device,
            ranges(each.layers),
            byte_count(each.nbytes),
            byte_count(each.packed),
            str(each.nodes),
            byte_count(each.copied),
        )
        for each in device_uses(model, session.explain())
    ]
    headings = ("device", "layers", "weights", "packed", "nodes", "copied to it")
    print_table(headings, rows, right=headings[2:], stderr=True)


def _print_pieces(pieces: Iterator[str]) -> None:
    """Prints pieces of text as they come; on a terminal, control characters are escaped."""
    out = stdout()
    escaped = printable if out.isatty() else str
    with contextlib.ExitStack() as stack:
        for number, piece in enumerate(pieces):
            out.write(escaped(piece))
            out.flush()
            if number == 0:
                stack.enter_context(notices_held_back())
    out.write("\n")
    out.flush()


CHAT_HELP = """\
/clear   start a new chat
/help    print this help
/exit    end the chat; so does Ctrl-D
Ctrl-C   stop the answer
The arrow keys recall earlier lines. A pasted text of several lines is sent as one message."""


def _chat(chat: Chat, message: Callable[[str], str], *, raw: bool, max_tokens: int | None) -> None:
    """Reads messages and prints answers until the user ends the chat.  ``message``: see :func:`.messages`."""
    err = console(stderr=True)
    err.print("/help lists the commands, Ctrl-D ends the chat.", style="dim")
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
            err.print(f"The line is not valid UTF-8 at byte {error.start}; nothing was sent.", style="yellow")
            continue
        command = text.strip()
        if command == "/exit":
            return
        if command == "/clear":
            chat.clear()
        elif command == "/help":
            err.print(CHAT_HELP)
        elif re.fullmatch("/[a-z]+", command):
            err.print(f"Unknown command {command}; /help lists the commands.", style="yellow")
        elif command:
            try:
                _print_pieces((chat.complete if raw else chat.answer)(text, max_tokens))
            except KeyboardInterrupt:
                stdout().write("\n")
            except ContextFullError as error:
                remedy = "type a shorter text, or start with a larger --context" if raw else "/clear starts a new chat"
                found = _too_long(error, chat.session, remedy)
                err.print(f"{found.message}: {found.remedy}", style="yellow", soft_wrap=True)
                continue
            err.print(str(chat.timings), style="dim", soft_wrap=True)
