"""What every op declares, and the rules for shapes, types and parameters.

That the references compute what ggml computes is proven in test_ops_recorded.py and test_ops_references.py.
"""

from __future__ import annotations

import builtins
import copy
import inspect
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import ROOT

import ggplug.ops as ops
from ggplug.errors import DuplicateNameError, GGPlugError, ParameterError, ShapeError, TypeMismatchError
from ggplug.ops import OPS, Op, builder, listing
from ggplug.ops.base import Array, apply
from ggplug.tensor import Spec, Tensor, new_tensor
from ggplug.types import F16, F32, I32, Precision, RopeMode, Type, by_name

OURS = {name: cls for name, cls in OPS.items() if cls.__module__.startswith("ggplug.ops.")}


def t(*ne: int, type: str = "f32") -> Tensor:
    return new_tensor(type, ne)


# -- declarations ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OURS)
def test_every_op_says_what_it_computes_and_which_ggml_function_it_is(name: str) -> None:
    cls = OURS[name]
    assert cls.__doc__
    assert "ggml_" in cls.__doc__
    assert cls.sources or cls is ops.Arange
    assert set(cls.optional) <= set(cls.sources)
    assert cls.is_view or callable(cls.reference)


@pytest.mark.parametrize("name", OURS)
def test_every_op_is_exported_as_class_and_as_builder(name: str) -> None:
    cls = OURS[name]
    assert getattr(ops, cls.__name__) is cls
    function = getattr(ops, name)
    assert function.__doc__
    assert {cls.__name__, name} <= set(ops.__all__)
    assert "name" in inspect.signature(function).parameters


def test_all_names_exactly_what_there_is() -> None:
    assert ops.__all__ == sorted(ops.__all__, key=lambda n: (not n.isupper(), n[0].islower(), n))
    assert all(hasattr(ops, name) for name in ops.__all__)


def test_a_builder_has_the_signature_of_its_op() -> None:
    parameters = inspect.signature(ops.rope).parameters
    assert list(parameters)[:5] == ["x", "pos", "n_dims", "freq_factors", "mode"]
    assert parameters["freq_base"].default == 10000.0
    assert parameters["name"].kind is inspect.Parameter.KEYWORD_ONLY
    assert inspect.getdoc(ops.rope) == inspect.getdoc(ops.Rope)


def test_equal_parameters_are_one_op() -> None:
    x = t(8)
    assert ops.scale(x, 2).op is ops.scale(x, np.float32(2.0)).op
    assert ops.Scale(2.0) == ops.Scale(2)
    assert hash(ops.Scale(2.0)) == hash(ops.Scale(2))
    assert ops.Scale(2.0) != ops.Scale(3.0)
    assert ops.Scale(2.0) != ops.LeakyRelu(2.0)
    assert ops.Scale(-0.0).key == ("scale", 0.0, 0.0)


@pytest.mark.parametrize("op", [ops.Rope(64, mode=2), ops.Gelu(), ops.View((4, 2), (16,), 8), ops.Dup("f16")])
def test_ops_are_plain_data(op: Op) -> None:
    assert pickle.loads(pickle.dumps(op)) == op
    assert copy.deepcopy(op) == op
    assert all(isinstance(value, (bool, int, float, str, tuple)) for value in op.key)
    with pytest.raises(AttributeError):
        op.eps = 1.0  # type: ignore[attr-defined]


def test_enumerations_and_numpy_scalars_become_plain_numbers() -> None:
    node = ops.rope(t(64, 2, 3), t(3, type="i32"), np.int64(32), mode=RopeMode.NEOX)
    assert node.op is not None
    assert all(type(value) in (bool, int, float, str, tuple) for value in node.op.key)
    assert ops.mul_mat(t(4, 4), t(4), Precision.F32).op == ops.MulMat(10)


def test_an_op_shows_the_parameters_that_differ_from_their_defaults() -> None:
    assert repr(ops.RmsNorm()) == "rms_norm"
    assert repr(ops.Scale(2.0)) == "scale(s=2.0)"
    assert repr(ops.Rope(8, freq_base=5e5)) == "rope(n_dims=8, freq_base=500000.0)"


