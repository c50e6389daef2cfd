"""Reports what each device computes for a batch, from ggplug's hooks and the scheduler's explanation."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from rich import box
from rich.table import Table

import ggplug as gg
from ggplug.cli.output import byte_count
from ggplug.hookspecs import HOOKS
from ggplug_models import Encoder
from ggplug_models.commands.device_use import device_uses, ranges

BATCH = 32
"""Number of passages in the batch."""


class Watch:
    """A hook that notes the graph that was computed last, and the nanoseconds of each device."""

    def __init__(self) -> None:
        self.graph: gg.Graph | None = None
        self.busy: Counter[str] = Counter()

    @gg.hookimpl
    def ggplug_split_computed(self, graph: gg.Graph, device: gg.backend.Device, start: int, end: int) -> None:
        self.graph = graph
        self.busy[device.name] += end - start


@contextmanager
def watching() -> Iterator[Watch]:
    """A ``with`` block in which all computations are observed."""
    watch = Watch()
    HOOKS.register(watch)
    try:
        yield watch
    finally:
        HOOKS.unregister(watch)


def what_ran_where(model: Encoder, texts: list[str]) -> Table:
    """Computes the longest texts twice: once for the rate, once observed, for the work and time of each device."""
    ids = sorted(model.tokenizer.encode(texts), key=len)[-BATCH:]
    start = time.perf_counter()
    model.embed_ids(ids, batch=BATCH)
    rate = len(ids) / (time.perf_counter() - start)
    with watching() as watch:
        model.embed_ids(ids, batch=BATCH)
    assert watch.graph is not None
    explanation = model.scheduler.explain(watch.graph)
    ops: dict[str, Counter[str]] = defaultdict(Counter)
    for row in explanation.rows:
        if row.split >= 0:  # views compute nothing
            ops[row.device][row.op] += 1

    title = f"what ran where: sequences of up to {max(map(len, ids))} tokens, {len(ids)} at once, {rate:.0f} per second"
    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False
    )
    for column in ("device", "layers", "nodes", "ops", "copied to it", "time"):
        table.add_column(column, justify="right" if column in ("nodes", "copied to it", "time") else "left")
    for each in device_uses(model, explanation):
        named = " ".join(f"{op}×{count}" for op, count in ops[each.device].most_common())
        fraction = watch.busy[each.device] / max(watch.busy.total(), 1)
        size = byte_count(each.copied) if each.copied else "nothing"
        table.add_row(each.device, ranges(each.layers), str(each.nodes), named, size, f"{fraction:.0%}")
    return table
