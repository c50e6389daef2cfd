"""Numba as a compiler: typed Python to LLVM code for our target, then to an object file.

Importing this module imports Numba, so only :mod:`ggplug_cpu.compiler` does, when something has to be compiled.

Numba's own CPU target generates code for Numba's idea of the host, optimises and links every function that it meets
into its process-wide engine.  Ours is a target of its own (registered under a name of its own, so other users of
Numba in the process are unaffected): device functions are only translated to LLVM code; the kernel that calls them is
linked, optimised once as a whole, and written out as an object file.
"""

# Numba is untyped in part, llvmlite wholly
# mypy: allow-untyped-calls, disable-error-code="attr-defined,misc,name-defined,assignment,no-any-return,override"

from __future__ import annotations

import dis
import functools
from types import CodeType
from typing import Any, ClassVar

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import callconv, codegen, compiler, cpu, errors, types, typing, utils
from numba.core.compiler_lock import global_compiler_lock
from numba.core.descriptors import TargetDescriptor
from numba.core.dispatcher import Dispatcher
from numba.core.target_extension import CPU, JitDecorator, dispatcher_registry, jit_registry, target_registry
from numba.core.typing.templates import AbstractTemplate

from ggplug.errors import KernelCompileError
from ggplug_cpu import recorded, vectors
from ggplug_cpu.features import Target
from ggplug_cpu.loader import ENTRY

_KERNEL_ARGUMENTS = (types.int64, types.int64)


# -- functions for the compiler module ---------------------------------------------------------------


def compile_kernel(kernel: recorded.Compilable, target: Target) -> bytes:
    """The object file of ``kernel`` for ``target``; its one exported symbol is ``loader.ENTRY``."""
    return bytes(_compiler(target).machine.emit_object(_optimised(kernel, target)))


def inspect_kernel(kernel: recorded.Compilable, target: Target, what: str) -> str:
    """The optimised code of ``kernel`` as text: ``what`` is ``assembly`` or ``llvm``."""
    module = _optimised(kernel, target)
    return str(_compiler(target).machine.emit_assembly(module) if what == "assembly" else module)


def _optimised(kernel: recorded.Compilable, target: Target) -> llvm.ModuleRef:
    body = kernel.body()
    try:
        return _compiler(target).compile(kernel, body)
    except KernelCompileError:
        raise
    except Exception as error:  # Numba's, LLVM's, or of the code of an intrinsic
        raise KernelCompileError(
            f"kernel {kernel.name} does not compile for {target}: {error}",
            op=kernel.name,
            log=str(error),
            remedy="ggplug_cpu/compiler.py says what kernels may do",
        ) from error


@functools.cache
def _compiler(target: Target) -> _Compiler:
    return _Compiler(target)


# -- code generation --------------------------------------------------------------------------------


class _Library(codegen.CPUCodeLibrary):
    """The LLVM module of one function, not optimised; a kernel's module contains all that it calls."""

    def add_llvm_module(self, ll_module: llvm.ModuleRef) -> None:
        ll_module.data_layout = self._codegen._data_layout
        self._final_module.link_in(ll_module)

    def finalize(self) -> None:
        self._raise_if_finalized()
        self._finalized = True

    def link(self) -> llvm.ModuleRef:
        """Returns the module with every function that this one calls, directly or not."""
        self.finalize()
        called = dict.fromkeys(self._linking_libraries)
        waiting = list(called)
        while waiting:
            for library in waiting.pop()._linking_libraries:
                if library not in called:
                    called[library] = None
                    waiting.append(library)
        for library in called:
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        return self._final_module

    def get_pointer_to_function(self, name: str) -> int:
        return 0


class _Codegen(codegen.CPUCodegen):
    """Target machine and optimiser for one :class:`~ggplug_cpu.features.Target`; no execution engine."""

    _library_class = _Library

    def __init__(self, name: str, target: Target) -> None:
        self._target = target
        super().__init__(name)

    def _init(self, llvm_module: llvm.ModuleRef) -> None:
        self._tm_features = self._target.features
        self._tm = llvm.Target.from_triple(self._target.triple).create_target_machine(
            cpu=self._target.cpu,
            features=self._target.features,
            opt=3,
            # as for Numba's own: code is loaded anywhere and reaches libm with absolute addresses
            reloc="static" if self._target.triple.startswith("x86") else "default",
            codemodel="jitdefault",
            jit=True,
        )
        self._engine = None
        self._target_data = self._tm.target_data
        self._data_layout = str(self._target_data)

    def _add_module(self, module: llvm.ModuleRef) -> None:
        return None

    def _create_empty_module(self, name: str) -> ir.Module:
        module = super()._create_empty_module(name)
        module.triple = self._target.triple
        return module

    def optimise(self, module: llvm.ModuleRef) -> None:
        """LLVM's O3 pipeline over a whole kernel, with loop and block vectorisation."""
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization = True
        options.slp_vectorization = True
        builder = llvm.create_pass_builder(self._tm, options)
        builder.getModulePassManager().run(module, builder)


