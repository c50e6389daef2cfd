"""``ggplug serve``: a model over HTTP."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import click

from ggplug.cli.output import Command, console, printable
from ggplug.errors import ParameterError
from ggplug.system.files import open_regular
from ggplug_models.checks.requirements import required
from ggplug_models.commands.options import (
    cache_option,
    device_option,
    growth_option,
    model_argument,
    pack_option,
    placed,
    split_option,
)


@click.command(cls=Command)
@model_argument
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="NAME",
    help="Address to listen at; 0.0.0.0 for all, which other machines reach.",
)
@click.option("--port", default=8080, show_default=True, type=click.IntRange(0, 65535), help="0: any that is free.")
@click.option(
    "--api-key",
    "keys",
    multiple=True,
    envvar="GGPLUG_API_KEY",
    metavar="KEY",
    help="What clients have to know; may be repeated. Better in the environment variable GGPLUG_API_KEY: others see "
    "a command's options. Default: no key is needed.",
)
@click.option(
    "--slots",
    default=4,
    show_default=True,
    type=click.IntRange(1, 256),
    metavar="N",
    help="Texts that are written at once; others wait.",
)
@click.option(
    "--waiting",
    default=64,
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="Requests that may wait for a slot; more are refused with 429.",
)
@click.option(
    "--context",
    type=click.IntRange(1),
    metavar="N",
    help="Tokens of a prompt and its answer, in each slot. Default: up to 4096.",
)
@cache_option
@click.option("--name", metavar="NAME", help="What clients call the model. Default: the file's name.")
@click.option(
    "--chat-template",
    "template",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A Jinja template for chats, in place of the model's own.",
)
@click.option(
    "--cors",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="A web site whose pages may use the server, such as https://example.org; may be repeated.",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A further name by which a server without keys may be asked; may be repeated.",
)
@click.option(
    "--body-limit",
    default=8,
    show_default=True,
    type=click.IntRange(1, 1024),
    metavar="MIB",
    help="MiB that a request may have.",
)
@device_option
@split_option
@pack_option
@growth_option
@click.option("-v", "--verbose", is_flag=True, help="Tell what runs where, and each request.")
def serve(
    model: Path,
    host: str,
    port: int,
    keys: tuple[str, ...],
    slots: int,
    waiting: int,
    context: int | None,
    cache_type: str,
    name: str | None,
    template: Path | None,
    origins: tuple[str, ...],
    hosts: tuple[str, ...],
    body_limit: int,
    devices: tuple[str, ...],
    split: str | None,
    pack: bool,
    pack_growth: int | None,
    verbose: bool,
) -> None:
    """Serve MODEL.gguf over HTTP: texts, chats and vectors as the OpenAI API has them, with a page to chat.

    It listens on this machine alone unless --host says otherwise. Ctrl-C lets the answers end that are under way; a
    second one cuts them off. Slow clients hold no place: the head of a request may take 10 seconds, its body 60 and
    pauses of 10, an answer may lie unread for 60; beside the requests that may wait there may be 256 connections.
    """
    for library in ("fastapi", "uvicorn", "prometheus_client"):
        with required(library, "ggplug serve", extra="serve"):
            importlib.import_module(library)
    from ggplug_models.loading import load
    from ggplug_models.serve.app import Rules
    from ggplug_models.serve.guard import is_loopback
    from ggplug_models.serve.server import Server, listen, run
    from ggplug_models.serve.service import serving

    if any(not key.strip() for key in keys):
        raise click.UsageError("An API key is empty.")
    for origin in origins:
        if not re.fullmatch(r"\*|https?://[^\s/?#@]+", origin):
            raise click.UsageError(f"--cors {origin!r} is no web site such as https://example.org; * stands for all.")
    # Answers are UTF-8, which names of files need not be.
    called = printable(name or model.stem.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
    names, placement = placed(devices, split)
    source = None if template is None else _text(template)
    err = console(stderr=True)
    here = is_loopback(host)
    rules = Rules(keys, hosts if here else None, origins, body_limit << 20)
    with (
        listen(host, port) as listening,
        load(model, names, placement=placement, pack=pack, pack_growth=pack_growth) as loaded,
    ):
        if verbose:
            err.print(printable(repr(loaded)), style="dim", soft_wrap=True)
        with serving(
            loaded,
            called,
            slots=slots,
            context=context,
            cache_type=cache_type,
            waiting=waiting,
            template=source,
        ) as service:
            if service.writer is not None and not service.writer.has_template:
                err.print(
                    "The file has no chat template: chats are written as 'user: ...' lines. --chat-template "
                    "names another.",
                    style="yellow",
                    soft_wrap=True,
                )
            if not here and not keys:
                err.print(
                    "Whoever reaches this machine may use the server: no --api-key is set.",
                    style="yellow",
                    soft_wrap=True,
                )
            shown = f"[{host}]" if ":" in host else host
            place = f"http://{shown}:{listening.getsockname()[1]}"
            err.print(printable(f"{service.name}: chat at {place}/, API at {place}/v1, Ctrl-C ends it"), soft_wrap=True)
            run(Server(service, rules, log_requests=verbose), listening)


def _text(path: Path) -> str:
    """A file's text.  Raises ParameterError for what is not UTF-8, and OSError."""
    with open_regular(path) as opened:
        try:
            return opened.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise ParameterError(f"{path} is not UTF-8 at byte {error.start}", got=error.start) from None
