"""Faults by hand in kernels of single nodes and of groups."""

from __future__ import annotations

from collections.abc import Callable

from tests.mutation.fault import Fault
from tests.mutation.seeding import SUBJECT, Edit
from tests.mutation.subject import SubjectDevice


def edits(module: str) -> Callable[..., Fault]:
    """Makes faults of changes in a module: ``(name, function, old, new, missed="")``."""

    def fault(name: str, function: str, old: str, new: str, missed: str = "") -> Fault:
        return Fault(name, SubjectDevice, (), (Edit(module, function, old, new),), missed)

    return fault


_value, _formula = edits(f"{SUBJECT}.values"), edits(f"{SUBJECT}.formulas")
_kernel, _together = edits(f"{SUBJECT}.kernels"), edits(f"{SUBJECT}.together")

HALF = ".astype(np.float16).astype(np.float64)"

_PRECISION = (
    _formula("rounds differences through f16", "sub", "a - b", f"(a - b){HALF}"),
    _formula("rounds products of elements through f16", "mul", "a * b", f"(a * b){HALF}"),
    _formula("rounds quotients through f16", "div", "a / b", f"(a / b){HALF}"),
    _formula("rounds the results of rms_norm through f16", "rms_norm", "op.eps)", f"op.eps){HALF}"),
    _kernel("rounds the results of rope through f16", "rope", "store(dst, turned)", f"store(dst, turned{HALF})"),
    _kernel(
        "rounds the results of get_rows through f16",
        "get_rows",
        "    move(dst",
        '    if source.type.name == "f32":\n'
        "        picked = picked.astype(np.float16).astype(np.float32)\n"
        "    move(dst",
    ),
    _kernel(
        "rounds the results of set_rows through f16",
        "set_rows",
        "= target[0, 0]",
        '= target[0, 0].astype(np.float16) if dst.type.name == "f32" else target[0, 0]',
    ),
    _kernel("rounds the columns of products to f16", "mul_mat", "single(b)", "single(b).astype(np.float16)"),
    _kernel(
        "quantises the columns of products",
        "mul_mat",
        "    store(dst, products(single(a), single(b)))",
        "    columns = single(b)\n"
        "    steps = np.abs(columns).max(-1, keepdims=True, initial=1e-30) / 127\n"
        "    store(dst, products(single(a), (np.rint(columns / steps) * steps).astype(np.float32)))",
    ),
    _value(
        "unpacks blocks to f16",
        "unpacked",
        "quants.dequantize(raw, x.type).astype(np.float64)",
        f"quants.dequantize(raw, x.type){HALF}",
    ),
    _formula(
        "computes the variance in one pass",
        "norm",
        "    centred = x - x.sum(-1, keepdims=True) / n\n"
        "    return centred / np.sqrt((centred * centred).sum(-1, keepdims=True) / n + op.eps)",
        "    x = x.astype(np.float32)\n"
        "    mean = x.sum(-1, keepdims=True) / np.float32(n)\n"
        "    variance = (x * x).sum(-1, keepdims=True) / np.float32(n) - mean * mean\n"
        "    return ((x - mean) / np.sqrt(variance + np.float32(op.eps))).astype(np.float64)",
    ),
    _kernel(
        "leaves out what is beyond 4096 in a product",
        "multiply",
        "range(0, rows.shape[1], PANEL)",
        "range(0, min(rows.shape[1], 4096), PANEL)",
    ),
    _kernel(
        "computes the angles of rope in float32",
        "rope",
        "wide(pos).reshape(-1, 1) * op.freq_base**exponents",
        "(single(pos).reshape(-1, 1) * (op.freq_base**exponents).astype(np.float32)).astype(np.float64)",
    ),
    _value(
        "stores f16 by cutting",
        "store",
        "    else:\n        dst.bits[...] = values",
        "    else:\n"
        "        kept = values.astype(dst.bits.dtype)\n"
        "        if kept.dtype == np.float16:\n"
        "            kept = np.where(np.abs(kept) > np.abs(values), np.nextafter(kept, np.float16(0)), kept)\n"
        "        dst.bits[...] = kept",
    ),
    _value("stores bf16 by cutting", "to_bf16", "(raw + (0x7FFF + (raw >> 16 & 1))) >> 16", "raw >> 16"),
    _value("rounds halves of bf16 up", "to_bf16", "(raw + (0x7FFF + (raw >> 16 & 1))) >> 16", "(raw + 0x8000) >> 16"),
    _value(
        "keeps overflowing f16 finite",
        "store",
        "    else:\n        dst.bits[...] = values",
        "    else:\n        dst.bits[...] = np.clip(values, -65504, 65504) if dst.type is F16 else values",
    ),
    _formula(
        "computes e**x - 1 with a difference in float32",
        "expm1",
        "np.expm1(x)",
        "np.exp(x.astype(np.float32)) - np.float32(1)",
    ),
    _formula(
        "overflows in softplus",
        "softplus",
        "np.logaddexp(0.0, x)",
        "np.log(1 + np.exp(x.astype(np.float32))).astype(np.float64)",
    ),
    _formula(
        "overflows in gelu",
        "gelu",
        "    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)))",
        "    e = np.exp((2 * math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)).astype(np.float32))\n"
        "    return 0.5 * x * (1 + (e - 1) / (e + 1))",
    ),
    _kernel("subtracts no maximum in soft_max", "soft_max", "np.exp(logits - highest)", "np.exp(logits)"),
)