class _CallConvention(callconv.CPUCallConv):
    """Numba's calling convention without Python exceptions: an error status ends the kernel, and its caller ignores
    it.
    """

    def set_static_user_exc(self, *args: Any, **kwargs: Any) -> None:
        return None

    def return_user_exc(self, builder: ir.IRBuilder, *args: Any, **kwargs: Any) -> None:
        self._return_errcode_raw(builder, callconv.RETCODE_USEREXC)

    def return_dynamic_user_exc(self, builder: ir.IRBuilder, *args: Any, **kwargs: Any) -> None:
        self._return_errcode_raw(builder, callconv.RETCODE_USEREXC)


class _Context(cpu.CPUContext):
    """Lowering without Numba's run-time library, Python's C API or wrappers for Python callers."""

    def __init__(self, typing_context: typing.Context, name: str, target: Target) -> None:
        self._ggplug_target = target
        super().__init__(typing_context, name)

    def init(self) -> None:
        self.is32bit = utils.MACHINE_BITS == 32
        self._internal_codegen = _Codegen("ggplug", self._ggplug_target)

    def load_additional_registries(self) -> None:
        from numba.core import optional  # noqa: F401  # their import registers what scalars and loops need
        from numba.cpython import builtins, enumimpl, mathimpl, numbers, rangeobj, tupleobj  # noqa: F401
        from numba.misc import literal  # noqa: F401
        from numba.np import npyimpl

        self.install_registry(mathimpl.registry)
        self.install_registry(npyimpl.registry)

    @property
    def call_conv(self) -> _CallConvention:
        return _CallConvention(self)

    def post_lowering(self, mod: ir.Module, library: _Library) -> None:
        if self.fastmath:
            from numba.core import fastmathpass

            fastmathpass.rewrite_module(mod, self.fastmath)

    def declare_env_global(self, module: ir.Module, envname: str) -> None:
        return None  # it would hold Python objects

    def get_python_api(self, builder: ir.IRBuilder) -> Any:
        raise errors.UnsupportedError("kernels cannot use Python objects (print, strings, exceptions with values)")

    def get_executable(self, library: _Library, fndesc: Any, env: Any) -> object:
        return object()  # only a key under which Numba finds the function again


class _TypingContext(typing.Context):
    """Numba's typing, which also resolves what this package's decorators recorded."""

    def __init__(self, compiler: _Compiler) -> None:
        self._ggplug_compiler = compiler
        super().__init__()

    def load_additional_registries(self) -> None:
        from numba.core.typing import cffi_utils, cmathdecl, enumdecl, mathdecl, npydecl, setdecl  # noqa: F401

        self.install_registry(mathdecl.registry)
        self.install_registry(npydecl.registry)

    def resolve_value_type(self, val: Any) -> types.Type:
        if isinstance(val, recorded.DeviceFunction):
            return super().resolve_value_type(self._ggplug_compiler.dispatcher(val))
        if isinstance(val, recorded.Intrinsic):
            return self._ggplug_compiler.intrinsic(val)
        if isinstance(val, recorded.Namespace) or (isinstance(val, type) and issubclass(val, recorded.Namespace)):
            return types.Module(val)
        return super().resolve_value_type(val)


class _Descriptor(TargetDescriptor):
    options = cpu.CPUTargetOptions
    typing_context: Any = None  # properties in Numba; plain attributes do
    target_context: Any = None

    def __init__(self, name: str, typing_context: _TypingContext, target_context: _Context) -> None:
        super().__init__(name)
        self.typing_context = typing_context
        self.target_context = target_context


# -- one compiler for each target --------------------------------------------------------------------------


