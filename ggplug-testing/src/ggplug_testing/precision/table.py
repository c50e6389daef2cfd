"""The table: the rule of each op."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ggplug.ops.base import Array
from ggplug.ops.unary import Gelu, GeluErf, GeluQuick, Silu
from ggplug.tensor import Tensor
from ggplug_testing.precision import attention, elements, products, sums, tokens, windows
from ggplug_testing.precision.rule import DEVIATIONS, UNIT, Rule, element, flushed, none, of_result, once, row

_MOVES = Rule(
    "moves", "0", "nothing: numbers of one type keep their bits, others become the nearest of the new type", none
)

_EXACT = Rule("exact", "0", "nothing: float32 holds the result", flushed)

_CHOSEN = Rule("chooses", "0", "nothing: numbers are only compared", none)


def _glu(bound: str) -> Rule:
    return element(f"{bound} of f(x), times abs(g), + 2 abs(y)", "those of f, and a product", elements.gated)


_PRODUCT = Rule(
    "products",
    "6 sqrt((K + 1) size**2 / 3 + r), size = max(abs(y), 2 sqrt(sum((a b)**2)))",
    "the sums of K products; r, in square roundings, is for activations that are rounded: to F16 or BF16 "
    "sum((a b)**2) c**2 / 3 with c = 2**-10 or 2**-8, for weights in blocks sum((a step)**2) / 12 with step = "
    "max(abs(b)) / 127 of the block; else 0, and with Precision.F32 for weights without blocks",
    products.product, spread=True,
)  # fmt: skip

_CONVOLVED = row("6 sqrt((K + 1) / 3) size, as products without r", "the sums of K products", windows.convolved)

_GATHERED = element("(6 + 3.46 sqrt(K)) sum(abs(x))", "the sum of what K windows have for an element", windows.gathered)

_POOLED = element(
    "0 of a maximum; (6 + 3.46 sqrt(k0 k1)) mean(abs(x))", "sums of the window, the quotient", windows.pooled
)

_TOKENS = element("(S + 8 + 6 T) f(abs(sources))", "products and sums of each of T tokens", tokens.of_tokens)

RULES: dict[str, Rule] = {
    **dict.fromkeys(("cpy", "cont", "dup", "concat", "repeat", "get_rows", "set_rows", "set", "get_rel_pos"), _MOVES),
    **dict.fromkeys(("pad", "pad_reflect_1d", "roll", "diag", "tri", "diag_mask_inf", "diag_mask_zero"), _MOVES),
    **dict.fromkeys(("argmax", "argsort", "top_k", "count_equal"), _CHOSEN),
    **dict.fromkeys(("abs", "sgn", "neg", "step", "floor", "ceil", "round", "trunc", "relu"), _EXACT),
    **dict.fromkeys(("im2col", "im2col_3d", "win_part", "win_unpart"), _EXACT),
    "clamp": element("abs(y - float32(y))", "a limit", once),
    "add": element("abs(y - float32(y))", "the sum, to the nearest", once),
    "acc": element("1 abs(y)", "the sum", of_result(1)),
    "add_id": element("1 abs(y)", "the sum", of_result(1)),
    "fill": element("1 abs(y)", "the number", of_result(1)),
    "arange": element("4 (abs(y) + abs(start))", "start, step, their product with i, the sum", elements.arange),
    "timestep_embedding": element(
        "8 + (12 + 4 ln(max_period)) abs(angle)", "the frequency's logarithm and power, the angle, its sine or cosine",
        elements.timestep_embedding,
    ),
    "silu_back": element(
        "16 abs(dy) s (2 + abs(x)) + abs(y), s = 1 / (1 + e**-x)", "s, 1 - s, products and a sum", elements.silu_back
    ),
    "sub": element("abs(y - float32(y))", "the difference, to the nearest", once),
    "mul": element("abs(y - float32(y))", "the product, to the nearest", once),
    "sqr": element("abs(y - float32(y))", "the product, to the nearest", once),
    "div": element("5 abs(y)", "the quotient, within 2.5 units", of_result(5)),
    "sqrt": element("6 abs(y)", "the root, within 3 units", of_result(6)),
    "exp": element("6 abs(y)", "the power, within 3 units", of_result(6)),
    "expm1": element("6 abs(y)", "the power less 1, within 3 units", of_result(6)),
    "log": element("6 abs(y)", "the logarithm, within 3 units", of_result(6)),
    "sin": element("8 abs(y)", "the sine, within 4 units", of_result(8)),
    "cos": element("8 abs(y)", "the cosine, within 4 units", of_result(8)),
    "tanh": element("10 abs(y)", "the function, within 5 units", of_result(10)),
    "scale": element("3 (abs(s x) + abs(bias))", "s, bias, their product with x, the sum", elements.scale),
    "leaky_relu": element("2 abs(y)", "the slope, the product", of_result(2)),
    "elu": element("6 abs(y)", "the power less 1, within 3 units", of_result(6)),
    "sigmoid": element("12 abs(y)", "the power, the sum, the quotient", of_result(12)),
    "softplus": element("8 + 6 abs(y)", "the power and the sum, of 1 or more; the logarithm", elements.softplus),
    "hardsigmoid": element("8 (min(abs(x), 3) + 3) / 6", "the sum, the quotient, 1/6", elements.hardsigmoid),
    "hardswish": element(
        "as hardsigmoid, times abs(x), + abs(y)", "those of hardsigmoid, a product", elements.hardswish
    ),
    "xielu": element(
        "5 abs(ap x**2) or 12 abs(an) (abs(e**x - 1) + abs(x)), + 5 abs(beta x)",
        "the parameters, the power less 1, products, differences", elements.xielu,
    ),
    "silu": element("14 abs(y)", "the power, the sum, the quotient, a product", elements.activation(Silu)),
    "gelu": element(
        "8 abs(x) + abs(y)", "the argument and tanh, of at most 1, the sum 1 + tanh, products",
        elements.activation(Gelu),
    ),
    "gelu_erf": element(
        "18 abs(x) + abs(y)", "the argument and erf, of at most 1, the sum 1 + erf, products",
        elements.activation(GeluErf),
    ),
    "gelu_quick": element(
        "(14 + 4 abs(x)) abs(y)", "as silu, and 1.702 x, whose error the power turns into a factor",
        elements.activation(GeluQuick),
    ),
    "reglu": element("abs(y - float32(y))", "the product, to the nearest", once),
    "geglu": _glu("gelu"),
    "geglu_erf": _glu("gelu_erf"),
    "geglu_quick": _glu("gelu_quick"),
    "swiglu": _glu("silu"),
    "swiglu_oai": element(
        "(18 + 3 abs(alpha u)) abs(u / (1 + e**(-alpha u))) (1 + min(abs(g), limit))",
        "as gelu_quick, the sum with 1, a product", elements.swiglu_oai,
    ),
    "rope": element(
        "16 (1 + UNIT abs(angle)) hypot(x0, x1) magnitude, of each pair",
        "sine and cosine, the magnitude, two products and their sum; the angle at any position to 16 UNIT**2 of "
        "itself, as numbers of two floats are after some products, and numbers of one are not", elements.rope,
    ),
    "rope_back": element("as rope", "as rope", elements.rope),
    "cumsum": row("S size + abs(y), as sum_rows, of the elements up to i", "i sums", sums.cumsum),
    "repeat_back": row("S size, as sum_rows, of what is added up", "the sums", sums.repeat_back),
    "get_rows_back": row("S size, as sum_rows, of what is added up", "the sums", sums.get_rows_back),
    "group_norm": row("as norm, of groups", "as norm", sums.group_norm),
    "rms_norm_back": row(
        "(24 + 2 S) (r abs(dy) + r**3 abs(x mean)) + r**3 abs(x) S size / n, mean = sum(x dy) / n",
        "two sums of n products, the root, quotients, products", sums.rms_norm_back,
    ),
    "soft_max_back": row(
        "abs(scale y) (8 (abs(dy) + abs(dot)) + S size), dot = sum(y dy)", "n products and sums, differences, products",
        sums.soft_max_back,
    ),
    "cross_entropy_loss": row(
        "(2 + S/8) sum(labels (16 + S + 4 e + 2 sum(p e))) / rows + 8 abs(y), e = max(logits) - logit, p = softmax",
        "powers, sums, logarithms, products", sums.cross_entropy_loss,
    ),
    "cross_entropy_loss_back": row(
        "abs(dy / rows) (p (24 + S + 2 e + 2 sum(p e)) + 8 labels)", "as soft_max, a difference, products",
        sums.cross_entropy_loss_back,
    ),
    "opt_step_adamw": element(
        "8 abs(w) + (16 + 8 abs(v) / v') alpha beta1h (abs(beta1 m) + abs((1 - beta1) g)) / (sqrt(v' beta2h) + eps)",
        "moments, a root, quotients, products; moments themselves as ops without a rule", elements.adamw,
    ),
    "opt_step_sgd": element("8 (abs(w) + abs(alpha g))", "products and a difference", elements.sgd),
    "out_prod": row(
        "6 sqrt((K + 1) size**2 / 3), size = max(abs(y), 2 sqrt(sum((a b)**2)))", "the sums of K products",
        products.out_prod,
    ),
    "solve_tri": element(
        "2 (n + 2) abs(a**-1) abs(a) abs(y)",
        "n products and sums, a quotient (N. J. Higham, Accuracy and stability of numerical algorithms, theorem 8.5)",
        products.solve_tri,
    ),
    "sum_rows": row("S size, size = max(abs(y), 2 sqrt(sum(x**2)))", "n sums", sums.sum_rows),
    "sum": row("S size, as sum_rows", "n sums", sums.sum_all),
    "mean": row("S size / n + 6 abs(y)", "n sums, the quotient", sums.mean),
    "norm": row(
        "m + (16 + S/2 + m**2 UNIT) abs(y), m = (S size / n + 6 abs(mean)) / deviation",
        "the mean, m, by which all elements move; n squares and sums, the root, the quotient", sums.norm,
    ),
    "rms_norm": row(
        "(16 + S/2) abs(y)", "n squares and sums, half of whose error is the root's, the quotient", sums.rms_norm
    ),
    "l2_norm": row("(16 + S/2) abs(y)", "as rms_norm", sums.l2_norm),
    "soft_max": row(
        "y (12 + S + e + sum(y e) + 2 abs(max)), e = 3 abs(scale x) + abs(mask) + 2 abs(logit) + abs(max)",
        "logits, whose errors the power turns into factors; powers, n sums, the quotient; 34 abs(mask) with ALiBi's "
        "slopes, which are powers", sums.soft_max,
    ),
    "mul_mat": _PRODUCT,
    "mul_mat_id": _PRODUCT,
    "flash_attn_ext": row(
        "sum(p (16 + 4 S + e + sum(p e)) abs(v)) + S size, p the shares, e = scale (S(dk) size + r) + 4 abs(logit) + "
        "10 min(cap, abs(logit)) + abs(mask) + 2 abs(logit - max) + 2 abs(max), S and size as products have them",
        "logits as products, r of queries and shares rounded to the types of k and v; the rest as soft_max, and as "
        "products of its shares; powers are rounded again with every block of keys that brings a larger logit",
        attention.flash_attn_ext,
    ),
    "flash_attn_back": row(
        "with g = d v, p the shares, e(p) their roundings: of v's gradient sum(e(p) abs(d)), of those of q and k "
        "scale sum((e(p) (abs(g) + m) + p (e(g) + e(m) + 24 abs(g) + 24 m)) abs(k or q)), m = sum(p abs(g)), each + "
        "S size of its sums; of the sinks' what is left of p for them in the place of p",
        "shares as in flash_attn_ext, and products of them", attention.flash_attn_back,
    ),
    **dict.fromkeys(("conv_2d_direct", "conv_2d_dw_direct", "conv_3d_direct"), _CONVOLVED),
    **dict.fromkeys(("conv_transpose_1d", "conv_transpose_2d", "ssm_conv"), _CONVOLVED),
    **dict.fromkeys(("im2col_back", "col2im_1d"), _GATHERED),
    **dict.fromkeys(("pool_1d", "pool_2d"), _POOLED),
    "pool_2d_back": element(
        "(6 + 3.46 sqrt(k0 k1)) sum(abs(grad))", "the quotient, the sums of windows", windows.pooled_back
    ),
    "interpolate": element(
        "(32 + 8 n) max(abs(x)), n the largest extent; 0 of NEAREST",
        "where a new pixel lies, of up to n; weights, products, sums", windows.interpolated,
    ),
    **dict.fromkeys(
        ("map_custom1", "map_custom2", "map_custom3", "custom_4d"),
        Rule("Python functions", "0", "nothing: every device calls the same function", none),
    ),
    "lightning_indexer": element(
        "sum(abs(w) (3.46 sqrt(n + 1) size + (heads + 2) abs(q k))) + 2 abs(y) + abs(y - mask), size as of products",
        "n products and sums of each head, their products with weights, sums", attention.indexed,
    ),
    "dsv4_hc_comb": element(
        "2 abs(y) (24 + 4 max(5 abs(scale mixes) + 3 abs(base)) + 16 n_iter)",
        "logits, whose errors the powers turn into factors; sums and quotients, which never widen ratios of errors",
        tokens.balanced,
    ),
    **dict.fromkeys(
        ("dsv4_hc_pre", "dsv4_hc_post"), element("(H + 3) f(abs(sources))", "H products and sums", tokens.mixed)
    ),
    "add_rel_pos": element("2 (abs(a) + abs(pw) + abs(ph))", "two sums", windows.with_positions),
    **dict.fromkeys(("rwkv_wkv6", "rwkv_wkv7", "gated_linear_attn"), _TOKENS),
    "ssm_scan": element(
        "(S + (T + 1) (16 + max(e))) f(abs(sources)), e = (8 + 6 dt) (max(abs(a)) + 1 / dt) + 4 dt",
        "softplus, the power of dt a, products and sums of each of T tokens", tokens.scanned,
    ),
    "gated_delta_net": element(
        "(S + 64 + 16 T) (1 + beta abs(k)**2)**T size max(1, abs(q) / sqrt(S)), of the longest q and k and the largest "
        "beta; size = abs(state) + T beta abs(k) abs(v)",
        "the power of g, products and sums of each of T tokens, each of which the next ones multiply", tokens.delta,
    ),
}  # fmt: skip
"""The rule of each op, by its name.  Ops outside core may add theirs; without one an op has :data:`OTHER`.