def test_an_op_can_be_defined_elsewhere_under_a_name_of_its_own() -> None:
    class Wavelet(Op):
        """Half of x."""

        name = "test_ops.wavelet"
        level: int = 1

        def result(self, x: Tensor) -> Spec:
            return Spec(x.type, x.ne, x.rank)

        def reference(self, x: Array) -> Array:
            return x / 2**self.level

    try:
        node = builder(Wavelet)(t(4), level=2)
        assert repr(node.op) == "test_ops.wavelet(level=2)"
        with pytest.raises(DuplicateNameError, match=r"test_ops\.wavelet.*already defined"):
            type("Again", (Op,), {"name": "test_ops.wavelet", "result": Wavelet.result, "__module__": __name__})
    finally:
        del OPS["test_ops.wavelet"]


def test_an_op_derives_from_no_other_op_whose_kernel_would_compute_it() -> None:
    with pytest.raises(TypeError, match="derives from the op RmsNorm, so devices would compute it as that op"):
        type("Mine", (ops.RmsNorm,), {"name": "test_ops.mine", "__module__": __name__})
    assert "test_ops.mine" not in OPS


# -- shapes ----------------------------------------------------------------------------------------

X = (64, 3, 2)
SHAPES: list[tuple[str, Any, tuple[int, ...], Type]] = [
    # what, the node, extents with their rank, type
    ("get_rows follows the rank of ids", lambda: ops.get_rows(t(64, 100), t(7, type="i32")), (64, 7), F32),
    ("get_rows with a batch", lambda: ops.get_rows(t(8, 9, 4), t(5, 4, type="i32")), (8, 5, 4), F32),
    ("get_rows of one id", lambda: ops.get_rows(t(64, 100), t(type="i32")), (64, 1), F32),
    ("get_rows decodes", lambda: ops.get_rows(t(64, 9, type="q4_0"), t(7, type="i32")), (64, 7), F32),
    ("get_rows keeps I32", lambda: ops.get_rows(t(4, 9, type="i32"), t(7, type="i32")), (4, 7), I32),
    ("set_rows gives dst", lambda: ops.set_rows(t(64, 9, type="f16"), t(64, 2), t(2, type="i64")), (64, 9), F16),
    ("add gives a", lambda: ops.add(t(*X), t(64)), X, F32),
    ("add of a scalar", lambda: ops.add(t(*X), t()), X, F32),
    ("add keeps a's type", lambda: ops.add(t(*X, type="f16"), t(64)), X, F16),
    ("add tiles", lambda: ops.add(t(8, 6), t(4, 3)), (8, 6), F32),
    ("scale", lambda: ops.scale(t(*X), 2), X, F32),
    ("a batch of one keeps its axis", lambda: ops.gelu(t(64, 3, 1)), (64, 3, 1), F32),
    ("norm", lambda: ops.norm(t(*X, type="f16")), X, F16),
    ("mul_mat", lambda: ops.mul_mat(t(64, 10, type="q8_0"), t(*X)), (10, 3, 2), F32),
    ("mul_mat with a vector", lambda: ops.mul_mat(t(64, 10, type="f16"), t(64)), (10,), F32),
    ("mul_mat repeats a", lambda: ops.mul_mat(t(64, 10, 2), t(64, 5, 6, 3)), (10, 5, 6, 3), F32),
    ("mul_mat with batches", lambda: ops.mul_mat(t(64, 10, 1, 1), t(64, 5)), (10, 5, 1, 1), F32),
    ("mul_mat_id", lambda: ops.mul_mat_id(t(8, 5, 4), t(8, 1, 7), t(2, 7, type="i32")), (5, 2, 7), F32),
    ("mul_mat_id of a token", lambda: ops.mul_mat_id(t(8, 5, 4), t(8, 2, 1), t(2, type="i32")), (5, 2, 1), F32),
    ("soft_max", lambda: ops.soft_max(t(9, 3, 2), t(9, 4, type="f16")), (9, 3, 2), F32),
    ("rope", lambda: ops.rope(t(64, 2, 3), t(3, type="i32"), 32), (64, 2, 3), F32),
    (
        "rope with four axes",
        lambda: ops.rope(t(64, 2, 3), t(12, type="i32"), 32, mode=8, sections=(8, 8, 0, 0)),
        (64, 2, 3),
        F32,
    ),
    ("swiglu of halves", lambda: ops.swiglu(t(64, 3)), (32, 3), F32),
    ("swiglu of an odd row", lambda: ops.swiglu(t(5, 3)), (2, 3), F32),
    ("swiglu of two", lambda: ops.swiglu(t(64, 3), t(64, 3)), (64, 3), F32),
    ("sum is a scalar", lambda: ops.sum(t(*X)), (), F32),
    ("sum_rows keeps the rank", lambda: ops.sum_rows(t(*X, type="f16")), (1, 3, 2), F16),
    ("mean is F32", lambda: ops.mean(t(*X, type="f16")), (1, 3, 2), F32),
    ("argmax drops a dimension", lambda: ops.argmax(t(64, 3)), (3,), I32),
    ("argmax of a row", lambda: ops.argmax(t(64)), (), I32),
    ("argsort", lambda: ops.argsort(t(64, 3)), (64, 3), I32),
    ("cpy gives dst", lambda: ops.cpy(t(6, 4), t(8, 3, type="f16")), (8, 3), F16),
    ("cont", lambda: ops.cont(ops.permute(t(*X), 0, 2, 1, 3)), (64, 2, 3), F32),
    ("cont with a shape", lambda: ops.cont(ops.transpose(t(4, 6)), 8, 3), (8, 3), F32),
    ("dup keeps quantised", lambda: ops.dup(t(64, 2, type="q8_0")), (64, 2), by_name("q8_0")),
    ("cast", lambda: ops.cast(t(64, 2), "f16"), (64, 2), F16),
    ("concat", lambda: ops.concat(t(4, 3), t(4, 5), 1), (4, 8), F32),
    ("concat in a new dimension", lambda: ops.concat(t(4, 3), t(4, 3), 2), (4, 3, 2), F32),
    ("repeat", lambda: ops.repeat(t(4, 1), 8, 3, 2), (8, 3, 2), F32),
    ("repeat like another", lambda: ops.repeat(t(4, 1, type="f16"), t(4, 5)), (4, 5), F16),
    ("reshape", lambda: ops.reshape(t(*X), 32, 2, 6), (32, 2, 6), F32),
    ("reshape with a gap", lambda: ops.reshape(t(*X), 32, -1), (32, 12), F32),
    ("permute adds a dimension", lambda: ops.permute(t(64, 3), 0, 2, 1, 3), (64, 1, 3), F32),
    ("transpose", lambda: ops.transpose(t(*X)), (3, 64, 2), F32),
    ("view", lambda: ops.view(t(*X), 16, 3, nb=(256,), offset=64), (16, 3), F32),
    ("a sum without elements", lambda: ops.add(t(0, 3), t(1)), (0, 3), F32),
]