_ELEMENTS = (
    _formula("takes gelu for its exact form", "gelu", "    return", "    return gelu_erf(op, x)\n    return"),
    _formula("rounds halves to even", "round_half_away", "np.copysign(np.floor(np.abs(x) + 0.5), x)", "np.round(x)"),
    _formula("rounds halves up", "round_half_away", "np.copysign(np.floor(np.abs(x) + 0.5), x)", "np.floor(x + 0.5)"),
    _formula("gives a NaN its own sign", "sgn", "    return", "    return np.sign(x)\n    return"),
    _formula("steps at zero", "step", "x > 0", "x >= 0"),
    _formula("clips NaN to NaN", "clamp", "    below", "    return np.clip(x, op.min, op.max)\n    below"),
    _formula(
        "lets a NaN pass in leaky_relu",
        "leaky_relu",
        "    return",
        "    return np.where(x > 0, x, op.negative_slope * x)\n    return",
    ),
    _formula("lets a NaN pass in hardsigmoid", "hardsigmoid", "np.fmax((x", "np.maximum((x"),
    _formula("ignores eps in xielu", "xielu", "np.minimum(x, op.eps)", "np.minimum(x, 0)"),
    _formula(
        "clips the gate above only", "swiglu_oai", "np.clip(gate, -op.limit, op.limit)", "np.minimum(gate, op.limit)"
    ),
    _formula(
        "clips the gated value on both sides",
        "swiglu_oai",
        "np.minimum(x, op.limit)",
        "np.clip(x, -op.limit, op.limit)",
    ),
    _formula("ignores the bias of scale", "scale", " + op.bias", ""),
    _formula(
        "multiplies a gate where it is not open", "reglu", "    return", "    return relu(op, x) * gate\n    return"
    ),
    _kernel(
        "takes even and odd elements for the halves of a gate",
        "of_gate",
        "both[..., :n], both[..., n : 2 * n]",
        "both[..., 0::2], both[..., 1::2]",
    ),
    _formula(
        "adds eps to the length in l2_norm",
        "l2_norm",
        "    return",
        "    return x / (np.sqrt((x * x).sum(-1, keepdims=True)) + op.eps)\n    return",
    ),
    _formula("adds eps outside of the root", "rms_norm", "x.shape[-1] + op.eps)", "x.shape[-1]) + op.eps"),
    _formula("adds no eps in rms_norm", "rms_norm", " + op.eps", ""),
    _formula(
        "divides the variance by one less", "norm", "keepdims=True) / n + op.eps", "keepdims=True) / (n - 1) + op.eps"
    ),
    _formula("gives the mean of all elements", "mean", "x.shape[-1]", "x.size"),
    _formula("gives 0 for the mean of nothing", "mean", "np.float64(x.shape[-1])", "max(1, x.shape[-1])"),
    _kernel(
        "takes the last of the largest elements",
        "argmax",
        "(values == highest).argmax(-1)",
        "(values.shape[-1] - 1 - (values == highest)[..., ::-1].argmax(-1))",
    ),
    _kernel(
        "finds the maximum before all if there is a NaN",
        "argmax",
        "    dst",
        "    highest = values.max(-1, keepdims=True)\n    dst",
    ),
    _kernel("sorts what was rounded to f16", "argsort", "wide(x), axis", "wide(x).astype(np.float16), axis"),
    _kernel("counts dimensions from the outside in concat", "concat", "3 - op.dim", "op.dim"),
    _kernel(
        "repeats elements instead of the tensor",
        "repeat",
        "    dst",
        "    values = x.bits\n"
        "    for axis, n in enumerate(x.bits.shape):\n"
        "        values = values.repeat(dst.bits.shape[axis] // n if n else 1, axis)\n"
        "    dst.bits[...] = values\n"
        "    return\n"
        "    dst",
    ),
    _value("rounds floats to the nearest integer", "move", "cut(wide(x)", "cut(np.rint(wide(x))"),
    _value(
        "moves elements at their places and not in their order",
        "move",
        "moved.reshape(dst.bits.shape)",
        "moved.T.reshape(dst.bits.shape) if moved.shape != dst.bits.shape else moved",
    ),
    _value(
        "loses the sign of zeros that it moves",
        "move",
        "moved = x.bits\n    elif is_float(dst",
        "moved = x.bits + 0 if is_float(x.type) and x.type is not BF16 else x.bits\n    elif is_float(dst",
    ),
    _value(
        "makes infinities of NaNs whose payload f16 has no place for",
        "converted",
        "else values.astype(kind.dtype)",
        "else np.where(np.isnan(values) & (values.view(np.uint32) & 0x7FE000 == 0), "
        "np.float32(np.inf), values).astype(kind.dtype)",
    ),
    _value("makes infinities of NaNs whose payload bf16 has no place for", "to_bf16", "raw >> 16 | 0x40", "raw >> 16"),
    _value("rounds NaNs to bf16 like numbers", "to_bf16", "np.where(nan, raw >> 16 | 0x40, nearest)", "nearest"),
    _value(
        "quiets the NaNs that it moves",
        "move",
        "moved = x.bits\n    elif is_float(dst",
        "moved = x.bits * x.bits.dtype.type(1) if is_float(x.type) else x.bits\n    elif is_float(dst",
    ),
    _value(
        "takes pairs of q4_0 for neighbours",
        "unpacked",
        "np.concatenate((pairs & 15, pairs >> 4), axis=-1)",
        "np.stack((pairs & 15, pairs >> 4), axis=-1).reshape(*pairs.shape[:-1], size)",
    ),
    _value(
        "reads q8_0 without signs",
        "unpacked",
        'x.bits["qs"].astype(np.float64)',
        'x.bits["qs"].view(np.uint8).astype(np.float64)',
    ),
    _value(
        "repeats by neighbours",
        "repeated",
        "np.tile(x, [to // n if n else 1 for to, n in zip(shape, x.shape, strict=True)])",
        "np.broadcast_to(x[:1, :1, :1], (*shape[:3], x.shape[3])) if x.shape[3] == shape[3] "
        "else np.repeat(np.broadcast_to(x, (*shape[:3], x.shape[3])), shape[3] // x.shape[3], -1)",
    ),
)

