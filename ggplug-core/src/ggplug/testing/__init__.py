"""The conformance suite, with everything that it takes: an oracle, generated cases, and devices to test testers with.

====================  ==========================================================================================
:mod:`.suite`         :class:`BackendSuite`, which any backend's tests subclass
:mod:`.conformance`   the same as one call: ``check(device)``, and as a command
:mod:`.oracle`        what a graph computes, in float64, by the ops' own references
:mod:`.precision`     how precise a result has to be: the table of rules; :mod:`.expected` has it for whole graphs
:mod:`.compare`       when two results count as equal
:mod:`.cases`         cases derived from the ops' declarations: types, shapes, strides, broadcasts, views
:mod:`.contracts`     the contract of ``ggplug.backend``, clause by clause
:mod:`.runner`        computes cases between guard bytes, and judges
:mod:`.groups`        chains of ops in the groups that a device forms, poisoned, and node by node
:mod:`.report`        verdicts, and which of them have one cause
:mod:`.causes`        from an exception to the line of the backend's author
:mod:`.overrides`     from a broken clause of the contract to the author's methods that it exercises
:mod:`.traits`        what can be said of a case by its node, for hints at what failing cases have in common
:mod:`.rendering`     the report as text and as a page
:mod:`.watching`      chooses cases, and follows them while they run
:mod:`.stopping`      runs that are stopped by a signal; :mod:`.progress` shows how far one is
:mod:`.isolation`     cases in a worker process; :mod:`.isolated_tests` has pytest do so
:mod:`.vectors`       replays recorded cases of ggml: ``python -m ggplug.testing.vectors FILE.npz --device NAME``
:mod:`.reference`     the references as a device
:mod:`.fusing`        the references as a device that forms groups
:mod:`.fake`          a discrete device with memory of its own that delays, reorders, fails and counts
:mod:`.faulty`        devices with one fault each, which the suite has to find
:mod:`.trial`         one fault against the suite; :mod:`.score` runs them all: ``python -m ggplug.testing.score``
:mod:`.plugin`        the pytest plugin; :mod:`.verdicts` has what it shows
====================  ==========================================================================================

Importing this package imports nothing: pytest does so at every start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ggplug.lazy import whole

if TYPE_CHECKING:
    from ggplug.testing.cases import Case, Leafs, cases_of, generates
    from ggplug.testing.compare import Comparison, nmse
    from ggplug.testing.conformance import check
    from ggplug.testing.fake import FakeDevice, FakeRegistration
    from ggplug.testing.oracle import Evaluation, evaluate
    from ggplug.testing.reference import ReferenceDevice
    from ggplug.testing.report import Finding, Report
    from ggplug.testing.suite import BackendSuite

_HOMES = {
    "BackendSuite": "suite",
    "Case": "cases",
    "Comparison": "compare",
    "Evaluation": "oracle",
    "FakeDevice": "fake",
    "FakeRegistration": "fake",
    "Finding": "report",
    "Leafs": "cases",
    "ReferenceDevice": "reference",
    "Report": "report",
    "cases_of": "cases",
    "check": "conformance",
    "evaluate": "oracle",
    "generates": "cases",
    "nmse": "compare",
}

__all__ = [
    "BackendSuite",
    "Case",
    "Comparison",
    "Evaluation",
    "FakeDevice",
    "FakeRegistration",
    "Finding",
    "Leafs",
    "ReferenceDevice",
    "Report",
    "cases_of",
    "check",
    "evaluate",
    "generates",
    "nmse",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(whole(f"{__name__}.{home}"), name)