@pytest.mark.parametrize(("make", "ne", "type"), [row[1:] for row in SHAPES], ids=[row[0] for row in SHAPES])
def test_shape_rules(make: Any, ne: tuple[int, ...], type: Type) -> None:
    node = make()
    assert node.ne[: node.rank] == ne
    assert node.ne[node.rank :] == (1,) * (4 - len(ne))
    assert node.type is type


def test_what_writes_is_a_view_of_what_is_written() -> None:
    cache = t(64, 16, type="f16")
    window = ops.view(cache, 64, 8, nb=(128,), offset=1024)
    written = ops.set_rows(window, t(64, 2), t(2, type="i64"))
    assert written.view_src is cache
    assert (written.view_offset, written.nb) == (1024, window.nb)
    copied = ops.cpy(t(64, 8), window)
    assert copied.view_src is cache
    assert copied.op is not None
    assert copied.src[copied.op.writes[0]] is window


def test_views_add_their_offsets() -> None:
    x = t(8, 8)
    inner = ops.view(ops.view(x, 8, 4, nb=(32,), offset=64), 4, 2, nb=(32,), offset=48)
    assert inner.view_src is x
    assert inner.view_offset == 112
    assert ops.reshape(ops.view(x, 8, 2), 16).root is x


def test_a_parameter_may_be_an_array_of_one_number_or_a_list() -> None:
    assert ops.scale(t(4), np.array(2.0)).op is ops.scale(t(4), 2.0).op
    positions, sections = t(8, type=I), (2, 1, 1, 0)
    rotated = [ops.rope(t(8, 1, 2), positions, 8, mode=8, sections=kind(sections)) for kind in (tuple, list, np.array)]
    assert {each.op for each in rotated} == {rotated[0].op}


