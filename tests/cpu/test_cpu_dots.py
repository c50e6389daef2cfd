"""The instructions of matrix products on processors that are not at hand: LLVM compiles for all of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest

pytest.importorskip("ggplug_cpu")

import llvmlite.binding as llvm
from llvmlite import ir

from ggplug_cpu import features
from ggplug_cpu.compiler import Intrinsic
from ggplug_cpu.features import Target
from ggplug_cpu.instruction_sets import AARCH64, X86_64, InstructionSet
from ggplug_cpu.ops.mul_mat.dot import blocks_at_once, dot_blocks
from ggplug_cpu.ops.mul_mat.layout import layout
from ggplug_cpu.ops.mul_mat.pack import pack_activations, pack_quantized, pack_weights
from ggplug_cpu.ops.mul_mat.tiles import tile
from ggplug_cpu.simd import dots
from ggplug_cpu.simd.values import F32, I8, I16, I32, I64, Value, vector
from ggplug_cpu.types import BLOCKS

ROWS = [(product, row) for product, ways in dots.WAYS.items() for row in ways if row.needs and row.rows < 16]
TILES = [(product, row) for product, ways in dots.WAYS.items() for row in ways if row.rows == 16]


def assembly(target: Target, arguments: list[ir.Type], result: ir.Type, emit: Callable[..., ir.Value | None]) -> str:
    """What LLVM makes, for a target, of a function with the body that ``emit(builder, *arguments)`` writes."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = ir.Module()
    module.triple = target.triple
    function = ir.Function(module, ir.FunctionType(result, arguments), "f")
    builder = ir.IRBuilder(function.append_basic_block())
    value = emit(builder, *function.args)
    if value is None:
        builder.ret_void()
    else:
        builder.ret(value)
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3
    )
    compiled = llvm.parse_assembly(str(module))
    compiled.data_layout = str(machine.target_data)
    compiled.verify()
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(compiled, passes)
    return str(machine.emit_assembly(compiled))


def processor(needs: tuple[str, ...]) -> Target:
    """The least processor that has all of ``needs``."""
    family: InstructionSet = AARCH64 if set(needs) <= set(AARCH64.extensions) else X86_64
    return features.cross_target(family, family.levels["generic"][0], needs)


def sums_and_operands(product: str, lanes: int) -> tuple[ir.Type, ir.Type]:
    if product == "bf16":
        return vector(F32, lanes), vector(I16, 2 * lanes)
    return vector(I32, lanes), vector(I16, 2 * lanes) if product == "i16" else vector(I8, 4 * lanes)


@pytest.mark.parametrize(("product", "row"), ROWS, ids=lambda each: each if isinstance(each, str) else each.name)
def test_a_processor_with_the_features_of_a_row_of_the_table_runs_its_instructions(product: str, row: dots.Way) -> None:
    assert row.lanes is not None
    target = processor(row.needs)
    sums, operand = sums_and_operands(product, row.lanes)

    def emit(builder: ir.IRBuilder, *arguments: ir.Value) -> ir.Value:
        return row(*(Value(builder, each) for each in arguments)).ir

    with features.forced(target):
        largest = dots.LARGEST_ROUNDED if row.pairs else dots.LARGEST
        found = dots.way(product, row.lanes, row.rows, mixed=row.mixed, largest=largest)
        code = assembly(target, [sums, operand, operand], sums, emit)
    assert found is row
    for name in row.name.split():
        assert re.search(rf"\s{name}\s", code)


@pytest.mark.parametrize(
    ("product", "row"), ROWS + TILES, ids=lambda each: each if isinstance(each, str) else each.name
)
def test_without_one_of_its_features_a_row_of_the_table_is_not_chosen(product: str, row: dots.Way) -> None:
    assert row.lanes is not None
    every = processor(row.needs)
    for need in row.needs:
        less = Target(every.level, every.cpu, "", every.flags - {need}, every.triple)
        with features.forced(less):
            assert dots.way(product, row.lanes, row.rows, mixed=row.mixed, largest=1) is not row


@pytest.mark.parametrize("product", dots.WAYS)
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_every_processor_has_a_way_to_every_dot_product(product: str, lanes: int) -> None:
    nothing = Target("generic", "", "", frozenset(), "riscv64-unknown-linux-gnu")
    with features.forced(nothing):
        assert dots.way(product, lanes) is dots.WAYS[product][-1]


# -- inner loops on Arm ----------------------------------------------------------------------------------

CORTEX_A53 = ()
NEOVERSE_N1 = ("dotprod", "fullfp16")
NEOVERSE_N2 = ("dotprod", "i8mm", "bf16", "fullfp16")
#: What multiplies numbers, in all kinds of products.
_MULTIPLICATIONS = {"sdot", "usdot", "smmla", "usmmla", "bfdot", "bfmmla", "smull", "smull2", "smlal", "smlal2", "fmla"}


