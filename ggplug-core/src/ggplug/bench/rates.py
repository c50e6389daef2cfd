"""An instrument that holds the others' figures against goals: how much of what a machine gives each line reaches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ggplug import quants, types
from ggplug.backend import Device
from ggplug.bench.attention import Attention
from ggplug.bench.moves import Convolution, Moves
from ggplug.bench.products import MatrixMatrix, MatrixVector
from ggplug.registry.extras import Instrument, Options

Row = Mapping[str, Any]

OF_READING = "of a streaming read"
OF_NUMPY = "of NumPy's float32 product"
OF_TORCH = "of PyTorch's product"
OF_OWN_INT8 = "of the device's Q8_0"
OF_OWN_FLOAT = "of the device's float32"

SIMPLE = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_K", "q5_K", "q6_K", "iq4_nl", "mxfp4")
"""Block types whose products with one column are to be bound by memory as plain types' are."""
DENSER = ("q2_K", "q3_K", "iq4_xs", "nvfp4", "tq2_0", "q2_0")
"""Block types that have more to compute for each byte."""


@dataclass(frozen=True)
class Goal:
    """``least`` of what ``unit`` says, for a case of an instrument."""

    instrument: str
    case: str
    unit: str
    least: float


def one_column() -> list[Goal]:
    least = dict.fromkeys((t.name for t in (*types.KERNEL_FLOATS, *quants.block_types())), 0.35)
    least |= dict.fromkeys(DENSER, 0.6)
    least |= dict.fromkeys((*(t.name for t in types.KERNEL_FLOATS), *SIMPLE), 0.9)
    least.pop("q8_K", None)  # activations of other libraries: no weights have this type
    return [Goal("matvec", name, OF_READING, least_ratio) for name, least_ratio in least.items()]


def many_columns() -> list[Goal]:
    plain = [Goal("matmul", name, OF_TORCH, least) for name, least in (("f32", 0.95), ("f16", 0.95), ("bf16", 0.9))]
    blocks = (t.name for t in quants.block_types() if t.name not in ("q8_0", "q8_K"))
    return [*plain, *(Goal("matmul", name, OF_OWN_INT8, 0.8) for name in blocks)]


def others() -> list[Goal]:
    moved = [Goal("moves", case, OF_READING, 0.7) for case in Moves.CASES]
    return [
        Goal("attention", "1 query, f16", OF_READING, 0.85),
        Goal("attention", f"{Attention.QUERIES} queries, f16", OF_NUMPY, 1.5),
        *(Goal("convolution", f"conv_2d_direct, {kind.name}", OF_OWN_FLOAT, 0.5) for kind in Convolution.KINDS),
        *moved,
    ]


class Rates:
    """Lines with their goals, by ratios of functions that were measured alternately."""

    name = "rates"
    description = "what each type and op reaches of what the machine gives, and where that falls short of its goal"
    runs_by_name = True

    def __init__(self, instruments: Sequence[Instrument] | None = None) -> None:
        self.instruments = instruments or (MatrixVector(), MatrixMatrix(), Attention(), Moves(), Convolution())

    def run(self, device: Device, options: Options) -> Iterator[Row]:
        goals = [*one_column(), *many_columns(), *others()]
        measured = {each.name: list(each.run(device, options)) for each in self.instruments}
        for goal in goals:
            yield {"case": f"{goal.instrument} {goal.case}", **judged(goal, measured.get(goal.instrument, []))}


def judged(goal: Goal, rows: Iterable[Row]) -> dict[str, Any]:
    """The goal, what was reached, and whether that is enough; or a note that says why there is no figure."""
    row = next((row for row in rows if row["case"] == goal.case), None)
    if row is None:
        return {"note": "not measured"}
    if "note" in row:
        return {"note": row["note"]}
    reached = row.get(_REACHED[goal.unit])
    if reached is None:
        missing = "--peers and PyTorch are needed" if goal.unit == OF_TORCH else "not measured on this device"
        return {"note": f"{missing} for the ratio {goal.unit}"}
    return {
        "goal": f"{goal.least:g} {goal.unit}",
        "reached": round(reached, 2),
        "met": "yes" if reached >= goal.least else "falls short",
    }


_REACHED = {
    OF_READING: "fraction_of_streaming",
    OF_OWN_INT8: "relative_to_q8_0",
    OF_NUMPY: "relative_to_numpy",
    OF_TORCH: "relative_to_torch",
    OF_OWN_FLOAT: "relative_to_product",
}
"""Unit of a goal -> the figure of a row that it is about."""