_ATTENTION = (
    _kernel("takes the mask of the first batch for all", "soft_max", "wide(mask)[:, :,", "wide(mask)[:1, :,"),
    _kernel("takes the mask of the first head for all", "soft_max", "wide(mask)[:, :,", "wide(mask)[:, :1,"),
    _kernel("takes the last rows of the mask", "soft_max", ": logits.shape[2]]", "-logits.shape[2] :]"),
    _kernel("takes heads for a power of two", "slopes", "if h < power", "if True"),
    _kernel("slopes from zero", "slopes", "first ** (h + 1)", "first**h"),
    _kernel(
        "forgets the sink in the maximum",
        "soft_max",
        "np.maximum(logits.max(-1, keepdims=True), sink)",
        "logits.max(-1, keepdims=True)",
    ),
    _kernel(
        "scales after the mask",
        "soft_max",
        "    logits = np.where(np.abs",
        "    logits = (logits - wide(x) * op.scale + wide(x)) * op.scale\n    logits = np.where(np.abs",
    ),
    _kernel(
        "hides what is far below",
        "soft_max",
        "    weights =",
        "    logits = np.where(logits < -1e4, -math.inf, logits)\n    weights =",
    ),
    _kernel("clears what rope does not turn", "rope", "values.copy()", "np.zeros_like(values)"),
    _kernel(
        "multiplies with the factors of frequencies",
        "rope",
        "angles / wide(freq_factors)",
        "angles * wide(freq_factors)",
    ),
    _kernel("ignores freq_scale", "rope", "(op.freq_scale * angles)", "angles"),
    _kernel("ignores attn_factor in the sine", "rope", "np.sin(angles) * op.attn_factor", "np.sin(angles)"),
    _kernel("ignores n_offs", "rope", "first + op.n_offs, second + op.n_offs", "first, second"),
    _kernel("turns all elements as one pair of halves", "rope", "(i, i + pairs)", "(i, i + x.bits.shape[-1] // 2)"),
    _kernel("keeps positions in 16 bits", "rope", "wide(pos)", "wide(pos).astype(np.int16)"),
    _kernel(
        "ignores the strides of pos",
        "rope",
        "wide(pos).reshape",
        "wide(pos._replace(bits=np.lib.stride_tricks.as_strided(pos.bits, strides=(0, 0, 0, "
        "pos.bits.itemsize)))).reshape",
    ),
    _kernel(
        "ignores the strides of freq_factors",
        "rope",
        "wide(freq_factors)",
        "wide(freq_factors._replace(bits=np.lib.stride_tricks.as_strided(freq_factors.bits, strides=(0, 0, 0, 4))))",
    ),
    _kernel(
        "keeps the angles of the first positions",
        "rope",
        "    angles = (op",
        '    known = globals().setdefault("_angles", {})\n'
        "    angles = known.setdefault((angles.shape, op.freq_base, op.n_dims, freq_factors is None), angles)\n"
        "    angles = (op",
    ),
)

