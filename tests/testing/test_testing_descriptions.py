"""An op's description is one record: cases, draws and precision are made from it, and derived ops inherit it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ggplug.ops.base import OPS, Array, Op
from ggplug.ops.unary import Unary
from ggplug.sketches import sketches
from ggplug.types import F32
from ggplug_testing.cases import cases_of
from ggplug_testing.cases.case import Case
from ggplug_testing.cases.making import case, leaf
from ggplug_testing.description import DESCRIPTIONS, GENERATORS, RULES, describe, description_of
from ggplug_testing.drawing.draw import Draw, Drawn
from ggplug_testing.drawing.drawers import drawer_of
from ggplug_testing.precision.rule import EXACT


@pytest.fixture
def halved() -> Iterator[type[Op]]:
    """An op of another package that derives from one of core's abstract ops."""

    class Halved(Unary):
        name = "test.halved"

        @staticmethod
        def formula(x: Array) -> Array:
            return x / 2

    yield Halved
    for table in (OPS, GENERATORS, RULES):
        table.pop(Halved.name, None)
    DESCRIPTIONS.pop(Halved, None)


def test_every_op_of_core_has_a_description_of_its_own() -> None:
    of_core = {op for op in OPS.values() if op.__module__.startswith("ggplug.ops")}
    assert of_core <= set(DESCRIPTIONS)
    assert all(description_of(op).cases for op in of_core)


def test_an_op_inherits_cases_and_draws_of_what_it_derives_from_but_no_rule(halved: type[Op]) -> None:
    whole, floor = ({each.label for each in cases_of(op)} for op in (halved, OPS["floor"]))
    assert whole >= {label for label in floor if label.startswith(("f32", "special:", "many rows"))}
    assert drawer_of(halved) is drawer_of(OPS["floor"])
    assert halved.name not in RULES


def test_an_op_has_the_sketches_of_what_it_derives_from(halved: type[Op]) -> None:
    assert sketches(halved) is sketches(OPS["floor"])
    assert sketches(Op) == ()


def test_what_an_op_is_described_by_is_what_its_testers_take(halved: type[Op]) -> None:
    def one(op: type[Op]) -> Iterator[Case]:
        yield case(op, "one", leaf(F32, (4,)))

    def drawn(c: Draw, op: type[Op]) -> Drawn:
        return Drawn([c.source("x", F32, (4,))])

    describe(halved, cases=[one], draw=drawn, rule=EXACT, signs=True)
    assert cases_of(halved)[0].label == "one"
    assert any(each.agreement == "signs" for each in cases_of(halved))
    assert (drawer_of(halved), RULES[halved.name]) == (drawn, EXACT)
