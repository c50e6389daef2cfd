"""``ggplug serve``: a model, or several, over HTTP."""

from __future__ import annotations

import importlib
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
from ggplug.cli.placement import PlaceRules, placement_options
from ggplug.cli.tracing import traced
from ggplug_models.checks.requirements import required
from ggplug_models.commands.lines import content_of
from ggplug_models.commands.options import (
    cache_option,
    control_option,
    device_option,
    draft_option,
    draft_tokens_option,
    drafted_tokens,
    growth_option,
    lora_option,
    pack_option,
    placed,
    policy_option,
    pooling_option,
)
from ggplug_models.commands.serve_defaults import chosen, defaults_options


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
    "--models-max",
    default=4,
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="With --models-dir: maximum number of models loaded at the same time; 0: any. For one more, the one that was "
    "not used for the longest time is released.",
)
@click.option(
    "--models-autoload/--no-models-autoload",
    default=True,
    help="With --models-dir: whether requests load models, or only /models/load does.",
)
@click.option(
    "--sleep-idle-seconds",
    "idle",
    type=click.FloatRange(-1),
    metavar="N",
    help="Release the memory of a model after N seconds without requests that use it; the next one loads it again. "
    "Default, and -1: never.",
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
    "--slots",
    default=4,
    show_default=True,
    type=click.IntRange(1, 256),
    metavar="N",
    help="Number of texts generated at the same time; further ones wait.",
)
@click.option(
    "--waiting",
    default=64,
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="Maximum number of requests that wait for a slot; further ones get the status 429.",
)
@click.option(
    "--context",
    type=click.IntRange(1),
    metavar="N",
    help="Context length of each slot, in tokens, for the prompt and the answer together. Default: what the model "
    "supports, at most 4096.",
)
@cache_option
@click.option(
    "--name",
    metavar="NAMES",
    help="Name of the model in the API, and, separated by commas, further names. Default: the file name without .gguf.",
)
@click.option("--tags", metavar="WORDS", default="", help="Words, separated by commas, that /v1/models lists.")
@click.option(
    "--strict/--lenient",
    help="Refuse requests with unknown parameters or for another model. By default these are accepted, with a warning "
    "in the log and in the header X-Ggplug-Ignored.",
)
@defaults_options
@click.option(
    "--piece",
    default=128,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Number of tokens of prompts that are computed between two tokens of the other texts.",
)
@lora_option
@control_option
@draft_option
@draft_tokens_option
@pooling_option
@click.option(
    "--slot-save-path",
    "slot_files",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Folder in which clients may save slots (/slots/NUMBER?action=save). Default: they may not.",
)
@click.option(
    "--context-shift/--no-context-shift",
    "shifts",
    default=False,
    help="Whether a text goes on when its context is full: half of the tokens are dropped, without the first ones that "
    "n_keep names, and the others are computed again. By default it ends.",
)
@click.option("--page/--no-page", default=True, help="Whether / is the chat page.")
@click.option("--metrics/--no-metrics", default=True, help="Whether /metrics exists.")
@click.option("--slot-status/--no-slot-status", default=True, help="Whether /slots shows the status of slots.")
@click.option(
    "--chat-template",
    "template",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Jinja chat template to use instead of the one in the model's file.",
)
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
    "--replay/--no-replay",
    "replays",
    default=False,
    help="What becomes of answers when a device is lost, such as one of a cluster's node: they are computed again on "
    "the devices that are left and go on, or end with an error. The model is loaded again in both cases.",
)
@device_option
@placement_options
@policy_option
@pack_option
@growth_option
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Print the model's devices, log each request, and add to responses all that is known (__verbose).",
)
@traced
def serve(
    model: ModelFile | None,
    folder: Path | None,
    models_max: int,
    models_autoload: bool,
    idle: float | None,
    host: str,
    port: int,
    keys: tuple[str, ...],
    slots: int,
    waiting: int,
    context: int | None,
    cache_type: str,
    name: str | None,
    tags: str,
    strict: bool,
    piece: int,
    adapters: tuple[tuple[Path, float], ...],
    vectors: tuple[tuple[Path, float], ...],
    draft: str | ModelFile | None,
    draft_tokens: int | None,
    pooling: str | None,
    slot_files: Path | None,
    shifts: bool,
    page: bool,
    metrics: bool,
    slot_status: bool,
    template: Path | None,
    origins: tuple[str, ...],
    hosts: tuple[str, ...],
    body_limit: int,
    replicas: int,
    replays: bool,
    devices: tuple[str, ...],
    place_rules: PlaceRules,
    policy: str,
    pack: bool,
    pack_growth: int | None,
    verbose: bool,
    **defaults: Any,
) -> None:
    """Serve MODEL.gguf, or several models, over HTTP, with an OpenAI-compatible API and a chat page.

    By default, the server accepts connections from this machine only; see --host. Ctrl-C stops it after the running
    answers have ended; a second Ctrl-C stops it at once. Slow clients are disconnected: after 10 seconds for the
    headers of a request, 60 seconds for its body or 10 seconds without data, and 60 seconds without reading an answer.
    """
    for library in ("fastapi", "uvicorn", "prometheus_client"):
        with required(library, "ggplug serve", extra="serve"):
            importlib.import_module(library)
    from ggplug.registry import device
    from ggplug.registry import devices as all_devices
    from ggplug_models.serve.app import Rules
    from ggplug_models.serve.http.access import is_loopback
    from ggplug_models.serve.http.replicas import Machine, Replicas, machines_of
    from ggplug_models.serve.models import Models, models_in
    from ggplug_models.serve.opening import Opening
    from ggplug_models.serve.server import Server, listening, run
    from ggplug_models.serve.service import About, Service
    from ggplug_models.serve.writer import Defaults

    if (model is None) is (folder is None):
        raise click.UsageError("Give either MODEL or --models-dir.")
    if folder is not None and (name or tags or template or adapters or vectors):
        raise click.UsageError(
            "--name, --tags, --chat-template, --lora and --control-vector are for one MODEL, not for --models-dir."
        )
    if folder is not None and replicas:
        raise click.UsageError("--replicas is for one MODEL, not for --models-dir.")
    most = drafted_tokens(draft, draft_tokens)
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
    opening = Opening(
        *placed(devices, place_rules),
        adapters=adapters,
        vectors=vectors,
        policy=policy,
        loading={"pack": pack, "pack_growth": pack_growth},
        pooling=pooling,
        cache_type=cache_type,
        context=context,
        slots=slots,
        computing={
            "waiting": waiting,
            "template": None if template is None else content_of(template),
            "defaults": Defaults(*chosen(defaults), shifts=shifts, verbose=verbose),
            "piece": piece,
            "draft": draft,
            "draft_tokens": most,
        },
        replays=replays,
        report=(lambda text: err.print(printable(text), style="dim", soft_wrap=True)) if verbose else None,
    )

    seconds = None if idle is None or idle < 0 else idle

    def service(called: str, file: ModelFile | Path) -> Service:
        # Responses are UTF-8; file names need not be.
        called = printable(called.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
        first, *aliases = called.split(",") if name else [called]
        about = About(
            Path(file), aliases, [tag for tag in tags.split(",") if tag], pooling != "none", adapters=adapters
        )
        return Service(first, opening.of(file, first), slots=slots, waiting=waiting, about=about, idle=seconds)

    def copies(alone: Service, file: ModelFile) -> Replicas:
        """Copies of a model on machines, instead of the one here.  Raises UsageError."""
        chosen_devices = list(map(device, opening.devices)) if opening.devices is not None else all_devices()
        machines = machines_of(chosen_devices)
        if not machines or (opening.devices and sum(len(each.devices) for each in machines) < len(opening.devices)):
            raise click.UsageError("--replicas needs devices of a cluster alone: set GGPLUG_RAY (docs/cluster.md).")

        def given(machine: Machine) -> Sequence[Any]:
            there = replace(opening, devices=None if opening.devices is None else list(machine.devices), report=None)
            own = replace(rules, keys=(), hosts=None, origins=())
            return os.getcwd(), there, Path(file), alone.name, slots, waiting, alone.about, seconds, own

        return Replicas(
            [machines[number % len(machines)] for number in range(replicas)],
            given,
            slots=slots,
            most_inside=replicas * alone.most_inside,
            body_limit=rules.body_limit,
        )

    with ExitStack() as stack:
        sockets = stack.enter_context(listening(addresses, port))
        served: Service | Models | Replicas
        if folder is not None:
            served = Models(lambda: models_in(folder), service, most=models_max, autoload=models_autoload)
            what = f"{len(served.services)} models"
        else:
            assert model is not None
            served = alone = service(name or model.title, model)
            what = alone.name
            if replicas:
                alone.close()
                served, what = copies(alone, model), f"{replicas} replicas of {what}"
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