``S`` is ``SUMMED sqrt(n)`` for rows of n elements.
"""


def _largest(node: Tensor, exact: Array, *sources: Array | None) -> Array:
    given = [exact, *(each for each in sources if each is not None and each.dtype.kind == "f")]
    return np.full_like(exact, 32 * max(np.abs(each).max(initial=0, where=np.isfinite(each)) for each in given))


OTHER = Rule("other", "32 max(abs(y), abs(sources))", "whatever the op does in float32", _largest)
"""The rule of an op from elsewhere that brings none."""


def rule_of(node: Tensor) -> Rule:
    """The rule of a node's op."""
    assert node.op is not None
    return RULES.get(node.op.name, OTHER)


def room(node: Tensor, exact: Array, sources: Sequence[Array | None]) -> Array:
    """How far each element of ``node`` may be from ``exact`` before both are rounded to the node's type.

    ``exact``: the reference of ``sources``; all four-dimensional, in NumPy order.  0 where ``exact`` is not finite.
    """
    rule = rule_of(node)
    if rule.room is none:
        return np.zeros_like(exact)
    finite = np.isfinite(exact)
    with np.errstate(all="ignore"):
        roundings = np.broadcast_to(rule.room(node, exact, *sources), exact.shape)
        if (np.isnan(roundings) & finite).any():
            # A number that is not finite has entered elements that it has no part in: sums of a whole row, say.
            tamed = [None if each is None else _tamed(each) for each in sources]
            without = np.broadcast_to(rule.room(node, np.where(finite, exact, 0), *tamed), exact.shape)
            roundings = np.where(np.isnan(roundings), without, roundings)
        return np.where(finite, np.nan_to_num(roundings, nan=0.0, posinf=np.inf) * UNIT, 0.0)


def _tamed(values: Array) -> Array:
    """With 0 in the place of what is not finite."""
    return values if values.dtype.kind != "f" else np.where(np.isfinite(values), values, 0)


def mean_square(count: int) -> float:
    """How often its expectation the mean of ``count`` square errors may be; see the module's docstring."""
    return 2 * (1 + DEVIATIONS * math.sqrt(2 / max(1, count)))
