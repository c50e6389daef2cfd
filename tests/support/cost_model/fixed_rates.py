"""Times of devices that do not depend on sizes, for tests of the cost model."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ggplug.backend import Device
from ggplug.costs.model import CostModel
from ggplug.costs.rates import Rates
from ggplug.costs.work import Work


class FixedRates(Rates):
    """Seconds of a kernel (some ops' by name, ``kernel`` for all others), of a split, and of a copy."""

    def __init__(self, kernel: float = 1e-6, split: float = 1e-6, copy: float = 1e-6, **ops: float) -> None:
        super().__init__()
        self.others, self.each_copy, self.ops = kernel, copy, ops
        self.note_split(split, 0.0)

    def kernel(self, work: Work) -> float:
        return self.ops.get(work.what.partition(" ")[0], self.others)

    def copy(self, source: str, nbytes: int) -> float:
        return self.each_copy


def random_costs(rng: random.Random, devices: Sequence[Device], ops: Sequence[str]) -> CostModel:
    """Random times of some ops on each device: a hundred times as long on one as on another, or more."""

    def times() -> FixedRates:
        slower = rng.choice((1, 100))
        of = {op: slower * rng.choice((1e-6, 1e-5, 1e-4)) for op in ops}
        return FixedRates(slower * 1e-6, rng.choice((0.0, 1e-5)), rng.choice((1e-7, 1e-5)), **of)

    return CostModel({device: times() for device in devices})
