"""Gradients, computed by graphs of ops: a rule for each op, and the backward pass that applies them.

=================  =============================================================================================
:mod:`.rules`      how ops get their rules, and what rules are made of
:mod:`.elements`   the rules of a family of ops; so are :mod:`.copies`, :mod:`.reductions`, :mod:`.matrix`,
                   :mod:`.rows`, :mod:`.rotary`, :mod:`.attention`, :mod:`.images`, :mod:`.triangles`,
                   :mod:`.recurrent` and :mod:`.deepseek`
:mod:`.expansion`  the backward pass
:mod:`.graphs`     :meth:`ggplug.Graph.backward`
:mod:`.functions`  :func:`ggplug.grad` and :func:`ggplug.value_and_grad`
:mod:`.recomputed` :func:`ggplug.remat`
=================  =============================================================================================
"""

from ggplug.gradients import attention as _attention  # noqa: F401 - these have the rules
from ggplug.gradients import copies as _copies  # noqa: F401
from ggplug.gradients import deepseek as _deepseek  # noqa: F401
from ggplug.gradients import elements as _elements  # noqa: F401
from ggplug.gradients import images as _images  # noqa: F401
from ggplug.gradients import matrix as _matrix  # noqa: F401
from ggplug.gradients import recurrent as _recurrent  # noqa: F401
from ggplug.gradients import reductions as _reductions  # noqa: F401
from ggplug.gradients import rotary as _rotary  # noqa: F401
from ggplug.gradients import rows as _rows  # noqa: F401
from ggplug.gradients import triangles as _triangles  # noqa: F401
from ggplug.gradients.expansion import Expansion
from ggplug.gradients.functions import grad, value_and_grad
from ggplug.gradients.graphs import backward
from ggplug.gradients.recomputed import remat
from ggplug.gradients.rules import RULES, Into, Missing, Part, Parts, Rule, formula, gradient, rule_of

__all__ = [
    "RULES",
    "Expansion",
    "Into",
    "Missing",
    "Part",
    "Parts",
    "Rule",
    "backward",
    "formula",
    "grad",
    "gradient",
    "remat",
    "rule_of",
    "value_and_grad",
]
