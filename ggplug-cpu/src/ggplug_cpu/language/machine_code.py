"""Machine code of kernels: LLVM's optimiser, and its code for a processor, as an object file or as text.

Importing this module brings llvmlite's part that writes LLVM code, and the compiler of kernels, which a process that
finds all its kernels on disk never needs.
"""

# llvmlite is untyped
# mypy: allow-untyped-calls, disable-error-code="no-any-return"

from __future__ import annotations

import functools

import llvmlite.binding as llvm

from ggplug.errors import KernelCompileError
from ggplug_cpu.features import Target
from ggplug_cpu.language.functions import Library
from ggplug_cpu.language.sources import Refusal
from ggplug_cpu.loader import check_memory
from ggplug_cpu.recorded import Compilable

#: Bytes of addresses that compiling a kernel may take in addition to a multiple of its code.
_RESERVE = 64 << 20


def compile_kernel(kernel: Compilable, target: Target) -> bytes:
    """The object file of ``kernel`` for ``target``; its one exported symbol is ``loader.ENTRY``."""
    return object_file(kernel.name, llvm_code(kernel, target), target)


def llvm_code(kernel: Compilable, target: Target) -> str:
    """The LLVM code of ``kernel``, not optimised; the same for the same kernel in every process."""
    body = kernel.body()
    try:
        return _library(target.key, target.triple).kernel(body, kernel.fastmath)
    except Refusal as refusal:
        raise _failed(kernel.name, target, str(refusal), refusal.remedy) from refusal


def object_file(name: str, code: str, target: Target) -> bytes:
    """The object file of LLVM code.  ``name``: the kernel's.  Raises KernelCompileError, OutOfMemoryError."""
    check_memory(name, _RESERVE + 16 * len(code))
    return bytes(_machine(target).emit_object(_optimised(name, code, target)))


def inspect_kernel(kernel: Compilable, target: Target, what: str) -> str:
    """The optimised code of ``kernel`` as text: ``what`` is ``assembly`` or ``llvm``."""
    module = _optimised(kernel.name, llvm_code(kernel, target), target)
    return str(_machine(target).emit_assembly(module) if what == "assembly" else module)


def _optimised(name: str, code: str, target: Target) -> llvm.ModuleRef:
    try:
        module = llvm.parse_assembly(code)
        module.verify()
    except RuntimeError as error:  # LLVM's, of what an intrinsic emitted
        raise _failed(name, target, str(error), "look at the intrinsics that it calls") from error
    _optimise(module, _machine(target))
    return module


def _failed(name: str, target: Target, why: str, remedy: str) -> KernelCompileError:
    message = f"kernel {name} does not compile for {target}: {why}"
    return KernelCompileError(message, op=name, log=why, remedy=remedy)


@functools.cache
def _library(key: str, triple: str) -> Library:
    return Library(key, triple)


@functools.cache
def _machine(target: Target) -> llvm.TargetMachine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()  # without it, inline assembly in an intrinsic would end the process
    if target.triple != llvm.get_process_triple():
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu,
        features=target.features,
        opt=3,
        # code is loaded anywhere and reaches libm with absolute addresses
        reloc="static" if target.triple.startswith("x86") else "default",
        codemodel="jitdefault",
        jit=True,
    )


def _optimise(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """LLVM's O2 pipeline over a whole kernel, with vectorisation of loops.

    O3 takes a quarter more time, and kernels are no faster.  Vectorisation of blocks (SLP) would take another tenth,
    and kernels' machine code is the same.
    """
    module.data_layout = str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = True
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