class _Compiler:
    """Numba set up for one target."""

    def __init__(self, target: Target) -> None:
        codegen.initialize_llvm()
        llvm.initialize_native_asmparser()  # otherwise inline assembly in an intrinsic would end the process
        if target.triple != llvm.get_process_triple():
            llvm.initialize_all_targets()
            llvm.initialize_all_asmprinters()
        self.target = target
        self.name = f"ggplug-{target.key}"
        token = type("GGPlugCPU", (CPU,), {})
        target_registry[self.name] = token
        self.typing_context = _TypingContext(self)
        self.context = _Context(self.typing_context, self.name, target)

        vectors.install_operators(self.typing_context, self.context)

        class OurDispatcher(Dispatcher):
            targetdescr = _Descriptor(self.name, self.typing_context, self.context)

            def _compilation_chain_init_hook(self) -> None:
                return None  # no Numba extensions of other packages in kernels

            def add_overload(self, cres: Any) -> None:
                self.overloads[tuple(cres.signature.args)] = cres  # nothing that Python could call

        compiler_of_target = self

        class Jit(JitDecorator):
            """Compiles the Python code of some of Numba's built-in functions."""

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                pass

            def __call__(self, function: Any) -> Dispatcher:
                return compiler_of_target._dispatch(function, False)

        dispatcher_registry[token] = OurDispatcher
        jit_registry[token] = Jit
        self._dispatcher_class = OurDispatcher

    @property
    def machine(self) -> llvm.TargetMachine:
        return self.context.codegen()._tm

    # what was recorded, as Numba's objects

    def dispatcher(self, function: recorded.DeviceFunction) -> Dispatcher:
        """Numba's dispatcher of a device function."""
        found = function.materialised.get(self.target.key)
        if found is None:
            _refuse_raise(function.function.__code__, f"device function {function.function.__qualname__}")
            found = function.materialised[self.target.key] = self._dispatch(function.function, function.fastmath)
        return found

    def intrinsic(self, function: recorded.Intrinsic) -> types.Function:
        """Numba's type of an intrinsic; its lowering is registered in this context only."""
        found = function.materialised.get(self.target.key)
        if found is None:
            found = function.materialised[self.target.key] = self._intrinsic(function)
        return found

    def _intrinsic(self, function: recorded.Intrinsic) -> types.Function:
        our_context = self.context

        def lower(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> ir.Value:
            value = function.function(builder, *args)
            return context.get_dummy_value() if value is None else value

        class Template(AbstractTemplate):
            key = function
            lowered: ClassVar[set[Any]] = set()

            def generic(self, args: Any, kws: Any) -> Any:
                text = vectors.signature_for(function.signature, args)
                if text is None or kws:
                    return None
                result, arguments = vectors.parse(text)
                if len(args) != len(arguments) or not all(map(self.context.can_convert, args, arguments)):
                    return None
                if arguments not in self.lowered:
                    self.lowered.add(arguments)
                    our_context.insert_func_defn([(lower, function, arguments)])
                return typing.signature(result, *arguments)

        return types.Function(Template)

    def _dispatch(self, function: Any, fastmath: recorded.Fastmath) -> Dispatcher:
        return self._dispatcher_class(function, {}, _options(fastmath, forceinline=True))

    # kernels

    @global_compiler_lock  # type: ignore[untyped-decorator]
    def compile(self, kernel: recorded.Compilable, body: recorded.Body) -> llvm.ModuleRef:
        """The optimised module of a kernel: one exported function ``void(int64, int64)``."""
        _refuse_raise(body.__code__, f"kernel {kernel.name}")
        flags = compiler.Flags()
        cpu.CPUTargetOptions.parse_as_flags(flags, _options(kernel.fastmath, forceinline=True))
        result = compiler.compile_extra(
            self.typing_context, self.context, body, _KERNEL_ARGUMENTS, types.none, flags, {}
        )
        # Nothing calls a kernel, and with it Numba would keep the code of all that it calls: tens of megabytes.
        self.context.remove_user_function(result.entry_point)
        module = self._with_entry(result.fndesc, result.library)
        self.context.codegen().optimise(module)
        return module

    def _with_entry(self, fndesc: Any, library: _Library) -> llvm.ModuleRef:
        """``library``'s module with a plain C function around the kernel, and nothing else visible."""
        module = self.context.create_module("entry")
        callee = ir.Function(
            module, self.context.call_conv.get_function_type(types.none, _KERNEL_ARGUMENTS), fndesc.llvm_func_name
        )
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 2), ENTRY)
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        self.context.call_conv.call_function(builder, callee, types.none, _KERNEL_ARGUMENTS, function.args)
        builder.ret_void()
        whole = library._codegen.create_library("kernel")
        whole.add_ir_module(module)
        whole.add_linking_library(library)
        final = whole.link()
        for each in final.functions:
            if not each.is_declaration and each.name != ENTRY:
                each.linkage = "internal"
        final.verify()
        return final


def _options(fastmath: recorded.Fastmath, **more: Any) -> dict[str, Any]:
    return {
        "nopython": True,
        "nogil": True,
        "error_model": "numpy",
        "boundscheck": False,
        "_nrt": False,
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
        "fastmath": cpu.FastMathOptions(fastmath if isinstance(fastmath, bool) else set(fastmath)),
        **more,
    }


def _refuse_raise(code: CodeType, what: str) -> None:
    """Refuses ``raise`` and ``assert`` in a kernel, which would silently end it: no caller handles exceptions."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "RAISE_VARARGS":
            raise KernelCompileError(
                f"{what} raises or asserts in {code.co_filename}; kernels cannot raise",
                op=what,
                remedy="check arguments in Python, before the kernel is chosen",
            )