def loops(code: str) -> list[Counter[str]]:
    """How often the innermost loops of AArch64 assembly have each instruction."""
    lines = code.splitlines()
    labels = {match[1]: at for at, line in enumerate(lines) if (match := re.match(r"(\.L\w+):", line))}
    branches = [(at, re.search(r"\s(\.L\w+)$", line)) for at, line in enumerate(lines) if re.match(r"\s+[bct]", line)]
    found = [(labels[to[1]], at) for at, to in branches if to and labels.get(to[1], at) < at]
    innermost = [a for a in found if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in found)]
    return [
        Counter(match[1] for line in lines[first : last + 1] if (match := re.match(r"\s+([a-z][\w.]*)", line)))
        for first, last in innermost
    ]


def code_of(make: Callable[[], Intrinsic], names: tuple[str, ...]) -> str:
    """The assembly of an intrinsic that takes addresses and numbers, for an Arm processor."""
    target = features.cross_target(AARCH64, "generic", names)
    with features.forced(target):
        made = make()
        return assembly(target, [I64] * str(made.signature).count("i64"), ir.VoidType(), made.function)


def inner_loop(make: Callable[[], Intrinsic], names: tuple[str, ...]) -> Counter[str]:
    """The instructions of the loop that multiplies most."""
    return max(loops(code_of(make, names)), key=lambda loop: sum(loop[name] for name in _MULTIPLICATIONS))


@pytest.mark.parametrize(
    ("weights", "columns", "names", "instruction", "most"),
    [
        ("q8_0", 1, CORTEX_A53, "sadalp", 18.5),
        ("q8_0", 1, NEOVERSE_N1, "sdot", 13.5),
        ("q8_0", 4, CORTEX_A53, "sadalp", 15.4),
        ("q8_0", 4, NEOVERSE_N1, "sdot", 9.9),
        ("q4_0", 1, CORTEX_A53, "sadalp", 21.4),
        ("q4_0", 1, NEOVERSE_N1, "sdot", 16.5),
        ("q4_0", 4, CORTEX_A53, "sadalp", 16.1),
        ("q4_0", 4, NEOVERSE_N1, "sdot", 10.3),
    ],
)
def test_few_columns_take_few_instructions_for_32_weights(
    weights: str, columns: int, names: tuple[str, ...], instruction: str, most: float
) -> None:
    loop = inner_loop(lambda: dot_blocks(weights, 2, columns), names)
    with features.forced(features.cross_target(AARCH64, "generic", names)):
        products = 2 * columns * blocks_at_once(BLOCKS[weights]) * BLOCKS[weights].parts
    assert loop[instruction] >= 2 * products
    assert loop["prfm"] >= 2
    assert loop.total() / products <= 1.1 * most  # another LLVM may need a few more


@pytest.mark.parametrize(
    ("kind", "names", "instruction", "most"),
    [
        ("i8", NEOVERSE_N2, "smmla", 2.6),
        ("i8", NEOVERSE_N1, "sdot", 3.6),
        ("bf16", NEOVERSE_N2, "bfmmla", 2.5),
        ("f32", CORTEX_A53, "fmla", 9.5),
    ],
)
def test_many_columns_take_few_instructions_for_32_weights(
    kind: str, names: tuple[str, ...], instruction: str, most: float
) -> None:
    with features.forced(features.cross_target(AARCH64, "generic", names)):
        shape = layout(kind)
    loop = inner_loop(lambda: tile(kind, shape.rows, shape.vecs, False), names)
    products = shape.rows * shape.columns * shape.step_numbers / 32
    assert loop[instruction] * {"smmla": 32, "sdot": 16, "bfmmla": 16, "fmla": 4}[instruction] >= products * 32
    assert loop.total() / products <= 1.1 * most


@pytest.mark.parametrize(
    ("family", "arguments"),
    [
        (tile, ("i8", 4, 2, False)),
        (dot_blocks, ("q4_0", 2, 1)),
        (pack_weights, ("i8", "q4_0")),
        (pack_activations, ("bf16", "f32", 12)),
        (pack_quantized, ("i8", 4)),
    ],
)
def test_what_was_written_for_one_processor_is_written_anew_for_another(
    family: Callable[..., Intrinsic], arguments: tuple[object, ...]
) -> None:
    first = code_of(lambda: family(*arguments), NEOVERSE_N2)
    second = code_of(lambda: family(*arguments), CORTEX_A53)
    family.cache_clear()  # type: ignore[attr-defined]
    assert code_of(lambda: family(*arguments), CORTEX_A53) == second != first
