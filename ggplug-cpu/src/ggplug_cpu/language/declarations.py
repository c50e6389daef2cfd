"""Functions and instructions that LLVM or the C library has, and llvmlite has no method for."""

# llvmlite is untyped
# mypy: allow-untyped-calls

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llvmlite import ir


def llvm_call(builder: ir.IRBuilder, name: str, result: ir.Type, *args: ir.Value) -> ir.Value:
    """Emit a call of the LLVM intrinsic ``name`` (``llvm.prefetch.p0``); its type follows from result and arguments."""
    from llvmlite import ir

    module = builder.module
    function = module.globals.get(name)
    if function is None:
        function = ir.Function(module, ir.FunctionType(result, [arg.type for arg in args]), name)
    return builder.call(function, args)


def frozen(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Emit ``freeze``: a value that LLVM leaves undefined becomes any one value, and what it is used for stays."""
    from llvmlite import ir

    instruction = ir.instructions.Instruction(builder.block, value.type, "freeze", [value])
    builder._insert(instruction)
    return instruction