# -- refusals --------------------------------------------------------------------------------------

I = "i32"
REFUSED: list[tuple[Any, type[GGPlugError], str]] = [
    (lambda: ops.add(t(64, 3), t(63)), ShapeError, r"add: b cannot be repeated.*\[64x3\].*\[63\]"),
    (lambda: ops.add(t(4), t(8)), ShapeError, "cannot be repeated"),
    (lambda: ops.add(t(4), t(0)), ShapeError, "cannot be repeated"),
    (lambda: ops.add(t(4), t(4, type=I)), TypeMismatchError, "floats"),
    (lambda: ops.mul(t(4, type=I), t(4, type=I)), TypeMismatchError, "integers"),
    (lambda: ops.add(t(64), t(64, type="q8_0")), TypeMismatchError, "quantised"),
    (lambda: ops.add(t(64), 3), TypeMismatchError, "source 'b' must be a tensor, got int"),
    (lambda: ops.add(t(64), None), TypeMismatchError, "source 'b' must be a tensor"),
    (lambda: ops.gelu(t(4, type=I)), TypeMismatchError, r"gelu: takes f32.*gg\.cast.*i32 \[4\]"),
    (lambda: ops.gelu(t(64, type="q4_0")), TypeMismatchError, "quantised"),
    (lambda: ops.gelu(ops.transpose(t(4, 3))), ShapeError, r"contiguous.*gg\.cont"),
    (lambda: ops.rms_norm(t(4), eps=-1), ParameterError, "eps"),
    (lambda: ops.scale(t(4), 10**400), ParameterError, "'s' must be float"),
    (lambda: ops.soft_max(t(4), max_bias=float("inf")), ParameterError, "max_bias must be finite"),
    (lambda: ops.mul_mat(t(4), t(4), precision=7), ParameterError, "precision 7 is none of DEFAULT 0, F32 10"),
    (lambda: ops.mul_mat_id(t(4, 4, 2), t(4, 1, 1), t(1, 1, type=I), precision=7), ParameterError, "precision 7"),
    (lambda: ops.rms_norm(t(4), eps="small"), ParameterError, "'eps' must be float, got 'small'"),
    (lambda: ops.scale(t(4), float("nan")), ParameterError, "must be float, got nan"),
    (lambda: (ops.scale(t(4), 1.0), ops.scale(t(4), True)), ParameterError, "'s' must be float"),
    (lambda: ops.clamp(t(4), 2, 1), ParameterError, "exceeds"),
    (lambda: ops.mul_mat(t(64, 3), t(63, 2)), ShapeError, r"mul_mat: .*same ne0; got .*\[64x3\].*\[63x2\]"),
    (lambda: ops.mul_mat(t(64, 3, 2), t(64, 2, 3)), ShapeError, "multiples"),
    (lambda: ops.mul_mat(ops.transpose(t(3, 64)), t(64)), ShapeError, "a must not be transposed"),
    (lambda: ops.mul_mat(t(64, 3, type=I), t(64)), TypeMismatchError, "integers"),
    (lambda: ops.mul_mat_id(t(8, 5, 4), t(8, 1, 7), t(2, 7)), TypeMismatchError, "ids must be i32"),
    (lambda: ops.mul_mat_id(t(8, 5, 4), t(9, 1, 7), t(2, 7, type=I)), ShapeError, "same ne0"),
    (lambda: ops.mul_mat_id(t(8, 5, 4), t(8, 1, 6), t(2, 7, type=I)), ShapeError, "tokens"),
    (lambda: ops.mul_mat_id(t(8, 5, 4), t(8, 3, 7), t(2, 7, type=I)), ShapeError, "multiple"),
    (lambda: ops.get_rows(t(8, 9), t(3, type="i64")), TypeMismatchError, "ids must be i32"),
    (lambda: ops.get_rows(t(8, 9), t(3, 2, type=I)), ShapeError, "ne1 and ne2 of ids"),
    (lambda: ops.set_rows(t(8, 9), t(8, 2), t(3, type="i64")), ShapeError, "one id for each row"),
    (lambda: ops.set_rows(t(8, 9), t(7, 3), t(3, type="i64")), ShapeError, "same ne0"),
    (lambda: ops.set_rows(t(8, 9), t(8, 3), t(3)), TypeMismatchError, "ids must be i64 or i32"),
    (lambda: ops.set_rows(t(8, 9), t(8, 3, type=I), t(3, type=I)), TypeMismatchError, "rows must be"),
    (lambda: ops.soft_max(t(8, 4), t(7, 4)), ShapeError, "mask must have x's ne0"),
    (lambda: ops.soft_max(t(8, 4), t(8, 3)), ShapeError, "mask must have x's ne0"),
    (lambda: ops.soft_max(t(8, 4, 3), t(8, 4, 2)), ShapeError, "multiples of the mask's"),
    (lambda: ops.soft_max(t(8, 4), t(8, 4, type="bf16")), TypeMismatchError, "mask must be f32 or f16"),
    (lambda: ops.soft_max(t(8, 4, 3), sinks=t(2)), ShapeError, "one sink for each head"),
    (lambda: ops.soft_max(t(8, 4), max_bias=8), ParameterError, "the op needs a mask"),
    (lambda: ops.soft_max(ops.transpose(t(8, 4))), ShapeError, "contiguous"),
    (lambda: ops.rope(t(64, 2, 3), t(2, type=I), 32), ShapeError, "pos must be a vector of 3"),
    (lambda: ops.rope(t(64, 2, 3), t(3), 32), TypeMismatchError, "pos must be i32"),
    (lambda: ops.rope(t(64, 2, 3), t(3, type=I), 32, freq_factors=t(15)), ShapeError, "a vector of at least 16"),
    (lambda: ops.rope(t(64, 2, 3), t(3, type=I), 32, freq_factors=t(16, 1, 0)), ShapeError, "a vector of at least 16"),
    (lambda: ops.rope(t(64, 2, 3), t(3, type=I), 66), ShapeError, "exceeds ne0"),
    (lambda: ops.rope(t(64, 2, 3), t(3, type=I), 32, n_offs=33), ShapeError, "exceeds ne0"),
    (lambda: ops.rope(t(64, 2, 3), t(3, type=I), 31), ParameterError, "even"),
    (lambda: ops.rope(t(64, 2, 3), t(3, type=I), 32, mode=3), ParameterError, "mode 3 is none of"),
    (lambda: ops.rope(t(64, 2, 3), t(12, type=I), 32, mode=8), ParameterError, "sections"),
    (lambda: ops.rope(t(64, 2, 3), t(3, type=I), 32, t(15)), ShapeError, "at least 16"),
    (lambda: ops.rope(t(64, 2, 3), t(3, type=I), 32, ext_factor=1, freq_base=1), ParameterError, "YaRN"),
    (lambda: ops.swiglu(t(8, 2), t(8, 3)), ShapeError, "same shape"),
    (lambda: ops.swiglu(t(8), t(8, type="f16")), TypeMismatchError, "same type"),
    (lambda: ops.swiglu(t(8), t(8), swapped=True), ParameterError, "exchange"),
    (lambda: ops.cpy(t(8), t(7)), ShapeError, "number of elements"),
    (lambda: ops.cont(t(8), 7), ShapeError, "number of elements"),
    (lambda: ops.cast(t(8), "f33"), ParameterError, "f33"),
    (lambda: ops.cast(t(8), "q8_0").nbytes, ShapeError, "blocks"),
    (lambda: ops.concat(t(8), t(8, type="f16"), 0), TypeMismatchError, "same type"),
    (lambda: ops.concat(t(8, 2), t(8, 3), 0), ShapeError, "except in dimension 0"),
    (lambda: ops.concat(t(8), t(8), 4), ParameterError, "dim"),
    (lambda: ops.repeat(t(8), 12), ShapeError, "multiples"),
    (lambda: ops.argmax(t(8, 2, 2)), ShapeError, "matrix"),
    (lambda: ops.argsort(t(8), order=2), ParameterError, "order"),
    (lambda: ops.reshape(t(8), 9), ShapeError, "number of elements"),
    (lambda: ops.reshape(t(8), -1, -1), ShapeError, "only one"),
    (lambda: ops.reshape(t(8), -1, 3), ShapeError, "infer"),
    (lambda: ops.reshape(ops.transpose(t(8, 2)), 16), ShapeError, "contiguous"),
    (lambda: ops.permute(t(8, 2), 0, 0, 1, 3), ShapeError, "permutation"),
    (
        lambda: ops.mul_mat(ops.view(t(64), 64, 3, nb=(0,)), t(64, 2)),
        ShapeError,
        "rows of a must not overlap, but are 0 bytes apart",
    ),
    (lambda: ops.view(t(8), 9), ShapeError, "bytes 0 to 36 are not inside of the source's 32 bytes"),
    (lambda: ops.view(t(8), 4, offset=20), ShapeError, "are not inside of"),
    (lambda: ops.view(t(8), 4, offset=-4), ParameterError, "offset"),
    (lambda: ops.view(t(64, type="q8_0"), 16), ShapeError, "blocks"),
]


