"""The searches of encoders for rows of grids, on all threads, for :func:`ggplug.quants.quantize`."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.quants import grid_search
from ggplug.quants.grid_search import Lattice, Sorted, sums_up_to, terms_apart
from ggplug_cpu.parameters import Place
from ggplug_cpu.quantization.grid_search import Magnitudes, search_magnitudes
from ggplug_cpu.quantization.sorted_search import Runs, search_runs
from ggplug_cpu.tape import Entry, Tape
from ggplug_cpu.team import Team

Floats = npt.NDArray[np.float32]


class CompiledSearches:
    """A :class:`ggplug.quants.grid_search.Searches` whose kernels run on ``team``."""

    def __init__(self, team: Team) -> None:
        self._team = team

    def magnitudes(
        self, x: Floats, weights: Floats, how: grid_search.Magnitudes
    ) -> tuple[Floats, npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
        """See :func:`ggplug.quants.grid_search.search_magnitudes`."""
        n, width = x.shape[1], how.lattice.width
        tables = _tables(how.lattice)
        groups, worth = np.ascontiguousarray(x.T), np.ascontiguousarray(weights.T)
        scale = np.empty(n, np.float32)
        rows = np.empty((n, how.size // width), np.int32)
        signs = np.empty((n, how.size // 8), np.uint8)
        words = Magnitudes.words(
            **{name: _place(table) for name, table in tables.items()},
            x=_place(groups),
            weights=_place(worth),
            scale=_place(scale),
            row=_place(rows),
            signs=_place(signs),
            groups=n,
            step=float(np.float32(how.step)),
            least=float(np.float32(how.least)),
        )
        kernel = search_magnitudes(how.size, width, how.tries, how.even, how.again, how.from_all)
        self._team.run(Tape([Entry(kernel, words)]).bind())
        return scale, np.ascontiguousarray(rows.T), np.ascontiguousarray(signs.T)

    def signs(
        self, x: Floats, weights: Floats, lattice: Lattice, least: float, eighth: float, halves: int
    ) -> tuple[Floats, npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """See :func:`ggplug.quants.grid_search.search_signs`."""
        return grid_search.search_signs(x, weights, lattice, least, eighth, halves, self._borders)

    def _borders(self, groups: Sorted, scale: Floats) -> tuple[Floats, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """See :func:`ggplug.quants.grid_search.best_borders`."""
        size, n = groups.x.shape
        # the numbers of each group are contiguous, and the ways are innermost
        made = terms_apart(groups) if groups.is_apart else sums_up_to(groups)
        terms, squares = (np.ascontiguousarray(np.moveaxis(each, -1, 0)) for each in made)
        found, borders = scale.copy(), np.empty((n, 3), np.int32)
        levels = np.ascontiguousarray(groups.levels.T)
        words = Runs.words(
            terms=_place(terms),
            squares=_place(squares),
            levels=_place(levels),
            scale=_place(found),
            borders=_place(borders),
            groups=n,
        )
        self._team.run(Tape([Entry(search_runs(size, len(groups.downwards), groups.is_apart), words)]).bind())
        wide = borders.T.astype(np.int64)
        return found, wide[:2], wide[2]


def _place(array: npt.NDArray[Any]) -> Place:
    return Place(array.ctypes.data)


@functools.cache
def _tables(lattice: Lattice) -> dict[str, npt.NDArray[Any]]:
    """The tables of a lattice, as :class:`ggplug_cpu.quantization.grid_search.Grid` has them."""
    levels = 3 if lattice.width == 8 else 8
    points = np.indices((levels,) * lattice.width).reshape(lattice.width, -1)
    codes = lattice.code(points)
    between = codes[lattice.row_of[codes] < 0]
    near = lattice.near(between)
    some = near >= 0
    counts = some.sum(axis=1)
    starts = np.concatenate([[0], np.cumsum(counts + 1)])
    words = np.zeros(starts[-1] + 2, np.int32)  # two words more, which the code of a row loads and ignores
    words[starts[:-1]] = counts
    behind = np.ones(len(words), np.bool_)
    behind[starts[:-1]] = False
    behind[starts[-1] :] = False
    words[behind] = near[some]
    rows = lattice.row_of.copy()
    rows[between] = -1 - starts[:-1]
    return {"rows": rows, "near": words, "levels": lattice.digits.astype(np.int8)}
