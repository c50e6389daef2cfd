"""A placement drawn as SVG: what each device holds of its budget, and the device of each layer's parts."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from ggplug.cli.output import byte_count
from ggplug_models.weights.rules import CACHE, is_expert, layer_of

if TYPE_CHECKING:  # the command that draws has made the fit
    from ggplug_models.fitting import Fit

WIDTH, LEFT, ROW = 720, 92, 26
"""Pixels: of the picture, of the words on its left, and from one row to the next."""

DEVICES = ("#4878a8", "#d8863b", "#5f9e6e", "#a05a8c", "#8c8c50", "#777777")
PARTS = {"weights": 1.0, "mapped": 0.7, "cache": 0.45, "compute": 0.22}
"""What a device holds, as the table of ``ggplug fit`` has it, and the opacity with which it is drawn."""


def picture(fit: Fit) -> str:
    """The text of the picture.

    For each device a bar: what it holds, in a frame that is its budget.  Below, for each layer, the device of its
    weights, of its experts and of its cache.
    """
    height = ROW * (len(fit.holdings) + 5)
    colours = {each.device.name: DEVICES[n % len(DEVICES)] for n, each in enumerate(fit.holdings)}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(8, 17, f"{fit.placement}; context of {fit.n_ctx} tokens"),
        *_bars(fit, colours),
        *_layers(fit, colours, ROW * (len(fit.holdings) + 1) + 8),
        *_legend(colours, height - 8),
    ]
    return "\n".join([*lines, "</svg>", ""])


def _bars(fit: Fit, colours: dict[str, str]) -> Iterator[str]:
    largest = max(max(each.total, each.budget or 0) for each in fit.holdings) or 1
    scale = (WIDTH - LEFT - 170) / largest
    for number, each in enumerate(fit.holdings):
        x, y, colour = float(LEFT), ROW * (number + 1) + 4, colours[each.device.name]
        yield _text(8, y + 13, each.device.name)
        sizes = (each.weights + each.packed, each.mapped, each.cache, each.compute + each.workspace)
        for size, opacity in zip(sizes, PARTS.values(), strict=True):
            yield _box(x, y, scale * size, f'fill="{colour}" fill-opacity="{opacity}"')
            x += scale * size
        budget = each.total if each.budget is None else each.budget
        yield _box(LEFT, y, scale * budget, f'fill="none" stroke="{colour}"')
        yield _text(LEFT + scale * largest + 8, y + 13, f"{byte_count(each.total)} of {byte_count(budget)}")


def _layers(fit: Fit, colours: dict[str, str], y: int) -> Iterator[str]:
    rows = _rows(fit)
    count = 1 + max((layer for row in rows.values() for layer in row), default=0)
    step = (WIDTH - LEFT - 16) / count
    for name, row in rows.items():
        yield _text(8, y + 13, name)
        for layer, device in row.items():
            yield _box(LEFT + layer * step, y, step - min(2, step / 4), f'fill="{colours[device]}"')
        y += ROW - 6


def _rows(fit: Fit) -> dict[str, dict[int, str]]:
    """The device of each layer's weights, experts and cache, by the number of the layer; empty rows are left out."""
    rows: dict[str, dict[int, str]] = {"weights": {}, "experts": {}, "cache": {}}
    assert fit.placed is not None
    for name, decision in fit.placed.decisions.items():
        layer = layer_of(name)
        if layer is not None:
            kind = "cache" if name.startswith(f"{CACHE}.") else "experts" if is_expert(name) else "weights"
            rows[kind].setdefault(layer, decision.device.name)
    if any(each.cache for each in fit.holdings):
        rows["cache"] = rows["weights"] | rows["cache"]
    return {name: dict(sorted(row.items())) for name, row in rows.items() if row}


def _legend(colours: dict[str, str], y: int) -> Iterator[str]:
    x = LEFT
    for name, colour in colours.items():
        yield _box(x, y - 11, 12, f'fill="{colour}"', 12)
        yield _text(x + 17, y, name)
        x += 34 + 7 * len(name)
    for name, opacity in PARTS.items():
        yield _box(x, y - 11, 12, f'fill="#000000" fill-opacity="{opacity}"', 12)
        yield _text(x + 17, y, name)
        x += 34 + 7 * len(name)


def _box(x: float, y: float, width: float, how: str, height: int = 16) -> str:
    return f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" {how}/>'


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.0f}" y="{y}">{escape(text)}</text>'
