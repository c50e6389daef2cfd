"""Whatever takes a type takes its name, in any case: every public function, method and class of ggplug and its models.

What takes types is found by annotations, and by the fields of ops.  Each has to stand in ``CALLS``.
"""

from __future__ import annotations

import importlib
import inspect
import re
import typing
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from public_interface import names_in

import ggplug as gg
import ggplug_models
from ggplug import gguf, ops, quantizing, quants
from ggplug.errors import ParameterError, TypeMismatchError
from ggplug.ops.base import OPS
from ggplug.ops.custom import callback
from ggplug.testing import Leafs, ReferenceDevice, evaluate
from ggplug.types import F16, Q4_0, Q8_0, Type, TypeName
from ggplug_models.benchmarks.synthetic import LlamaShape, write_llama

MODULES = (
    "ggplug.backend",
    "ggplug.discrete",
    "ggplug.errors",
    "ggplug.gguf",
    "ggplug.hookspecs",
    "ggplug.host",
    "ggplug.memory",
    "ggplug.ops",
    "ggplug.quantizing",
    "ggplug.quants",
    "ggplug.registry",
    "ggplug.scheduler",
    "ggplug.testing",
    "ggplug.types",
    "ggplug_models",
)
"""Those whose public names users call; and those of ``ggplug`` itself."""

RECORDS = {
    "ggplug.gguf.TensorInfo": "what a file says of a tensor",
    "ggplug.quantizing.Mixture": "a row of MIXTURES, which are named",
    "ggplug.quantizing.Quantized": "what became of a tensor",
}
"""Classes that are made to be read: their fields are types, and nobody gives them names."""


def public_functions() -> dict[str, Callable[..., Any]]:
    """Every function, every public method, and every class by its ``__init__``; each object once, by its first path."""
    found: dict[str, Callable[..., Any]] = {}
    objects = [(f"ggplug.{name}", getattr(gg, name)) for name in dir(gg) if not name.startswith("_")]
    for name in MODULES:
        module = importlib.import_module(name)
        objects += [(f"{name}.{each}", getattr(module, each)) for each in names_in(module)]
    seen = set()
    for path, each in objects:
        if id(each) in seen or not getattr(each, "__module__", "").startswith("ggplug"):
            continue
        seen.add(id(each))
        if inspect.isfunction(each):
            found[path] = each
        elif inspect.isclass(each):
            found |= dict(_methods(path, each))
    return found


def _methods(path: str, cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, value in vars(cls).items():
        function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if inspect.isfunction(function) and (name in ("__init__", "__new__") or not name.startswith("_")):
            yield path if name.startswith("__") else f"{path}.{name}", function


def takes_types(path: str, function: Callable[..., Any]) -> bool:
    """Whether a parameter is a type, by its annotation; of functions that apply an op, by the op's fields."""
    op = getattr(function, "op", None)
    if op is not None:
        return TypeName in typing.get_type_hints(op, include_extras=True).values()
    given = (str(each.annotation) for each in inspect.signature(function).parameters.values())
    return path not in RECORDS and any(re.search(r"\bType\b", each) for each in given)


FUNCTIONS = public_functions()
WITH_TYPES = {path for path, function in FUNCTIONS.items() if takes_types(path, function)} | {
    f"ggplug.ops.{op.__name__}"
    for op in OPS.values()
    if op.__module__.startswith("ggplug.") and TypeName in typing.get_type_hints(op, include_extras=True).values()
}

VALUES = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)


def shape_of(tensor: gg.Tensor) -> Any:
    return tensor.type, tensor.ne, tensor.op


def written(type: Any, path: Path) -> Any:
    with gguf.GGUFWriter(path / "x.gguf", "llama") as writer:
        writer.add_tensor("x", bytes(Q4_0.row_bytes(32)), type, (32,))
    with gguf.GGUFReader(path / "x.gguf") as reader:
        return reader.tensors["x"].type


def indexed(type: Any) -> Any:
    leafs = Leafs(1)
    return leafs.indices((4,), 9, type=type).type


