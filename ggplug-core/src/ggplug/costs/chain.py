"""The placement of a chain of layers that takes the least time and fits into the memory of the devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Layer(NamedTuple):
    """What each device takes for a layer: seconds, and bytes that it then holds.

    ``move``: by the device of the layer before and that of this one, the seconds until this one can read its result.
    """

    seconds: Sequence[float]
    nbytes: Sequence[int]
    move: Sequence[Sequence[float]]


class _Label(NamedTuple):
    """The layers so far: their time, what each device holds, and the placement of the last one."""

    seconds: float
    held: tuple[int, ...]
    device: int
    before: _Label | None


def cheapest(layers: Sequence[Layer], limits: Sequence[int | None]) -> tuple[float, list[int]] | None:
    """The least time in which a chain can be computed, and the device of each layer; None if nothing fits.

    ``limits``: the bytes that each device may hold; None: any number.  Exact: of all placements of the first layers,
    those are dropped that take longer than another one with the same last device and hold no less on any device.
    """
    kept = [_Label(0.0, (0,) * len(limits), -1, None)]
    for layer in layers:
        reached: list[_Label] = []
        for label in kept:
            for device, limit in enumerate(limits):
                held = list(label.held)
                held[device] += layer.nbytes[device]
                if limit is not None and held[device] > limit:
                    continue
                moved = 0.0 if label.device < 0 else layer.move[label.device][device]
                reached.append(_Label(label.seconds + moved + layer.seconds[device], tuple(held), device, label))
        kept = _undominated(reached, [device for device, limit in enumerate(limits) if limit is not None])
    if not kept:
        return None
    best: _Label | None = min(kept, key=lambda label: label.seconds)
    assert best is not None
    seconds, placed = best.seconds, []
    while best is not None and best.device >= 0:
        placed.append(best.device)
        best = best.before
    return seconds, placed[::-1]


def _undominated(labels: list[_Label], limited: Sequence[int]) -> list[_Label]:
    """The labels that no other one is better than; ``limited``: the devices whose bytes matter."""
    fastest: dict[tuple[int, ...], _Label] = {}
    for label in sorted(labels, key=lambda label: label.seconds):
        fastest.setdefault((label.device, *(label.held[device] for device in limited)), label)
    kept = []
    for device in {label.device for label in labels}:
        mine = [label for label in fastest.values() if label.device == device]
        held = np.array([[label.held[each] for each in limited] for label in mine], np.int64).reshape(len(mine), -1)
        # Those before are faster: a label is worse than one of them that holds no more anywhere.
        worse = np.tril((held[:, None] >= held[None]).all(axis=2), -1).any(axis=1)
        kept += [mine[number] for number in np.flatnonzero(~worse)]
    return kept
