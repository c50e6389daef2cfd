"""The families: which model of ``transformers`` each is, and what its file says."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable, Sequence

from oracles.attention import ATTENTION
from oracles.dense import DENSE
from oracles.encoders import ENCODERS
from oracles.experts import EXPERTS
from oracles.family import Family
from oracles.hybrids import DELTAS, HYBRIDS
from oracles.mixtures import MIXTURES
from oracles.rankers import RANKERS
from oracles.recent import RECENT
from oracles.relatives import NEWER, RELATIVES
from oracles.states import STATES
from oracles.theirs import THEIRS

FAMILIES: dict[str, Family] = {
    **ATTENTION,
    **DENSE,
    **EXPERTS,
    **MIXTURES,
    **HYBRIDS,
    **DELTAS,
    **RELATIVES,
    **NEWER,
    **RECENT,
    **STATES,
    **ENCODERS,
    **RANKERS,
    **THEIRS,
}


def known(parser: ArgumentParser, names: Sequence[str], table: Iterable[str]) -> list[str]:
    """The names that were given, or all of the table; the program ends if one is not in it."""
    if unknown := set(names).difference(table):
        parser.error(f"no table has {', '.join(sorted(unknown))}; there are {', '.join(sorted(table))}")
    return list(names or table)
