"""The whole conformance suite as one call, for programs that are not tests."""

from __future__ import annotations

from collections.abc import Iterable

from ggplug.backend import Device
from ggplug.errors import ParameterError
from ggplug.ops.base import OPS, Op
from ggplug.testing.contracts import CLAUSES, Clause, run_clause
from ggplug.testing.groups import run_groups
from ggplug.testing.report import Report
from ggplug.testing.runner import run_graphs, run_op


def check(
    device: Device,
    *,
    ops: Iterable[type[Op] | str] | None = None,
    clauses: Iterable[Clause | str] | None = None,
    graphs: bool = True,
    groups: bool = True,
) -> Report:
    """Puts a device to these clauses of the contract, all cases of these ops, graphs, and groups; by default to all.

    Never raises for what the device does: ``report.ok`` and ``report.bad`` tell.  Raises ParameterError for a name
    that is none.
    """
    report = Report(device.name)
    for clause in CLAUSES if clauses is None else map(_clause, clauses):
        report.add(run_clause(device, clause))
    for op in OPS.values() if ops is None else map(_op, ops):
        report.add(*run_op(device, op))
    if graphs:
        report.add(*run_graphs(device))
    if groups:
        report.add(*run_groups(device))
    return report


def _op(given: type[Op] | str) -> type[Op]:
    if not isinstance(given, str):
        return given
    if given not in OPS:
        raise ParameterError(f"there is no op {given!r}", got=given)
    return OPS[given]


def _clause(given: Clause | str) -> Clause:
    if isinstance(given, Clause):
        return given
    for clause in CLAUSES:
        if clause.name == given:
            return clause
    raise ParameterError(f"the contract has no clause {given!r}", got=given)
