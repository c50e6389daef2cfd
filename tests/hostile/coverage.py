"""What was drawn how often, and what to draw next."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence

from ggplug.ops.base import OPS
from ggplug.types import TYPES
from ggplug_testing.drawing.layouts import LAYOUTS

from .draw import Target
from .outcome import Outcome

Cell = tuple[str, str, str]
"""An op, one of its sources, and a layout or the name of a type."""


class Coverage:
    """Counts draws of each op and source by layout and by type, and aims at what was drawn least.

    What is refused or declined whenever it is drawn is drawn ``wanted`` times and no more.
    """

    def __init__(self, ops: Sequence[str], types: Sequence[str], seed: int, wanted: int = 200) -> None:
        self.rows = [(op, source) for op in ops for source in OPS[op].sources]
        self.types = list(types)
        self.wanted = wanted
        self.drawn: Counter[Cell] = Counter()
        self.computed: Counter[Cell] = Counter()
        self.cases: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self._known: dict[tuple[str, str], int] = {}
        self._random = random.Random(seed)
        self._seed = seed

    def next(self) -> str:
        """The name of the next case: it aims at what is most urgent, with a layout or type that is known to work."""
        row = min(self.rows, key=lambda each: (self._least(each), self._random.random()))
        cell = self._urgent(row, (*LAYOUTS, *self.types))
        layout = cell if cell in LAYOUTS else self._working(row, list(LAYOUTS))
        kind = cell if cell not in LAYOUTS else self._working(row, self.types)
        target = Target(*row, layout, kind)
        number = self.cases["/".join(target)]
        self.cases["/".join(target)] += 1
        # Counted now, so that several children do not all draw the same.
        self._count((*row, layout))
        self._count((*row, kind))
        return target.case(self._seed * 1_000_000 + number)

    def note(self, name: str, outcome: Outcome) -> None:
        """Counts the outcome of a case."""
        self.outcomes[outcome.how] += 1
        op, source, layout, kind, _ = name.split("/")
        if outcome.how not in ("right", "raised"):
            return  # because of what it aimed at: of the other sources it says nothing
        for each in outcome.uses:
            use = Target(*each)
            for cell, aimed in (((op, use.source, use.layout), layout), ((op, use.source, use.type), kind)):
                if use.source != source or cell[2] != aimed:
                    self._count(cell)
                self.computed[cell] += 1

    def _count(self, cell: Cell) -> None:
        self.drawn[cell] += 1
        self._known.pop(cell[:2], None)

    def _weight(self, cell: Cell) -> int:
        """How urgent a cell is: the smaller, the sooner."""
        drawn, computed = self.drawn[cell], self.computed[cell]
        if computed:
            return max(computed, drawn // 8)
        # What was always refused can wait a little.
        return 3 * drawn if drawn < self.wanted else 1 << 40

    def _urgent(self, row: tuple[str, str], names: Sequence[str]) -> str:
        return min(names, key=lambda each: (self._weight((*row, each)), self._random.random()))

    def _working(self, row: tuple[str, str], names: list[str]) -> str:
        """A layout or type that was computed before, or was not tried often yet."""
        known = [name for name in names if self.computed[*row, name] or self.drawn[*row, name] < 3]
        return self._random.choice(known or names)

    def _least(self, row: tuple[str, str]) -> int:
        known = self._known.get(row)
        if known is None:
            known = self._known[row] = min(self._weight((*row, name)) for name in (*LAYOUTS, *self.types))
        return known

    def missing(self) -> list[str]:
        """What was drawn less often than wanted, with its count."""
        cells = ((*row, name) for row in self.rows for name in (*LAYOUTS, *self.types))
        return [f"{' '.join(cell)}: {self.drawn[cell]}" for cell in cells if self.drawn[cell] < self.wanted]

    def never(self, ops: Iterable[str] | None = None) -> list[str]:
        """The sources that no case computed."""
        chosen = [row for row in self.rows if ops is None or row[0] in ops]
        return [" ".join(row) for row in chosen if not any(self.computed[*row, name] for name in LAYOUTS)]

    def table(self) -> str:
        """Draws of each source by layout and type: computed/drawn; ``-`` where nothing was ever computed."""
        plain = [t.name for t in TYPES if not t.is_quantized and t.name in self.types]
        coded = [t.name for t in TYPES if t.name in ("q4_0", "q8_0") and t.name in self.types]
        others = [t for t in self.types if t not in plain and t not in coded]
        columns = [*LAYOUTS, *plain, *coded, *(["other blocks"] if others else [])]
        heads = [name.replace(" ", "_")[:9] for name in columns]
        lines = [f"{'op source':28s}" + "".join(f"{head:>10s}" for head in heads) + f"{'least':>7s}"]
        for row in self.rows:
            cells = []
            for column in columns:
                names = others if column == "other blocks" else [column]
                drawn = min(self.drawn[*row, name] for name in names)
                computed = sum(self.computed[*row, name] for name in names)
                cells.append(f"{computed if computed else '-'}/{drawn}")
            least = min(self.drawn[*row, name] for name in (*LAYOUTS, *self.types))
            lines.append(f"{' '.join(row):28s}" + "".join(f"{cell:>10s}" for cell in cells) + f"{least:7d}")
        missing = self.missing()
        counts = (self.drawn[*row, name] for row in self.rows for name in (*LAYOUTS, *self.types))
        lines.append(f"smallest count: {min(counts, default=0)}")
        names = "; ".join(missing[:20]) + (f"; and {len(missing) - 20} more" if len(missing) > 20 else "")
        lines.append(f"drawn less than {self.wanted} times: {names or 'nothing'}")
        return "\n".join(lines)
