"""How ``ggplug compare`` and ``ggplug graph compare`` compare two devices, and how they show what they found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

import ggplug as gg
from ggplug.backend import Device
from ggplug.cli.output import columns, echo, on_one_line, print_json, print_table, progress
from ggplug.cli.table import fold
from ggplug.graph import Graph
from ggplug.types import DeviceKind

if TYPE_CHECKING:
    from ggplug.testing import Differences, WrongNode
    from ggplug_testing.judging.differences import Node

F = TypeVar("F", bound=Callable[..., Any])

MOST = 10
"""Rows of each table."""

_OPTIONS = (
    click.option(
        "--device",
        "devices",
        multiple=True,
        metavar="NAME",
        help="Give it twice: first the device that is trusted, then the device that is compared with it.",
    ),
    click.option(
        "--reference", is_flag=True, help="Compare both devices with the float64 reference of each operation; slower."
    ),
    click.option(
        "--groups/--no-groups",
        default=True,
        show_default=True,
        help="Whether devices compute nodes in groups (fused kernels), as they normally do, or one at a time.",
    ),
)


def comparison_options(command: F) -> F:
    """Decorator that adds the options ``devices``, ``reference`` and ``groups``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def two_devices(options: Sequence[str]) -> tuple[Device, Device]:
    """The devices of ``--device A --device B``, or ``--device A,B``.  Raises UsageError, DeviceNotFoundError."""
    names = [name for option in options for name in option.split(",")]
    if len(names) != 2:
        raise click.UsageError("Give two devices: --device A --device B.")
    first, second = map(gg.device, names)
    return first, second


def with_cpu(device: Device) -> list[Device]:
    """The device, and a CPU after it for the nodes that the device declines."""
    return [device, *(cpu for cpu in gg.devices_by_kind(DeviceKind.CPU)[:1] if cpu is not device)]


def show_comparison(
    graphs: tuple[Graph, Graph],
    devices: tuple[Device, Device],
    *,
    reference: bool,
    groups: bool,
    as_json: bool,
    values: dict[gg.Tensor, Any] | None = None,
    **more: Any,
) -> None:
    """Compares two devices with equal graphs, one over weights for each, and prints what it found.

    ``values``: of leafs, see :func:`ggplug.testing.compare`.  ``more``: what the JSON says as well.  Exits with 1 if a
    node differs by more than its tolerance.
    """
    from ggplug.testing import compare

    with progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()) as bar:
        task = bar.add_task("comparing nodes", total=None)
        found = compare(
            graphs,
            *devices,
            values=values,
            reference=reference,
            groups=groups,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if as_json:
        print_json({**found.to_dict(), **more})
    else:
        _show(found)
    if not found.ok:
        click.get_current_context().exit(1)


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
