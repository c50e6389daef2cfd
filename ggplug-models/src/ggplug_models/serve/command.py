"""``ggplug serve``: a model, or several, over HTTP."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ggplug.cli.model_file import ModelFile, ModelFileType
from ggplug.cli.output import Command, console, printable
from ggplug.cli.tracing import traced
from ggplug_models.checks.requirements import require_server
from ggplug_models.serve.options.of_model import model_options, offer_of


@click.command(cls=Command)
@click.argument("model", type=ModelFileType(), required=False)
@click.option(
    "--models-dir",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Serve, instead of one MODEL, all .gguf files of FOLDER and of the folders in it. Requests choose by name: "
    "the path in FOLDER without .gguf. A model is loaded when it is asked for.",
)
@click.option(
    "--models-preset",
    "presets",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Serve, instead of one MODEL, those that an INI file names: each section is a model, with its path or name as "
    "'model', and options of this command without dashes, such as 'context = 8192'.",
)
@click.option(
    "--models-max",
    default=4,
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="With several models: maximum number of those loaded at the same time; 0: any. For one more, the one that was "
    "not used for the longest time is released.",
)
@click.option(
    "--models-autoload/--no-models-autoload",
    default=True,
    help="With several models: whether requests load models, or only /models/load does.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="NAME",
    help="Address to listen on, or several, separated by commas; 0.0.0.0 accepts connections from other machines.",
)
@click.option(
    "--port",
    default=8080,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 chooses a free one.",
)
@click.option(
    "--api-key",
    "keys",
    multiple=True,
    envvar="GGPLUG_API_KEY",
    metavar="KEY",
    help="API key that clients must send; may be repeated. The environment variable GGPLUG_API_KEY is safer, because "
    "other users can see the options of a command. Default: no key is required.",
)
@click.option(
    "--name",
    metavar="NAMES",
    help="Name of the model in the API, and, separated by commas, further names. Default: the file name without .gguf.",
)
@click.option(
    "--strict/--lenient",
    help="Refuse requests with unknown parameters or for another model. By default these are accepted, with a warning "
    "in the log and in the header X-Ggplug-Ignored.",
)
@click.option(
    "--slot-save-path",
    "slot_files",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Folder in which clients may save slots (/slots/NUMBER?action=save). Default: they may not.",
)
@click.option("--page/--no-page", default=True, help="Whether / is the chat page.")
@click.option("--metrics/--no-metrics", default=True, help="Whether /metrics exists.")
@click.option("--slot-status/--no-slot-status", default=True, help="Whether /slots shows the status of slots.")
@click.option(
    "--cors",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="Origin whose web pages may call the server (CORS), such as https://example.org; * allows all, localhost "
    "those of this machine. May be repeated.",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Host name to accept in requests, besides those of this machine, if no API key is set. May be repeated.",
)
@click.option(
    "--body-limit",
    default=8,
    show_default=True,
    type=click.IntRange(1, 1024),
    metavar="MIB",
    help="Maximum size of a request body, in MiB.",
)
@click.option(
    "--replicas",
    default=0,
    type=click.IntRange(0),
    metavar="N",
    help="Serve N copies of MODEL, on the machines whose devices are named by --device, by default on all machines of "
    "the cluster that GGPLUG_RAY names, in turn. MODEL is there under the same path. Requests are distributed; those "
    "of a conversation go to the same copy. Default: the model is here.",
)
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Print the model's devices, log each request, and add to responses all that is known (__verbose).",
)
@model_options
@traced
def serve(
    model: ModelFile | None,
    folder: Path | None,
    presets: Path | None,
    models_max: int,
    models_autoload: bool,
    host: str,
    port: int,
    keys: tuple[str, ...],
    name: str | None,
    strict: bool,
    slot_files: Path | None,
    page: bool,
    metrics: bool,
    slot_status: bool,
    origins: tuple[str, ...],
    hosts: tuple[str, ...],
    body_limit: int,
    replicas: int,
    verbose: bool,
    **options: Any,
) -> None:
    """Serve MODEL.gguf, or several models, over HTTP, with an OpenAI-compatible API and a chat page.

    By default, the server accepts connections from this machine only; see --host. Ctrl-C stops it after the running
    answers have ended; a second Ctrl-C stops it at once. Slow clients are disconnected: after 10 seconds for the
    headers of a request, 60 seconds for its body or 10 seconds without data, and 60 seconds without reading an answer.
    """
    require_server("ggplug serve")
    from ggplug.registry import device
    from ggplug.registry import devices as all_devices
    from ggplug_models.serve.app import Rules
    from ggplug_models.serve.http.access import is_loopback
    from ggplug_models.serve.http.replicas import Machine, Replicas, machines_of
    from ggplug_models.serve.models import Models, models_in
    from ggplug_models.serve.opening import Offer
    from ggplug_models.serve.options.presets import Preset, presets_in
    from ggplug_models.serve.server import Server, listening, run
    from ggplug_models.serve.service import Service

    if [model, folder, presets].count(None) != 2:
        raise click.UsageError("Give either MODEL, --models-dir or --models-preset.")
    if model is None and name:
        raise click.UsageError("--name is for one MODEL.")
    if model is None and replicas:
        raise click.UsageError("--replicas is for one MODEL.")
    if folder is not None and any(options[each] for each in ("tags", "template", "adapters", "vectors")):
        raise click.UsageError(
            "--tags, --chat-template, --lora and --control-vector are for one MODEL or --models-preset, not for "
            "--models-dir."
        )
    if any(not key.strip() for key in keys):
        raise click.UsageError("--api-key is empty.")
    for origin in origins:
        if not re.fullmatch(r"\*|localhost|https?://[^\s/?#@]+", origin):
            raise click.UsageError(f"--cors must be an origin such as https://example.org, or *, got {origin!r}.")
    err = console(stderr=True)
    addresses = [address.strip() for address in host.split(",")]
    here = all(map(is_loopback, addresses))
    rules = Rules(
        keys,
        hosts if here else None,
        origins,
        body_limit << 20,
        strict=strict,
        page=page,
        metrics=metrics,
        slots=slot_status,
        slot_files=slot_files,
    )
    given = click.get_current_context().params

    def offered(called: str, preset: Preset, *aliases: str) -> Offer:
        report = (lambda text: err.print(printable(text), style="dim", soft_wrap=True)) if verbose else None
        return offer_of(called, preset.model, preset.options, aliases=aliases, verbose=verbose, report=report)

    def several() -> dict[str, Preset]:
        if presets is not None:
            return presets_in(presets, given)
        assert folder is not None
        return {called: Preset(path, options) for called, path in models_in(folder).items()}

    def copies(offer: Offer, most_inside: int) -> Replicas:
        """Copies of a model on machines, instead of the one here.  Raises UsageError."""
        opening = offer.opening
        chosen_devices = list(map(device, opening.devices)) if opening.devices is not None else all_devices()
        machines = machines_of(chosen_devices)
        if not machines or (opening.devices and sum(len(each.devices) for each in machines) < len(opening.devices)):
            raise click.UsageError("--replicas needs devices of a cluster alone: set GGPLUG_RAY (docs/cluster.md).")

        def for_machine(machine: Machine) -> Sequence[Any]:
            there = replace(opening, devices=None if opening.devices is None else list(machine.devices), report=None)
            own = replace(rules, keys=(), hosts=None, origins=())
            return os.getcwd(), replace(offer, path=Path(offer.path), opening=there), own

        return Replicas(
            [machines[number % len(machines)] for number in range(replicas)],
            for_machine,
            slots=opening.slots,
            most_inside=replicas * most_inside,
            body_limit=rules.body_limit,
        )

    with ExitStack() as stack:
        sockets = stack.enter_context(listening(addresses, port))
        served: Service | Models | Replicas
        if model is None:
            served = Models(several, lambda *each: offered(*each).service(), most=models_max, autoload=models_autoload)
            what = f"{len(served.services)} models"
        else:
            first, *aliases = name.split(",") if name else [model.title]
            offer = offered(first, Preset(model, options), *aliases)
            served = alone = offer.service()
            what = alone.name
            if replicas:
                alone.close()
                served, what = copies(offer, alone.most_inside), f"{replicas} replicas of {what}"
        stack.callback(served.close)
        if isinstance(served, Replicas):
            served.open()
        if isinstance(served, Service):
            served.open()
            if served.writer is not None and not served.writer.has_template:
                err.print(
                    "The model's file has no chat template: messages are formatted as 'user: ...' lines. Use "
                    "--chat-template to give one.",
                    style="yellow",
                    soft_wrap=True,
                )
        if not here and not keys:
            err.print(
                "No --api-key is set: everybody who can reach this machine can use the server.",
                style="yellow",
                soft_wrap=True,
            )
        address = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
        url = f"http://{address}:{sockets[0].getsockname()[1]}"
        err.print(printable(f"{what}: chat at {url}/, API at {url}/v1, Ctrl-C stops it"), soft_wrap=True)
        run(Server(served, rules, log_requests=verbose), *sockets)
