"""The families: which model of ``transformers`` each is, and what its file says."""

from __future__ import annotations

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