_MATRICES = (
    _kernel(
        "gives matrices of weights in turn",
        "products",
        "weights[k // (outer // weights.shape[0]), j // (inner // weights.shape[1])]",
        "weights[k % weights.shape[0], j % weights.shape[1]]",
    ),
    _kernel(
        "takes the last matrix of weights where they repeat",
        "products",
        "weights[k // (outer // weights.shape[0]), j",
        "weights[min(k, weights.shape[0] - 1), j",
    ),
    _kernel(
        "takes the first matrix of weights for all",
        "products",
        "weights[k // (outer // weights.shape[0]), j",
        "weights[0, j",
    ),
    _kernel(
        "keeps unpacked weights from before",
        "mul_mat",
        "products(single(a)",
        'products(globals().setdefault("_weights", {}).setdefault((id(a.bits.base), '
        "a.bits.ctypes.data, a.bits.shape), single(a))",
    ),
    _kernel(
        "multiplies with the transposed weights if they are square",
        "multiply",
        "rows[:, start:end].T",
        "(rows[start:end] if rows.shape[0] == rows.shape[1] else rows[:, start:end].T)",
    ),
    _kernel(
        "leaves an odd last column of a product",
        "multiply",
        "    return found",
        "    found[len(found) - len(found) % 2 :] = 0\n    return found",
    ),
    _kernel("takes the first column for all chosen experts", "mul_mat_id", "slot % columns.shape[1]", "0"),
    _kernel(
        "takes experts of negative ids from the end", "mul_mat_id", "0 <= expert < len", "-len(weights) <= expert < len"
    ),
    _kernel(
        "takes the nearest expert",
        "mul_mat_id",
        "int(chosen[token, slot])",
        "min(max(int(chosen[token, slot]), 0), len(weights) - 1)",
    ),
    _kernel(
        "computes each expert once for a token",
        "mul_mat_id",
        "            if 0 <=",
        "            if expert in chosen[token, :slot]:\n                continue\n            if 0 <=",
    ),
    _kernel(
        "picks the nearest row",
        "get_rows",
        "    rows = ids.bits[0]",
        "    rows = np.clip(ids.bits[0], 0, source.bits.shape[2] - 1)",
    ),
    _kernel("picks rows of negative ids from the end", "get_rows", "(rows >= 0)", "(rows >= -source.bits.shape[2])"),
    _kernel(
        "picks by the ids of the first batch",
        "get_rows",
        "ids.bits[0]",
        "np.broadcast_to(ids.bits[0, :1, :1], ids.bits.shape[1:])",
    ),
    _kernel("picks from the first matrix", "get_rows", "source.bits[k, j,", "source.bits[0 * k, 0 * j,"),
    _kernel(
        "writes rows by the ids of the first batch",
        "set_rows",
        "ids.bits[0, k % ids.bits.shape[1], j % ids.bits.shape[2]]",
        "ids.bits[0, 0, 0]",
    ),
    _kernel(
        "takes the last ids where they repeat",
        "set_rows",
        "ids.bits[0, k % ids.bits.shape[1]",
        "ids.bits[0, min(k, ids.bits.shape[1] - 1)",
    ),
    _kernel(
        "takes the last mask where they repeat",
        "soft_max",
        "repeated(wide(mask)[:, :, : logits.shape[2]], logits.shape)",
        "repeated(wide(mask)[np.minimum(np.arange(len(logits)), len(mask.bits) - 1), :, : logits.shape[2]], "
        "logits.shape)",
    ),
    _kernel(
        "reads ids of 64 bits as 32", "set_rows", "j % ids.bits.shape[2]]", "j % ids.bits.shape[2]].astype(np.int32)"
    ),
    _kernel(
        "writes rows in the order of their ids",
        "set_rows",
        "dst.bits[k, j, chosen[inside]]",
        "dst.bits[k, j, np.sort(chosen[inside])]",
    ),
    _kernel(
        "writes no rows if an id is out of range",
        "set_rows",
        "            target =",
        "            if not inside.all():\n                continue\n            target =",
    ),
    _kernel(
        "clears the rows that it does not write",
        "set_rows",
        "            dst.bits[k, j, chosen",
        "            dst.bits[k, j] = 0\n            dst.bits[k, j, chosen",
    ),
)

