"""The conformance suite for pytest.

Any backend's tests subclass it::

    from ggplug_testing import BackendSuite

    class TestBlas(BackendSuite):
        device_name = "BLAS"

or give a ``device``: an attribute with a :class:`~ggplug.backend.Device`, or a fixture of that name.  Without a file
of one's own: ``pytest --pyargs ggplug_testing.suite --ggplug-device BLAS``.

Each op is one test that runs all cases of the op, graphs of many ops are one, chains in the groups that the device
forms are one, each clause of the contract is one.  A
test of an op that the device declines altogether is skipped with its reason.  What went wrong is listed at the end by
cause, with the line of the backend's code and a command that runs the case alone; then comes a table of verdicts.
Options of pytest that belong to the suite begin with ``--ggplug-``; ``pytest --help`` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import pytest

from ggplug.backend import Device
from ggplug.errors import GGPlugError
from ggplug.ops.base import OPS
from ggplug_testing.cases import Case, cases_of
from ggplug_testing.contracts import CLAUSES, run_clauses
from ggplug_testing.reporting.report import Finding
from ggplug_testing.reporting.verdicts import FOUND, WATCH, conclude, followed
from ggplug_testing.reporting.watching import EVERYTHING, One, Watch
from ggplug_testing.running.groups import run_groups
from ggplug_testing.running.runner import run_graphs, run_op
from ggplug_testing.vectors import find_device

MISSING = pytest.StashKey[set[str]]()
"""In a configuration: the names of devices that there are not.  Why is said once, not by each of hundreds of tests."""


class BackendSuite:
    """Conformance of one device: every op that it claims, and the contract of ``ggplug.backend``.

    Attributes that a subclass may set:

    ``device_name``: the device's name, found through the registry.
    ``thorough``: whether every case is computed for every block type, instead of for some of them.
    ``max_nmse``: errors to allow in the place of the suite's own, by op name, ``"graph"`` or ``"groups"``; for
    hardware that computes in less than float32 and says so.
    """

    device_name: ClassVar[str | None] = None
    max_nmse: ClassVar[Mapping[str, float]] = {}
    thorough: ClassVar[bool] = False

    def cases(self, op: str) -> list[Case]:
        """The cases of an op; a subclass may add its own, say around the thresholds of its kernels."""
        return cases_of(OPS[op], thorough=self.thorough)

    # pytest takes a class's fixtures in the order of their attributes, so this one yields to a subclass's ``device``.
    @pytest.fixture(name="device")
    def _device(self, request: pytest.FixtureRequest) -> Device:
        """The device under test."""
        given: Any = getattr(type(self), "device", None)
        if isinstance(given, Device):
            return given
        name = self.device_name or request.config.getoption("--ggplug-device", default=None)
        if name is None:
            pytest.skip("no device: set device_name in the test class, or give --ggplug-device NAME")
        missing = request.config.stash.setdefault(MISSING, set())
        if name in missing:
            pytest.skip(f"there is no device {name!r}; the first test that needed it says why")
        try:
            return find_device(name)
        except GGPlugError as error:
            missing.add(name)
            reason = str(error)
        pytest.fail(reason, pytrace=False)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "op_name" in metafunc.fixturenames:
            metafunc.parametrize("op_name", list(OPS))
        if "clause" in metafunc.fixturenames:
            metafunc.parametrize("clause", CLAUSES, ids=[clause.name.replace(" ", "_") for clause in CLAUSES])

    def test_contract(self, device: Device, clause: Any, request: pytest.FixtureRequest) -> None:
        """One clause of the contract."""
        _found(device, request, partial(run_clauses, device, [clause]))

    def test_graphs(self, device: Device, request: pytest.FixtureRequest) -> None:
        """Graphs of many ops, as models have them."""
        _found(device, request, partial(run_graphs, device, max_nmse=self.max_nmse.get("graph")))

    def test_groups(self, device: Device, request: pytest.FixtureRequest) -> None:
        """Chains of ops in the groups that the device forms."""
        _found(device, request, partial(run_groups, device, max_nmse=self.max_nmse.get("groups")))

    def test_op(self, device: Device, op_name: str, request: pytest.FixtureRequest) -> None:
        """All cases of one op."""
        cases, allowed = self.cases(op_name), self.max_nmse.get(op_name)
        _found(device, request, partial(run_op, device, OPS[op_name], cases=cases, max_nmse=allowed))


def watch_of(request: pytest.FixtureRequest) -> Watch:
    """What follows the cases of a test: the worker that runs it, or the option that chooses one."""
    watch = request.config.stash.get(WATCH, None)
    case = request.config.getoption("--ggplug-case", default=None)
    return watch or (EVERYTHING if case is None else One(case))


def _found(device: Device, request: pytest.FixtureRequest, run: Callable[..., list[Finding]]) -> None:
    """Ends a test by what ``run(watch=...)`` finds."""
    with followed(request.node, device.name, watch_of(request)) as watch:
        findings = run(watch=watch)
    request.node.stash[FOUND] = device.name, findings
    conclude(request.node, device.name, findings)


class TestDevice(BackendSuite):
    """The suite itself, for ``pytest --pyargs ggplug_testing.suite --ggplug-device NAME``."""
