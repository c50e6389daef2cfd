"""``python -m ggplug_testing.precision``: the table and its derivation as a page."""

from __future__ import annotations

from ggplug_testing import precision
from ggplug_testing.precision import OTHER, RULES

_KINDS = "moves", "exact", "chooses", "one by one", "sums", "products", "Python functions"
"""The order of the table."""

_SPECIAL = """## Special values

NaN, infinities and signed zeros come out of a formula as its own operations in IEEE arithmetic have them, and have to
agree. Where ggml's CPU backend and NumPy differ, it is ggml's answer:

| op | NaN | in NumPy |
| --- | --- | --- |
| `relu`, `leaky_relu`, `step`, `sgn`, `hardsigmoid`, `reglu` | 0, as `x > 0` is false | `maximum`, `sign` keep it |
| `clamp` | `max`: `x < max` is false | `clip` keeps it |
| `argmax` | smaller than every number | `argmax` chooses the first NaN |
| `argsort` | comes last in both orders | comes last in the ascending order, the only one |
| `l2_norm` | the other numbers of its row are divided by eps, as by C's `fmaxf` | `maximum` makes the row NaN |

Products with weights in blocks make what an infinity or a NaN enters not finite, one or the other. In
attention a row of v whose weight is smaller than float32's smallest normal number may be left out, or enter with the
weight 0, by which an infinity or a NaN of it becomes a NaN. Zeros have to
agree in their sign where an op's operations are exact or rounded once. Where numbers are converted a NaN has to stay a
NaN, with any sign and payload; where they are moved in their own type every bit stays.
"""


def page() -> str:
    """``docs/precision.md``."""
    text = (precision.__doc__ or "").replace("``", "`")
    heading, _, derivation = text.partition("\n\n")
    rows = ["| op | kind | how far, in units of 2\\*\\*-24 | what is rounded |", "| --- | --- | --- | --- |"]
    groups: dict[int, list[str]] = {}
    for name, rule in RULES.items():
        groups.setdefault(id(rule), []).append(name)
    for names in sorted(groups.values(), key=lambda names: _KINDS.index(RULES[names[0]].kind)):
        rule = RULES[names[0]]
        shown = ", ".join(f"`{name}`" for name in names)
        rows.append(f"| {shown} | {rule.kind} | `{rule.bound}` | {rule.why} |")
    other = f"| others | {OTHER.kind} | `{OTHER.bound}` | {OTHER.why} |"
    made = "Made by `python -m ggplug_testing.precision`; `S` is `SUMMED sqrt(n)`, 3.46 sqrt(n), for rows of n."
    parts = ["# Precision", heading, derivation.strip(), "## The table", made, "\n".join([*rows, other]), _SPECIAL]
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
