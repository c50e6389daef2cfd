"""``ggplug ops``: which device computes which op in which type, and why not."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

import click

from ggplug.backend import Device
from ggplug.cli.app import warnings_held_back
from ggplug.cli.output import Command, echo, json_option, print_json, print_table
from ggplug.errors import DeviceNotFoundError, ParameterError
from ggplug.gradients import Missing, Part, rule_of
from ggplug.ops.base import OPS, Op
from ggplug.ops.listing import markdown
from ggplug.quants import block_types
from ggplug.registry import REGISTRY
from ggplug.sketches import EXTENTS, Outlines, maker, sketches
from ggplug.sketches.offers import Offer, offers
from ggplug.types import FLOATS, KERNEL_FLOATS, TYPES, Type, by_name


@click.command(cls=Command, epilog=f"Types: {', '.join(kind.name for kind in TYPES)}.")
@click.option("--device", "names", multiple=True, metavar="NAME", help="Only this device; may be repeated.")
@click.option("--op", "chosen", multiple=True, metavar="NAME", help="Only this op, in full; may be repeated.")
@click.option("--type", "types", multiple=True, metavar="NAME", help="Only this type, in full; may be repeated.")
@click.option("--markdown", "as_page", is_flag=True, help="Print the page docs/ops.md.")
@json_option
def ops(names: Sequence[str], chosen: Sequence[str], types: Sequence[str], as_page: bool, as_json: bool) -> None:
    """Show which device computes which op in which types.

    A type is that of one of an op's sources, mostly the first. With --op or --type the command shows every answer of
    the device, with the reason of each refusal. Without options it lists every op, even where there is no device.
    """
    with warnings_held_back():
        devices = [REGISTRY.device(name) for name in names] if names else list(REGISTRY.devices())
    if not devices and not (chosen or types or as_page or as_json):
        print_table(["op", "sources"], ([name, ", ".join(cls.sources)] for name, cls in OPS.items() if not cls.is_view))
        echo("There is no device; install a backend, such as ggplug-cpu.")
        return
    if not devices:
        raise DeviceNotFoundError("there is no device", remedy="install a backend, such as ggplug-cpu")
    classes = [_op(name) for name in chosen] if chosen else [cls for cls in OPS.values() if not cls.is_view]
    kinds = [by_name(name) for name in types] if types else list(TYPES)
    found = list(offers(devices, classes, kinds))
    if as_json:
        print_json([offer._asdict() for offer in found])
    elif as_page:
        echo(page(devices, found).rstrip("\n"))
    elif chosen or types:
        if not found:
            echo("No op has an example node with sources of these types.")
            return
        print_table(["op", "type", "device", "answer"], map(_answer, found))
    else:
        print_table(["op", *(device.name for device in devices)], _rows(devices, found))
        echo("In brackets: types for which the device computes only some nodes; ggplug ops --op NAME says why.")


def page(devices: Sequence[Device], found: Sequence[Offer]) -> str:
    """``docs/ops.md``: the declarations, then who computes what, and why not."""
    lines = [
        "## Devices",
        "",
        "In which types of a source, mostly the first, a device computes an op: made by `ggplug ops`, which asks about",
        "nodes of the conformance suite. In brackets: types in which it computes some of them only. `blocks` are all",
        "block types, `floats` f32, f16 and bf16.",
        "",
        f"| op | {' | '.join(device.name for device in devices)} |",
        f"| --- |{' --- |' * len(devices)}",
    ]
    lines += [f"| `{name}` | {' | '.join(cells)} |" for name, *cells in _rows(devices, found)]
    lines += ["", "### What is declined, and why", "", "| device | ops | types | the reason, of the first |"]
    lines.append("| --- | --- | --- | --- |")
    for (device, types, _), refused in _alike(found).items():
        reason = refused[0].reasons[0].replace("|", "\\|")
        names = ", ".join(f"`{each.op}`" for each in refused)
        lines.append(f"| {device} | {names} | {types} | {reason} |")
    return f"{markdown()}\n" + "\n".join([*lines, "", *_differentiated()]) + "\n"


def _differentiated() -> list[str]:
    """The section on gradients: which sources of each op get one, by its rule."""
    got: list[str] = []
    constant: list[str] = []
    without: list[str] = []
    for cls in OPS.values():
        if not cls.__module__.startswith("ggplug.ops."):
            continue
        parts = _parts(cls)
        if parts is None:
            without.append(f"`{cls.name}`")
        elif not any(parts.values()):
            constant.append(f"`{cls.name}`")
        else:
            sources = ", ".join(name for name, part in parts.items() if callable(part))
            missing = [f"{name}: {part.reason}" for name, part in parts.items() if isinstance(part, Missing)]
            got.append(f"| `{cls.name}` | {sources} | {'; '.join(missing)} |")
    text = (
        "The sources of each op that get a gradient in `Graph.backward`, by the op's rule in `ggplug.gradients`; and "
        "those that may not get one, with the reason. Quantised sources get none, and gradients pass no quantised "
        f"result. No gradient passes ops that are constant almost everywhere: {', '.join(constant)}. "
        f"These ops have no rule: {', '.join(without)}."
    )
    return [
        "## Gradients",
        "",
        *textwrap.wrap(text, 120, break_on_hyphens=False),
        "",
        "| op | gradients of | none, and why |",
        "| --- | --- | --- |",
        *got,
    ]


def _parts(cls: type[Op]) -> dict[str, Part] | None:
    """What the rule of an op has for each source, by its name; None if it has no rule."""
    rule = rule_of(cls)
    if rule is None:
        return None
    sketch = max(sketches(cls), key=lambda each: len(each.sources))
    node = maker(cls, sketch, EXTENTS, sketch.layouts())(Outlines())
    if sketch.view is not None:
        node = next(each for each in node.src if each is not None)
    parts: list[Part]
    if rule.gradient is not None:
        parts = list(rule.gradient(node, node))
    else:
        floats = [each is not None and (each.type in FLOATS or each.type.is_quantized) for each in node.src]
        parts = [(lambda: node) if each else None for each in floats]
    return dict(zip(cls.sources, parts, strict=True))


def _op(name: str) -> type[Op]:
    if name not in OPS:
        raise ParameterError(f"there is no op {name!r}", got=name, remedy="ggplug ops lists them")
    return OPS[name]


def _answer(offer: Offer) -> list[str]:
    if not offer.reasons:
        answer = "yes"
    else:
        some = f"{offer.accepted} of {offer.nodes} nodes; " if offer.accepted else ""
        answer = f"{some}{'; '.join(offer.reasons)}"
    return [offer.op, offer.type, offer.device, answer]


def _rows(devices: Sequence[Device], found: Iterable[Offer]) -> list[list[str]]:
    """A row for each op: its name, and for each device the types that it takes."""
    grouped = _grouped(found)
    names = list(dict.fromkeys(op for op, _ in grouped))
    return [[name, *(_taken(grouped.get((name, device.name), [])) for device in devices)] for name in names]


def _alike(found: Iterable[Offer]) -> dict[tuple[str, str, str], list[Offer]]:
    """Of each op that is declined in some types one offer: by device, types, and the reason without the op's name."""
    alike: dict[tuple[str, str, str], list[Offer]] = {}
    for (op, device), refused in _grouped(offer for offer in found if offer.reasons).items():
        types = _spelled([offer.type for offer in refused])
        alike.setdefault((device, types, refused[0].reasons[0].replace(op, "")), []).append(refused[0])
    return alike


def _grouped(found: Iterable[Offer]) -> dict[tuple[str, str], list[Offer]]:
    grouped: dict[tuple[str, str], list[Offer]] = {}
    for offer in found:
        grouped.setdefault((offer.op, offer.device), []).append(offer)
    return grouped


def _taken(found: Sequence[Offer]) -> str:
    whole = _spelled([offer.type for offer in found if not offer.reasons])
    some = _spelled([offer.type for offer in found if offer.reasons and offer.accepted])
    return " ".join(filter(None, [whole, f"({some})" if some else ""])) or "-"


def _spelled(names: Sequence[str]) -> str:
    """Types in short."""
    rest: list[str] = list(names)
    labels: list[str] = []
    for label, kinds in (("floats", KERNEL_FLOATS), ("blocks", block_types())):
        members = _names(kinds)
        if set(members) <= set(rest):
            labels.append(label)
            rest = [name for name in rest if name not in members]
    return ", ".join([*labels, *rest])


def _names(kinds: Iterable[Type]) -> list[str]:
    return [kind.name for kind in kinds]