CALLS: dict[str, tuple[Type, Callable[[Any, Path], Any]]] = {
    "ggplug.Context.new_tensor": (Q4_0, lambda t, _: shape_of(gg.Context().new_tensor(t, 32))),
    "ggplug.add_cast": (F16, lambda t, _: shape_of(gg.add_cast(gg.tensor(VALUES), gg.tensor(VALUES), t))),
    "ggplug.cast": (Q4_0, lambda t, _: shape_of(gg.cast(gg.tensor(VALUES), t))),
    "ggplug.custom_4d": (Q4_0, lambda t, _: gg.custom_4d(t, (32,), (), print).type),
    "ggplug.dequantize": (Q4_0, lambda t, _: gg.dequantize(bytes(range(18)), t).tobytes()),
    "ggplug.dup": (Q4_0, lambda t, _: shape_of(gg.dup(gg.tensor(VALUES), t))),
    "ggplug.im2col": (F16, lambda t, _: shape_of(gg.im2col(gg.tensor(VALUES), gg.tensor(VALUES), type=t))),
    "ggplug.im2col_3d": (F16, lambda t, _: shape_of(gg.im2col_3d(gg.tensor(VALUES), gg.tensor(VALUES), 1, type=t))),
    "ggplug.new_tensor": (Q4_0, lambda t, _: shape_of(gg.new_tensor(t, 32))),
    "ggplug.ops.Custom4d": (Q4_0, lambda t, _: ops.Custom4d(callback(print, None), 1, False, t, (32,)).type),
    "ggplug.ops.Dup": (Q4_0, lambda t, _: ops.Dup(t)),
    "ggplug.ops.Im2col": (F16, lambda t, _: ops.Im2col(type=t)),
    "ggplug.ops.Im2col3d": (F16, lambda t, _: ops.Im2col3d(1, type=t)),
    "ggplug.quantize": (Q4_0, lambda t, _: gg.quantize(VALUES, t).tobytes()),
    "ggplug.tensor": (Q4_0, lambda t, _: shape_of(gg.tensor(VALUES, t))),
    "ggplug.gguf.GGUFWriter.add_tensor": (Q4_0, written),
    "ggplug.quantizing.Override": (Q4_0, lambda t, _: quantizing.Override("ffn", t)),
    "ggplug.quantizing.Override.of": (Q4_0, lambda t, _: quantizing.Override.of(("ffn", t))),
    "ggplug.quants.can_dequantize": (Q4_0, lambda t, _: quants.can_dequantize(t)),
    "ggplug.quants.can_quantize": (Q4_0, lambda t, _: quants.can_quantize(t)),
    "ggplug.quants.can_store": (Q4_0, lambda t, _: quants.can_store(t)),
}


def scaled(type: Any) -> bytes:
    data = np.zeros(18, np.uint8)
    quants.put_scales(data, type, 2.0)
    return data.tobytes()


CALLS["ggplug.quants.put_scales"] = Q4_0, lambda t, _: scaled(t)
CALLS |= {
    f"ggplug.testing.Leafs.{name}": (kind, call)
    for name, kind, call in (
        ("tensor", Q4_0, lambda t, _: Leafs(1).tensor(t, 32).type),
        ("array", F16, lambda t, _: Leafs(1).array(t, VALUES[0].reshape(1, 1, 1, 32)).type),
        ("bits", F16, lambda t, _: Leafs(1).bits(t, np.zeros(32, np.uint16)).type),
        ("any_bytes", Q4_0, lambda t, _: Leafs(1).any_bytes(t, 32).type),
        ("indices", gg.I32, lambda t, _: indexed(t)),
    )
}


def kept_wide(type: Any, _: Path) -> bool:
    x = gg.new_tensor("f16", 32)
    values = {x: VALUES[0].astype(np.float64)}
    return bool((evaluate(gg.Graph(gg.scale(x, 1.0)), values, wide=[type])[x] == values[x]).all())