_GROUPS = (
    _together("adds the first source twice", "norms", "a + repeated(b, a.shape)", "a + a"),
    _together(
        "keeps inner results of norms wide",
        "norms",
        "rounded(ROWS[type(normed.op)](normed.op, values.astype(np.float64)), normed.type)",
        "ROWS[type(normed.op)](normed.op, values.astype(np.float64))",
    ),
    _together(
        "keeps inner results of chains wide",
        "run",
        "rounded(computed(node, made, operands), node.type)",
        "computed(node, made, operands)",
    ),
    _together(
        "stores each step of a chain",
        "run",
        "    results =",
        "        store(operands[group.node], made[node])\n    results =",
    ),
    _together(
        "leaves out the activation behind a product",
        "computed",
        "        return UNARY",
        "        if node.src[0] in made and isinstance(node.src[0].op, ops.MulMat):\n"
        "            return sources[0]\n"
        "        return UNARY",
    ),
    _together("takes each bias for one row", "computed", "repeated(b, a.shape)", "repeated(b[:1, :1, :1], a.shape)"),
    _together(
        "takes the chain's result for the first source",
        "computed",
        "    a, b = sources",
        "    a, b = sources if node.src[0] in made else sources[::-1]",
    ),
    _together(
        "takes the second product for the gate",
        "gated_products",
        '(first, second) if glu.src[0] is names["first"] else (second, first)',
        "(second, first)",
    ),
    _together("exchanges scale and shift", "norms", 'operands[names["w"]]', 'operands[names.get("b", names["w"])]'),
    _together(
        "takes the scale of the first rows",
        "norms",
        'repeated(wide(operands[names["w"]]), values.shape)',
        'repeated(wide(operands[names["w"]])[:1, :1, :1], values.shape)',
    ),
    _together(
        "takes the shift of the first rows",
        "norms",
        'repeated(wide(operands[names["b"]]), values.shape)',
        'repeated(wide(operands[names["b"]])[:1, :1, :1], values.shape)',
    ),
    _together(
        "gives the sum in a group its first source's shape", "norms", "repeated(b, a.shape)", "repeated(b[:1], a.shape)"
    ),
    _together("takes every norm of a group for one", "norms", "ROWS[type(normed.op)]", "ROWS[ops.RmsNorm]"),
    _together(
        "stores turned rows from the first on",
        "rope_store",
        'operands[names["rows"]])',
        'operands[names["rows"]]._replace(bits=np.broadcast_to(np.arange(source.ne[1]), '
        'operands[names["rows"]].bits.shape)))',
    ),
    _together("ignores the factors of frequencies in a group", "rope_store", 'names.get("factors")', "None"),
    _together(
        "stores rows that were not turned",
        "rope_store",
        "Values(source.type, values.bits",
        "Values(source.type, x.bits",
    ),
    _together(
        "keeps no sum that others need",
        "keep",
        "kept and node in results",
        "kept and node in results and not isinstance(node.op, ops.Add)",
    ),
    _together(
        "stores kept results after the last",
        "run",
        "    keep(group, operands, results)\n    store(operands[group.node], results[group.node])",
        "    store(operands[group.node], results[group.node])\n"
        "    keep(group, operands, {node: results[group.node] for node in results})",
    ),
    _together("groups norms that are repeated", "cannot_together", "if names is not None and any", "if False and any"),
    _together("groups rows in any order", "cannot_together", "not source.is_contiguous() or ", ""),
)

FAULTS: tuple[Fault, ...] = (*_PRECISION, *_ELEMENTS, *_ATTENTION, *_MATRICES, *_GROUPS)
"""All of them."""
