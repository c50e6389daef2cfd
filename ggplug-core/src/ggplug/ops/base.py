"""The framework in which each op is declared once.

An op is a class.  Its fields are its parameters; its methods give shape, type and values of the result::

    class RmsNorm(Op):
        \"\"\"y = x / sqrt(mean(x**2 over ne0) + eps)  (ggml_rms_norm).\"\"\"

        eps: float = 1e-6

        def result(self, x: Tensor) -> Spec:          # type and shape, or a ShapeError
            return like(x)

        def reference(self, x):                       # the values, in float64, by NumPy
            return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps)

    rms_norm = builder(RmsNorm)                       # gg.rms_norm(x, eps=1e-6)

The parameters of ``result`` are the sources; one with default ``None`` is optional.  Other properties are class
attributes, declared only where they differ from the default:

``writes``   sources whose bytes the op overwrites; its result is a view of the first of them.  If there are several,
             the reference returns a tuple of their new values.
``inplace``  sources whose bytes the allocator may use for the result, if nothing else reads them and they have
             the result's type, extents and strides.  Kernels must then be correct on shared bytes.
``is_view``  the op computes nothing: its result has other strides over its source's bytes.
``moves``    each element of the result is an element of a source: between equal types the bits are kept.
``indexes``  which source holds ids, and what they choose: an :class:`Indexes`.  The contract in :mod:`ggplug.backend`
             says what a device does with an id that is out of range.

**Special values.**  A reference is the formula in IEEE arithmetic, which defines the results for NaN, infinities and
signed zeros.  The docstring of an op gives results that do not follow from its formula.  Where ggml's CPU backend has
a defined result, it is the same.

**Empty tensors.**  A result without elements is not computed.  Sums over nothing are 0.  Where an extent must be a
multiple of another one, this holds for each dimension, and only 0 is a multiple of 0.

References receive four-dimensional arrays in NumPy order (``ne`` reversed): float64 for every float or
quantised type, the integer dtype for integer types, ``None`` for absent sources.  They return the
values of the result; the framework rounds them to the result's type.  The reference of an op that writes returns the
whole source, with the elements that it does not change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import keyword
import re
import typing
import weakref
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from ggplug.errors import DuplicateNameError, ParameterError, ShapeError, TypeMismatchError
from ggplug.tensor import Array, Cost, Indexes, Operation, Tensor, describe
from ggplug.types import FLOATS, Type, TypeName, as_type

__all__ = ["OPS", "Array", "Cost", "Indexes", "Op", "apply", "builder"]


class ByIdentity:
    """A parameter that is a Python object, such as a function: compared by identity, and never serialised.

    ``number`` stands for it in the op's key, so that dictionaries by keys do not keep the object alive.  No two
    objects ever have the same number.
    """

    __slots__ = ()
    number: int


@typing.dataclass_transform(frozen_default=True, eq_default=False)
class Op(Operation):
    """Base of all ops.  An instance is an op with its parameters: immutable and hashable.

    Parameters are plain data, or :class:`ByIdentity`.
    """

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
        __signature__: ClassVar[Signature]
        _signature: ClassVar[Signature]

    def __init_subclass__(cls, *, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.__dict__.get("name"):
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        if inspect.get_annotations(cls):
            # dataclass() only finds the fields: the methods that it makes took half of the time of importing the ops.
            doc, cls.__doc__ = cls.__doc__, cls.__doc__ or "not empty: dataclass() would replace it"
            dataclasses.dataclass(init=False, eq=False, repr=False)(cls)
            cls.__doc__ = doc
        cls._signature = _signature_of(cls)
        cls.__signature__ = _own_signature(cls) or cls._signature
        cls.parameters = tuple(f.name for f in dataclasses.fields(cls))
        package = cls.__module__.partition(".")[0]
        derived = (base for base in cls.__mro__ if issubclass(base, Op) and base is not Op)
        cls.kinds = tuple(base for base in derived if base.__module__.partition(".")[0] == package)
        if abstract:
            return
        concrete = next((base for base in cls.__mro__[1:] if OPS.get(getattr(base, "name", "")) is base), None)
        if concrete is not None:
            raise TypeError(
                f"{cls.__name__} derives from the op {concrete.__name__}, so devices would compute it as that op; "
                "derive both from an abstract op (class Base(Op, abstract=True)), or this one from Op"
            )
        if not hasattr(cls, "result"):
            raise TypeError(f"{cls.__name__} has no method result(self, *sources), which returns type and shape")
        cls.sources, cls.optional = _declared(cls.result)
        _check_declaration(cls)
        if cls.name in OPS:
            raise DuplicateNameError(
                f"op {cls.name!r} of {cls.__module__} is already defined in {OPS[cls.name].__module__}; "
                "begin the name of an op outside of ggplug with its package, such as 'mypackage.wavelet'"
            )
        OPS[cls.name] = cls

    if not TYPE_CHECKING:  # to checkers they are those of a frozen dataclass

        def __init__(self, /, *args: Any, **kwargs: Any) -> None:
            """The op with these parameters, by position or name."""
            cls = type(self)
            by_name = dict(zip(cls.parameters, args, strict=False))
            if kwargs or len(by_name) != len(args) or len(args) != len(cls._signature.parameters):
                by_name = _bound(cls, args, kwargs)
            types = _types(cls)
            values = []
            for name in cls.parameters:
                value = _plain(self, name, by_name[name], types[name])
                object.__setattr__(self, name, value)
                values.append(value.number if isinstance(value, ByIdentity) else value)
            object.__setattr__(self, "key", (cls.name, *values))
            self.validate()

        def __setattr__(self, name: str, value: object) -> None:
            raise dataclasses.FrozenInstanceError(f"{type(self).__name__}.{name} cannot be set: make another op")

        def __delattr__(self, name: str) -> None:
            raise dataclasses.FrozenInstanceError(f"{type(self).__name__}.{name} cannot be deleted: make another op")

    def validate(self) -> None:
        """Raises ParameterError if a parameter is out of its range."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Op) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        changed = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != f.default
        ]
        return f"{self.name}({', '.join(changed)})" if changed else self.name


