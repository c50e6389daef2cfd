"""How precise a result has to be: one table, a rule for each kind of op, and the derivation of each rule.

A rule says how far a result may be from what the op's reference gives in float64, before both are rounded to the
result's type.  It counts roundings to float32 in the op's formula *as the docstring writes it*, each of them off by at
most ``UNIT = 2**-24`` of the number that is rounded.  So a device may compute the formula in float32, operation by
operation, in any order; it may be more precise, and it may not store numbers on the way in fewer bits.  The rule
depends on the values that a case has, never on an error that was measured.

**Elements.**  ``tolerance`` is an absolute distance for each element: a number of roundings times the size of what was
rounded.  A result is right where it lies between ``rounded(exact - tolerance)`` and ``rounded(exact + tolerance)``,
rounded to the nearest number of the result's type, ties to even.  So with the tolerance 0 it has to be the nearest
number itself: a result that was stored in fewer bits, or cut off in the place of rounded, is outside.  Functions of a
number may be as imprecise as OpenCL C allows them to be in its full profile (OpenCL C 3.0, section 7.4), whose limits
other vendors' libraries keep too: exp and log 3 units in the last place (each at most 2 roundings), division 2.5, sqrt
3, sin and cos 4, tanh 5, erf 16.  Numbers below float32's smallest normal one, ``2**-126``, may be flushed to zero.
One formula takes more than float32: the angles of rope, at positions beyond some hundreds.

**Sums.**  The order of a sum is left open, so each of n additions may round a number about as large as the sum, or as
the sum of some of its terms: sqrt(sum of squares of the terms) for terms of any sign; twice that is ``size`` if the sum
itself is not larger.  Roundings are independent of each other, each with the standard deviation UNIT / sqrt(3), so
their sum has sqrt(n / 3) UNIT size (N. J. Higham, T. Mary, *A new approach to probabilistic rounding error analysis*,
SIAM J. Sci. Comput. 41, 2019).  Six standard deviations are allowed.  Where a result has many elements their mean
square error is held to the standard deviation itself: at most ``2 (1 + 6 sqrt(2 / N))`` times its square for N
elements, six standard deviations of such a mean again, and a factor of two because elements share sources.  Where all
terms of a sum are equal, a device that adds one after the other may round each time the same way: the standard
deviation of such a sum is n / 2 UNIT size.

Nor has a sum to be kept from overflow.  Where the magnitudes of the terms of sum, sum_rows, mean or cumsum, or the
squares of a row of norm, rms_norm, l2_norm or group_norm, come to more than float32's largest number, a result that
should be finite may be anything; and squares that are flushed to zero may be missing from a norm's sum.  What comes of
infinities and NaNs that a row holds itself is not concerned.

**Rounded sources.**  Products with weights of few bits round activations, as ggml does: to the type of the weights if
that is F16 or BF16, and to eight bits of the largest of a block if the weights have blocks.  Such a rounding is off by
at most half a step, with the standard deviation step / sqrt(12), and weighs as much as the weight that it meets.  In
the place of F16 it may be TF32, which has as many digits, and which tensor cores cut off: at most a whole step.

**Graphs.**  A node that reads results of other nodes inherits their errors.  How much, its graph shows: it is
evaluated twice more, with each result moved by its tolerance, up or down at random, and once the other way round.

An op of another package brings its rule as it brings its cases: ``RULES["mine.wavelet"] = Rule(...)``.
"""

from __future__ import annotations

import ggplug_testing.ops  # noqa: F401  (describes the ops of core)
from ggplug_testing.description import RULES
from ggplug_testing.precision.rule import DEVIATIONS, FLUSHED, UNIT, Rule, Tolerance
from ggplug_testing.precision.table import OTHER, mean_square, rule_of, tolerance

__all__ = [
    "DEVIATIONS",
    "FLUSHED",
    "OTHER",
    "RULES",
    "UNIT",
    "Rule",
    "Tolerance",
    "mean_square",
    "rule_of",
    "tolerance",
]