CALLS["ggplug.testing.evaluate"] = F16, kept_wide


def quantized(quantize: Callable[..., list[Any]], type: Any, path: Path) -> list[Type]:
    with gguf.GGUFWriter(path / "model.gguf", "llama") as writer:
        writer.add_tensor("blk.0.ffn.weight", VALUES)
    return [each.after for each in quantize(path / "model.gguf", "copy", overrides=[("ffn", type)])]


def quantize_file(source: Path, name: str, **how: Any) -> list[Any]:
    return quantizing.quantize_file(source, source.with_name("out.gguf"), name, compiled=False, **how)


CALLS["ggplug.quantizing.quantize_file"] = Q4_0, partial(quantized, quantize_file)
CALLS["ggplug.quantizing.preview_file"] = Q4_0, partial(quantized, quantizing.preview_file)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    shape = LlamaShape(n_embd=32, n_ff=32, n_layer=1, n_head=1, n_head_kv=1, n_vocab=300, n_ctx=8)
    path = write_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", shape)
    with ggplug_models.load(path, [ReferenceDevice()]) as loaded:
        yield loaded


OF_MODELS: dict[str, Callable[[Any, Any], Any]] = {
    "ggplug_models.Decoder.session": lambda model, type: model.session(8, cache_type=type),
    "ggplug_models.DraftModel": lambda model, type: ggplug_models.DraftModel(model, 8, cache_type=type).session,
    "ggplug_models.Session": lambda model, type: ggplug_models.Session(model, 8, cache_type=type),
}
BY_FILE = {"ggplug_models.convert", "ggplug_models.fit"}
"""Tried in test_models_convert.py, where there are folders to convert, and in test_models_fit.py."""


def names(type: Type) -> list[str]:
    return [type.name, type.name.upper(), type.name.title()]


def test_all_that_takes_types_is_called_here() -> None:
    assert {*CALLS, *OF_MODELS, *BY_FILE} == WITH_TYPES
    assert RECORDS.keys() <= FUNCTIONS.keys()
    assert {"ggplug.cast", "ggplug.dup", "ggplug.quantize", "ggplug.Context.new_tensor"} <= WITH_TYPES


@pytest.mark.parametrize("path", sorted(CALLS))
def test_types_are_taken_by_name(path: str, tmp_path: Path) -> None:
    type, call = CALLS[path]
    wanted = call(type, tmp_path)
    for name in names(type):
        assert call(name, tmp_path) == wanted


@pytest.mark.parametrize("path", sorted(CALLS))
def test_what_is_no_type_is_refused_with_those_that_there_are(path: str, tmp_path: Path) -> None:
    _, call = CALLS[path]
    with pytest.raises(ParameterError, match="unknown GGML type 'q9_9'; the types are f32, f16, q4_0"):
        call("q9_9", tmp_path)
    with pytest.raises(ParameterError, match=r"type 31 \(q4_0_4_4\) was removed from ggml \(use q4_0"):
        call("q4_0_4_4", tmp_path)
    for value in (np.float16, 2, b"q4_0"):
        with pytest.raises(TypeMismatchError, match=r"a type must be a ggplug\.types\.Type or its name, got"):
            call(value, tmp_path)


@pytest.mark.parametrize("path", sorted(OF_MODELS))
def test_caches_take_types_by_name(path: str, model: Any) -> None:
    for given in (Q8_0, *names(Q8_0)):
        with OF_MODELS[path](model, given) as session:
            assert session.memory.type is Q8_0
    with pytest.raises(ParameterError, match="cache_type must be one of f32, f16"):
        OF_MODELS[path](model, "q9_9")


def test_ops_whose_types_are_spelled_otherwise_are_one_op() -> None:
    x = gg.tensor(VALUES)
    assert gg.dup(x, "F16").op is gg.dup(x, "f16").op is gg.cast(x, F16).op
    assert ops.Dup("F16").type == ops.Dup(F16).type == "f16"
    assert gg.add_cast(x, x, "F32").op == gg.add(x, x).op
