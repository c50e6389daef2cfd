"""``ggplug compare``: compares the results of two devices, node by node."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

import ggplug as gg
from ggplug.backend import Device
from ggplug.cli.output import Command, columns, echo, json_option, on_one_line, print_json, print_table, progress
from ggplug.cli.table import fold
from ggplug.errors import ParameterError
from ggplug.graph import Graph
from ggplug.types import DeviceKind
from ggplug_models.commands.options import cache_option, growth_option, model_argument, pack_option
from ggplug_models.loading import load
from ggplug_models.networks.encoder import Encoder

if TYPE_CHECKING:
    from ggplug.testing import Differences, WrongNode
    from ggplug_testing.judging.differences import Node

PROMPT = "The first wrong number is where the search begins."
MOST = 10
"""Rows of each table."""


@click.command(cls=Command)
@model_argument
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="NAME",
    help="Give it twice: first the device that is trusted, then the device that is compared with it.",
)
@click.option("-p", "--prompt", metavar="TEXT", help="Text to compute with. Default: a short sentence.")
@click.option("--ids", metavar="IDS", help="Token ids to compute with instead of a text, such as 1,15043,3186.")
@click.option(
    "--reference", is_flag=True, help="Compare both devices with the float64 reference of each operation; slower."
)
@click.option(
    "--groups/--no-groups",
    default=True,
    show_default=True,
    help="Whether devices compute nodes in groups (fused kernels), as they normally do, or one at a time.",
)
@cache_option
@pack_option
@growth_option
@json_option
def compare(
    model: Path,
    devices: tuple[str, ...],
    prompt: str | None,
    ids: str | None,
    reference: bool,
    groups: bool,
    cache_type: str,
    pack: bool,
    pack_growth: int | None,
    as_json: bool,
) -> None:
    """Find the first node of MODEL.gguf that two devices compute differently.

    Both devices compute each node from the same values, so that only the node's own error counts. The exit code is 0
    if all differences are within the tolerance of each operation, else 1.
    """
    names = [name for option in devices for name in option.split(",")]
    if len(names) != 2:
        raise click.UsageError("Give two devices: --device A --device B.")
    if prompt is not None and ids is not None:
        raise click.UsageError("--prompt and --ids cannot be combined.")
    from ggplug.testing import compare as run

    first, second = map(gg.device, names)
    with contextlib.ExitStack() as stack:
        a, b = (
            stack.enter_context(load(model, _with_cpu(device), pack=pack, pack_growth=pack_growth))
            for device in (first, second)
        )
        tokens = _numbers(ids) if ids is not None else _tokens(a, PROMPT if prompt is None else prompt)
        graph_a, graph_b = (stack.enter_context(_prepared(each, tokens, cache_type)) for each in (a, b))
        with progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()) as bar:
            task = bar.add_task("comparing nodes", total=None)
            found = run(
                (graph_a, graph_b),
                first,
                second,
                reference=reference,
                groups=groups,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    if as_json:
        print_json({**found.to_dict(), "tokens": tokens})
    else:
        _show(found)
    if not found.ok:
        click.get_current_context().exit(1)


def _with_cpu(device: Device) -> list[Device]:
    """The device, and a CPU after it for the nodes that the device declines."""
    return [device, *(cpu for cpu in gg.devices_by_kind(DeviceKind.CPU)[:1] if cpu is not device)]


def _numbers(text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise ParameterError(f"--ids must be integers separated by commas, got {text!r}", got=text) from None


def _tokens(model: Any, text: str) -> list[int]:
    if isinstance(model, Encoder):
        return list(map(int, model.tokenizer.encode([text])[0]))
    return list(map(int, model.tokenizer.encode(text, add_special=True)))


@contextlib.contextmanager
def _prepared(model: Any, tokens: Sequence[int], cache_type: str) -> Iterator[Graph]:
    """The graph in which ``model`` reads ``tokens``, with its inputs set."""
    if isinstance(model, Encoder):
        with model.locked():
            yield model.prepared(tokens)
        return
    size = max(1, len(tokens))
    with model.session(size, cache_type=cache_type, micro_batch=size) as session, session.locked():
        yield session.prepared(tokens)


def _show(found: Differences) -> None:
    if found.first is None:
        _say(f"{found.a} and {found.b} agree on all {found.n_nodes} nodes")
    else:
        _show_wrong(found.first, found)
        if found.follows:
            echo("")
            _say(f"{_count(len(found.follows), 'node')} are wrong because of it:")
            _show_nodes(found.follows)
        if found.wrong[1:]:
            echo("")
            _say(f"{_count(len(found.wrong) - 1, 'further node')} wrong, computed from correct values:")
            _show_rest(found.wrong[1:])
    if found.growth:
        echo("")
        _say(f"how {found.b} diverges from {found.a} when each uses its own results:")
        _show_nodes(found.growth, most=3 * MOST)
    if found.declined:
        echo("")
        _say("computed by the reference, because a device declines them:")
        _table(("node", "device", "reason"), [(_title(each.node), each.device, each.reason) for each in found.declined])


def _show_wrong(first: WrongNode, found: Differences) -> None:
    blamed = " and ".join(first.blamed) or "neither device"
    facts = [
        ("result", f"{first.type} [{'x'.join(map(str, first.ne)) or 'scalar'}]"),
        ("sources", first.sources),
        ("device", first.device),
        ("kernel", first.kernel),
    ]
    if first.group:
        single = ", ".join(map(_title, first.alone)) or "none"
        facts += [("group", ", ".join(map(_title, first.group))), ("of these, wrong when computed singly", single)]
    facts += [("error", first.reason), ("differs from the reference", blamed)]
    _say(f"first wrong node: {_title(first.node)}")
    for name, text in facts:
        _say(f"{name}: {on_one_line(text)}", by=2)
    if first.elements:
        echo("")
        by_reference = found.against == "references"
        headings = ("element", *(() if by_reference else (found.against,)), first.device, "reference", "from", "to")
        rows = [
            (
                str(list(each.place)),
                *(() if by_reference else (f"{each.wanted:.9g}",)),
                *(f"{number:.9g}" for number in (each.got, each.reference, each.low, each.high)),
            )
            for each in first.elements
        ]
        print_table(headings, rows, right=headings[1:])


def _show_nodes(nodes: Sequence[Node], most: int = MOST) -> None:
    _table(("node", "NMSE"), [(_title(each), _error(each.nmse)) for each in nodes], right=("NMSE",), most=most)


def _show_rest(wrong: Sequence[WrongNode]) -> None:
    rows = [(_title(each.node), each.device, each.kernel, _error(each.nmse)) for each in wrong]
    _table(("node", "device", "kernel", "NMSE"), rows, right=("NMSE",))


def _table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = (), most: int = MOST
) -> None:
    """Prints at most ``most`` rows: the first ones, the last one, and how many are left out between them."""
    left = len(rows) - most
    head = rows if left <= 0 else rows[: most - 1]
    print_table(headings, head if left <= 0 else [*head, rows[-1]], right=right)
    if left > 0:
        _say(f"({left} rows before the last one are omitted; --json prints all)")


def _say(text: str, by: int = 0) -> None:
    """Prints a line, indented by ``by`` columns and wrapped; its continuation lines are indented by two more."""
    first, *others = fold(text, max(columns() - by - 2, 1))
    for line in (first, *(f"  {other}" for other in others)):
        echo(" " * by + line)


def _title(node: Node) -> str:
    return f"{node.number} {node.op} {on_one_line(node.name)}".rstrip()


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
