"""The losses of epochs, drawn as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from ggplug.opt.epochs import Epoch
from ggplug.system.files import replacing

_WIDTH, _HEIGHT, _EDGE = 640, 360, 48


def draw_curves(epochs: Sequence[Epoch], path: str | Path) -> None:
    """Writes a picture of the losses, by epoch, as ``.svg``: of learning in blue, of validation in orange.

    Losses that are NaN or infinite are left out.
    """
    curves = {
        "loss": ("#1f77b4", _finite([each.loss for each in epochs])),
        "validation": ("#ff7f0e", _finite([each.validation_loss for each in epochs])),
    }
    highest = max((max(values.values()) for _, values in curves.values() if values), default=1.0) or 1.0
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<path d="M{_EDGE} {_EDGE}V{_HEIGHT - _EDGE}H{_WIDTH - _EDGE}" fill="none" stroke="black"/>',
        f'<text x="{_EDGE - 6}" y="{_EDGE}" text-anchor="end" font-size="12">{highest:.3g}</text>',
        f'<text x="{_EDGE - 6}" y="{_HEIGHT - _EDGE}" text-anchor="end" font-size="12">0</text>',
        f'<text x="{_WIDTH - _EDGE}" y="{_HEIGHT - _EDGE + 18}" text-anchor="end" font-size="12">'
        f"epoch {len(epochs)}</text>",
    ]
    for number, (name, (colour, values)) in enumerate(curves.items()):
        if values:
            across = (_WIDTH - 2 * _EDGE) / max(1, len(epochs) - 1)
            down = _HEIGHT - 2 * _EDGE
            places = (
                f"{_EDGE + i * across:.1f},{_HEIGHT - _EDGE - each / highest * down:.1f}" for i, each in values.items()
            )
            lines.append(f'<polyline points="{" ".join(places)}" fill="none" stroke="{colour}" stroke-width="2"/>')
            lines.append(
                f'<text x="{_WIDTH - _EDGE}" y="{_EDGE + 16 * number}" text-anchor="end" fill="{colour}">{name}</text>'
            )
    with replacing(path) as file:
        file.write("\n".join([*lines, "</svg>", ""]).encode())


def _finite(losses: Sequence[float | None]) -> dict[int, float]:
    """The losses that can be drawn, by the place of their epoch."""
    return {place: each for place, each in enumerate(losses) if each is not None and math.isfinite(each)}