@pytest.mark.parametrize(("make", "error", "message"), REFUSED, ids=[row[2] for row in REFUSED])
def test_what_does_not_fit_is_refused_with_a_reason(make: Any, error: type[GGPlugError], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_an_error_names_both_tensors() -> None:
    with pytest.raises(ShapeError, match=r"blk\.0\.q f16 \[64x32\], tokens f32 \[63x7\]") as caught:
        ops.mul_mat(t(64, 32, type="f16").named("blk.0.q"), t(63, 7).named("tokens"))
    assert isinstance(caught.value.op, ops.MulMat)
    assert [x.name for x in caught.value.tensor] == ["blk.0.q", "tokens"]


# -- operators -------------------------------------------------------------------------------------


def value(tensor: Tensor, given: dict[Tensor, Array]) -> Array:
    """A tensor's value by the ops' references."""
    if tensor in given:
        return given[tensor].reshape(tensor.ne[::-1])
    assert tensor.op is not None
    return tensor.op.reference(*(None if s is None else value(s, given) for s in tensor.src))


OPERATORS: list[Any] = [
    lambda a, b: a + b,
    lambda a, b: b + a,
    lambda a, b: a - b,
    lambda a, b: b - a,
    lambda a, b: a * b,
    lambda a, b: b * a,
    lambda a, b: a / b,
    lambda a, b: b / a,
    lambda a, b: -a + 2.5,
    lambda a, b: 2 - a * 3,
    lambda a, b: 1 / b,
    lambda a, b: abs(+b) / 4 - 1,
    lambda a, b: np.float32(2) * a,
]


@pytest.mark.parametrize(
    "pair", [((2, 3, 4), (4,)), ((3, 1), (1, 4)), ((3, 4), (3, 4)), ((2, 3, 4), (3, 1)), ((1,), (5,))]
)
@pytest.mark.parametrize("number", range(len(OPERATORS)))
def test_operators_are_numpys(number: int, pair: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    rng = np.random.default_rng(number)
    u, v = (rng.normal(size=shape) for shape in pair)
    a, b = (new_tensor("f32", shape[::-1]) for shape in pair)
    node = OPERATORS[number](a, b)
    want = OPERATORS[number](u, v)
    assert node.shape == want.shape
    np.testing.assert_allclose(value(node, {a: u, b: v}).reshape(want.shape), want, rtol=1e-12)


def test_operators_refuse_what_numpy_refuses() -> None:
    with pytest.raises(ShapeError, match=r"gg\.add also repeats"):
        t(8) + t(4)
    with pytest.raises(TypeError):
        t(8) + "1"  # type: ignore[operator]
    with pytest.raises(TypeError):
        np.ones(8) + t(8)
    with pytest.raises(ZeroDivisionError):
        t(8) / 0
    with pytest.raises(TypeError):
        t(8, 8) @ t(8)  # type: ignore[operator]


def test_comparison_is_identity() -> None:
    a, b = t(8), t(8)
    assert a != b
    assert {a: 1, b: 2}[a] == 1


def test_a_number_divided_by_a_tensor_is_right_where_the_tensor_is_zero_or_infinite() -> None:
    x = t(3)
    got = value(2 / x, {x: np.array([0.0, np.inf, 4.0])})
    assert got.reshape(-1).tolist() == [np.inf, 0.0, 0.5]


# -- cost and speed --------------------------------------------------------------------------------


def test_costs_count_operations_and_bytes() -> None:
    def cost(node: Tensor) -> tuple[int, int]:
        assert node.op is not None
        return node.op.cost(node)

    assert cost(ops.add(t(8, 4), t(8))) == (32, 4 * (32 + 8 + 32))
    assert cost(ops.mul_mat(t(64, 10, type="f16"), t(64, 5))) == (2 * 64 * 10 * 5, 2 * 640 + 4 * 320 + 4 * 50)
    experts, ids = t(64, 10, 8, type="f16"), t(2, 1, type=I)
    assert cost(ops.mul_mat_id(experts, t(64, 1, 1), ids)) == (2 * 64 * 20, experts.nbytes // 4 + 256 + 8 + 80)
    # A row of a table is read, not the table.
    assert cost(ops.get_rows(t(64, 1000), t(2, type=I)))[1] == 512 + 8 + 512


# -- text made from the declarations ---------------------------------------------------------------


def test_the_page_of_documentation_is_current() -> None:
    page = (ROOT / "docs" / "ops.md").read_text(encoding="utf-8")
    declared = page.partition("\n## Devices\n")[0]
    assert declared == listing.markdown(), "run: ggplug ops --markdown --device CPU --device OpenCL0 > docs/ops.md"


def test_the_page_has_the_formula_of_every_op() -> None:
    page = listing.markdown()
    for cls in OURS.values():
        if not cls.is_view:
            source = inspect.getsource(cls.reference).splitlines()
            assert source[-1].strip() in page, cls.name
    assert "return a + b" in page  # add's own part of what all binary ops have
    assert "# silu_back\ndef compute(" in page  # in another section than that of binary ops


def test_the_page_has_the_formula_of_all_that_formulas_call() -> None:
    """Functions, methods and properties of these modules, and what these call; each once."""
    page = listing.markdown()
    blocks = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    defined = re.findall(r"^ *(?:def|class) (\w+)|^(\w+)(?:: .*)? = ", blocks, re.MULTILINE)
    names = {name for pair in defined for name in pair}
    there: dict[str, object] = {}
    for module in [each for name, each in sys.modules.items() if name.startswith("ggplug.ops.")]:
        there |= {name: value for name, value in vars(module).items() if inspect.isfunction(value)}
    for called in set(re.findall(r"(?<![.\w])(\w+)\(", blocks)):
        home = "" if hasattr(builtins, called) else getattr(there.get(called), "__module__", "")
        assert called in names or not home.startswith("ggplug.ops."), called
    for name in ("alibi_slopes", "probabilities_of", "unfold", "tile", "frequencies", "pairs", "Axis", "_LARGEST"):
        assert name in names, name
    assert blocks.count("def tile(") == 1


def test_help_needs_no_other_page() -> None:
    functions = {name: value for name in ops.__all__ if inspect.isfunction(value := getattr(ops, name))}
    for name, function in functions.items():
        text = function.__doc__ or ""
        assert not re.search(r"\b[Ss]ee (also )?:(class|mod|func):", text), name
        first = text.partition("\n\n")[0]
        for referred in re.findall(r"^:func:`(\w+)`|As :func:`(\w+)`|as for :func:`(\w+)`", first):
            other = functions["".join(referred)].__doc__ or ""
            assert other.splitlines()[0] in text, name
    assert "q: F32 [dk, n, h, b]" in functions["flash_attn_ext"].__doc__
    assert "``n_tasks`` is the number of parts" in functions["map_custom1"].__doc__


def test_the_type_stub_is_current() -> None:
    stub = Path(ops.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    assert stub == listing.stub(), "run: python -m ggplug.ops.listing stub > ggplug-core/src/ggplug/ops/__init__.pyi"


def test_applying_an_op_needs_no_builder() -> None:
    assert apply(ops.Gelu(), (t(4),), "activation").name == "activation"