def _signature_of(cls: type[Op]) -> Signature:
    """The signature of a class's constructor: its fields in order, those by keyword only last.

    Raises TypeError for fields that are no parameters, or in an order that no function can have.
    """
    parameters = []
    for field in sorted(dataclasses.fields(cls), key=lambda field: bool(field.kw_only)):
        kind = Parameter.KEYWORD_ONLY if field.kw_only else Parameter.POSITIONAL_OR_KEYWORD
        if not field.init:
            raise TypeError(f"{cls.__name__}.{field.name} has init=False: declare it as ClassVar if it is no parameter")
        parameters.append(Parameter(field.name, kind, default=_default_of(field), annotation=field.type))
    try:
        return Signature(parameters)
    except ValueError as error:
        raise TypeError(f"{cls.__name__}: {error}") from None


def _default_of(field: dataclasses.Field[Any]) -> Any:
    """A field's default, or ``Parameter.empty``."""
    if field.default is not dataclasses.MISSING:
        return field.default
    return Parameter.empty if field.default_factory is dataclasses.MISSING else field.default_factory()


def _own_signature(cls: type[Op]) -> Signature | None:
    """The signature of an ``__init__`` that the class or a base defines, instead of one made from the fields."""
    if cls.__init__ is Op.__init__:
        return None
    signature = inspect.signature(cls.__init__)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _bound(cls: type[Op], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The parameters by name, with defaults.  Raises TypeError if the arguments do not fit."""
    try:
        bound = cls._signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{cls.__name__}: {error}") from None
    bound.apply_defaults()
    return bound.arguments


def _check_declaration(cls: type[Op]) -> None:
    """Raises TypeError for a malformed declaration of an op, which would otherwise fail far from the class."""
    short = cls.name.rpartition(".")[2]
    if not short.isidentifier() or keyword.iskeyword(short):
        raise TypeError(f"the name {cls.name!r} of {cls.__name__} is not that of a function: use a Python identifier")
    both = sorted(set(cls.sources) & set(cls.parameters))
    if both:
        raise TypeError(f"{cls.__name__}: {both[0]} is both a source (of result) and a parameter (a field)")
    for fact in ("writes", "inplace"):
        value = getattr(cls, fact)
        if not all(isinstance(at, int) and 0 <= at < len(cls.sources) for at in value):
            raise TypeError(f"{cls.__name__}.{fact} must hold positions in {cls.sources}, got {value!r}")
    if hasattr(cls, "__post_init__"):
        raise TypeError(f"{cls.__name__}.__post_init__ is never called: check parameters in validate()")


def _declared(result: Any) -> tuple[tuple[str, ...], frozenset[str]]:
    """The names of the sources that an op's ``result`` takes, and of those that may be left out."""
    code = getattr(result, "__code__", None)
    if code is None or code.co_kwonlyargcount or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        declared = list(inspect.signature(result).parameters.values())[1:]
        return tuple(p.name for p in declared), frozenset(p.name for p in declared if p.default is None)
    # The common case; inspect.signature for a hundred ops would take a twentieth of the time of `import ggplug`.
    names = code.co_varnames[1 : code.co_argcount]
    defaults = result.__defaults__ or ()
    return names, frozenset(n for n, d in zip(names[len(names) - len(defaults) :], defaults, strict=True) if d is None)


dataclasses.dataclass(init=False, eq=False, repr=False)(Op)  # has no fields; type checkers need not know it

OPS: dict[str, type[Op]] = {}
"""Every op by name: those of core and of other packages."""


def apply(op: Operation, src: tuple[Tensor | None, ...], name: str = "") -> Tensor:
    """A new node: ``op`` applied to its sources.  Raises ShapeError, TypeMismatchError."""
    for position, tensor in enumerate(src):
        if tensor.__class__ is not Tensor and (tensor is not None or op.sources[position] not in op.optional):
            raise TypeMismatchError(
                f"{op.name}: source {op.sources[position]!r} must be a tensor, got {type(tensor).__name__} "
                "(gg.tensor(array) makes one)",
                op=op,
                got=type(tensor),
            )
    return Tensor(op.result(*src), op, src, name)


Function = typing.TypeVar("Function", bound=Callable[..., Any])


def builder(cls: type[Op]) -> Callable[..., Tensor]:
    """The function that makes a node of an op: it takes sources, then parameters, then ``name``.

    It has the signature and docstring of the op.  Nodes with equal parameters share one op object.
    """
    wanted = [s for s in cls.sources if s not in cls.optional]
    optional = [s for s in cls.sources if s in cls.optional]
    of = cls._signature.parameters.values()
    by_place = [p for p in of if p.kind is not Parameter.KEYWORD_ONLY]
    defaults = {p.name: p.default for p in of if p.default is not Parameter.empty}
    spelled = {p.name: f"{p.name}=_default_{p.name}" if p.name in defaults else p.name for p in of}
    head = [
        *wanted,
        *(spelled[p.name] for p in by_place if p.name not in defaults),
        *(f"{s}=None" for s in optional),
        *(spelled[p.name] for p in by_place if p.name in defaults),
    ]
    by_name = [spelled[p.name] for p in of if p.kind is Parameter.KEYWORD_ONLY]
    # With their classes, because True and 1.0 are equal but not both a number.
    parameters = "".join([f"{n}, " for n in cls.parameters] + [f"{n}.__class__, " for n in cls.parameters])
    text = (
        f"def {cls.name.rpartition('.')[2]}({', '.join([*head, '*', *by_name])}, name=''):\n"
        f"    key = ({parameters})\n"
        f"    try:\n"
        f"        op = _interned.get(key)\n"
        f"    except TypeError:\n"
        f"        op = None\n"
        f"    if op is None:\n"
        f"        op = _intern(key)\n"
        f"    return _apply(op, ({''.join(f'{s}, ' for s in cls.sources)}), name)\n"
    )
    interned: dict[tuple[Any, ...], Op] = {}
    equal: weakref.WeakValueDictionary[tuple[Any, ...], Op] = weakref.WeakValueDictionary()

    def intern(key: tuple[Any, ...]) -> Op:
        values = key[: len(cls.parameters)]
        op = cls(**dict(zip(cls.parameters, values, strict=True))) if by_name else cls(*values)
        op = equal.setdefault(op.key, op)
        if len(interned) > 4096:
            interned.clear()
        with contextlib.suppress(TypeError):  # lists and arrays have no hash
            interned[key] = op
        return op

    space: dict[str, Any] = {f"_default_{n}": v for n, v in defaults.items()}
    space |= {"_interned": interned, "_intern": intern, "_apply": apply}
    exec(text, space)
    function = space[cls.name.rpartition(".")[2]]
    function.__doc__ = inspect.getdoc(cls)
    function.__module__ = cls.__module__
    function.__qualname__ = function.__name__
    function.op = cls
    return typing.cast("Callable[..., Tensor]", function)


def explained_by(*others: Any) -> Callable[[Function], Function]:
    """Appends docstrings of classes and functions, or texts, to that of a function, so that ``help`` shows them."""

    def extend(function: Function) -> Function:
        texts = [inspect.cleandoc(each) if isinstance(each, str) else inspect.getdoc(each) for each in others if each]
        function.__doc__ = "\n\n".join(text for text in (inspect.getdoc(function), *texts) if text)
        return function

    return extend


def _types(cls: type[Op]) -> dict[str, Any]:
    """The types of an op's annotations, evaluated when the first op of the class is made."""
    found = _resolved.get(cls)
    if found is None:
        found = _resolved[cls] = typing.get_type_hints(cls, include_extras=True)
    return found


_resolved: dict[type[Op], dict[str, Any]] = {}


def _plain(op: Op, name: str, value: Any, kind: Any) -> Any:
    """A parameter as the builtin that its annotation names.

    NumPy scalars and enums become plain numbers, types their names.
    """
    if kind == TypeName:
        return value if value == "" else as_type(value).name
    try:
        if kind is bool and isinstance(value, (bool, np.bool_)):
            return bool(value)
        if kind is int and isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            return int(value)
        if kind is float and not isinstance(value, (bool, np.bool_, str, bytes)) and value == value:
            # Ops with equal parameters are one object, so NaN (unequal to itself) and -0.0 (equal to 0.0) are replaced.
            return float(value) + 0.0
        if kind is str and isinstance(value, str):
            return str(value)
        if isinstance(kind, type) and issubclass(kind, ByIdentity) and isinstance(value, kind):
            return value
        if typing.get_origin(kind) is tuple:
            inner = typing.get_args(kind)[0]
            return tuple(_plain(op, name, v, inner) for v in value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ParameterError(f"{op.name}: parameter {name!r} must be {_spell(kind)}, got {value!r}", op=op.name, got=value)


def _spell(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind)) if typing.get_origin(kind) is None else str(kind)


def require(condition: bool, op: Op, message: str, *tensors: Tensor | None) -> None:
    """Raises ShapeError with the op and all its sources unless ``condition`` holds."""
    if not condition:
        misfit(op, message, *tensors)


def misfit(op: Op, message: str, *tensors: Tensor | None) -> NoReturn:
    """Raises ShapeError with the op and all its sources."""
    raise ShapeError(f"{op.name}: {message}; got {describe(tensors)}", op=op, tensor=tensors)


def mismatch(op: Op, message: str, *tensors: Tensor | None) -> NoReturn:
    """Raises TypeMismatchError with the op and all its sources."""
    raise TypeMismatchError(f"{op.name}: {message}; got {describe(tensors)}", op=op, tensor=tensors)


def is_multiple(n: int, m: int) -> bool:
    """Whether an extent ``m`` can be repeated to ``n``; an extent of 0 can only become 0."""
    return n % m == 0 if m else n == 0


def require_float(op: Op, *tensors: Tensor | None) -> None:
    """Raises TypeMismatchError unless all tensors hold plain floats (F32, F16, BF16, F64)."""
    for tensor in tensors:
        if tensor is not None and tensor.type not in FLOATS:
            wanted = "integers are not converted implicitly (use gg.cast)"
            if tensor.type.is_quantized:
                wanted = "single elements of a quantised type cannot be computed (use gg.cast)"
            mismatch(op, f"takes f32, f16, bf16 or f64; {wanted}", *tensors)


def require_type(op: Op, type: Type, tensor: Tensor, *tensors: Tensor | None) -> None:
    """Raises TypeMismatchError unless ``tensor`` has ``type``; ``tensors``: all sources, for the message."""
    if tensor.type is not type:
        role = next((r for r, t in zip(op.sources, tensors, strict=False) if t is tensor), "source")
        mismatch(op, f"{role} must be {type.name}", *tensors)
