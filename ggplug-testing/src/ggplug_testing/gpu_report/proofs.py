"""The parts of a report that prove something: steps small enough that a budget of time can end between any two."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ggplug import registry
from ggplug.backend import Device
from ggplug.ops.base import OPS
from ggplug.types import DeviceKind
from ggplug_testing.cases import cases_of
from ggplug_testing.contracts import CLAUSES, run_clause
from ggplug_testing.devices.reference import ReferenceDevice
from ggplug_testing.gpu_report.step import Answer, Step, Subject, finite
from ggplug_testing.reporting.report import Finding
from ggplug_testing.running.groups import run_groups
from ggplug_testing.running.runner import run_graphs, run_op
from ggplug_testing.vectors import Case, replay

COSINES = {"F32": 0.99999, "F16": 0.9999, "Q8_0": 0.998, "Q4_0": 0.9}
"""What the cosine of an embedding to its reference has to be at least, by the type of the weights."""


MOST_CASES = 100
"""Cases of an op in one step of the suite."""


def facts(subject: Subject) -> Iterator[Step]:
    """What the device is, and what it is driven by."""
    yield Step("facts", functools.partial(_facts, subject))


def _facts(subject: Subject) -> Answer:
    device = subject.device
    driver, registration = device.driver, device.registration
    free, total = device.memory()
    found: dict[str, Any] = {
        "device": device.description,
        "kind": device.kind.name,
        "id": device.device_id,
        "memory_bytes": total,
        "free_bytes": free,
        "driver": driver.identity,
        "backend": None if registration is None else f"{registration.name} {registration.version}",
        **asdict(driver.properties),
        "features": sorted(driver.properties.features),
        **driver.library.facts(),
    }
    return {"facts": {**found, **subject.door.facts(device)}}


# -- the suite -------------------------------------------------------------------------------------


def suite(subject: Subject) -> Iterator[Step]:
    """The conformance suite: groups, graphs, all cases of every op, and the contract, which needs all ops' kernels."""
    device = subject.device
    yield Step("groups", functools.partial(_counted, run_groups, device))
    yield Step("graphs", functools.partial(_counted, run_graphs, device))
    for op in OPS.values():
        cases = list(cases_of(op))
        parts = range(0, max(1, len(cases)), MOST_CASES)
        for number, start in enumerate(parts, 1):
            name = op.name if len(parts) == 1 else f"{op.name}, part {number} of {len(parts)}"
            run = functools.partial(run_op, device, op, cases=cases[start : start + MOST_CASES])
            yield Step(name, functools.partial(_counted, run))
    for clause in CLAUSES:
        yield Step(f"contract: {clause.name}", functools.partial(_counted, run_clause, device, clause))


def _counted(run: Callable[..., Finding | Iterable[Finding]], *arguments: Any) -> Answer:
    found = run(*arguments)
    findings = [found] if isinstance(found, Finding) else list(found)
    passed = [each for each in findings if each.verdict == "passed"]
    others = [each for each in findings if each.verdict != "passed"]
    described = [
        (each.bad, {"case": f"{each.subject}: {each.case}", "reason": each.reason, "nmse": finite(each.nmse)})
        for each in others
    ]
    return {
        "passed": len(passed),
        "largest_nmse": max((each.nmse for each in passed), default=0.0),
        "failed": [each for bad, each in described if bad],
        "declined": [each for bad, each in described if not bad],
    }


# -- recorded cases --------------------------------------------------------------------------------


def recorded(subject: Subject) -> Iterator[Step]:
    """The recorded cases of ggml, a step for each of its ops and patterns."""
    by_op: dict[str, list[Case]] = {}
    for case in subject.folder.recording():
        by_op.setdefault(case.op, []).append(case)
    for op, cases in by_op.items():
        yield Step(op, functools.partial(_counted, replay, cases, subject.device))


# -- a model ---------------------------------------------------------------------------------------


def model(subject: Subject) -> Iterator[Step]:
    """Embeddings by each type of weights: on the device, and with layers alternately on the device and the host."""
    device, host = subject.device, host_device()
    for where, devices in (device.name, [device]), (f"{device.name} and {host.name} alternately", [device, host]):
        for kind in COSINES:
            yield Step(f"{kind} on {where}", functools.partial(_embedded, subject, kind, devices))


def host_device() -> Device:
    """A device in host memory: one that is installed, else the ops' references."""
    installed = registry.devices_by_kind(DeviceKind.CPU)
    return next((device for device in installed if device.buffer_type.is_host), None) or ReferenceDevice()


def _embedded(subject: Subject, kind: str, devices: Sequence[Device]) -> Answer:
    from ggplug_models import load
    from ggplug_models.weights.placement import alternating

    ids, wanted = subject.folder.embeddings()
    if len(devices) > 1:  # the host may be slow: the shorter half of the texts will do
        chosen = sorted(range(len(ids)), key=lambda text: len(ids[text]))[: -(-len(ids) // 2)]
        ids, wanted = [ids[text] for text in chosen], wanted[chosen]
    with load(subject.folder.model(kind), devices, placement=alternating) as encoder:
        got = encoder.embed_ids(ids).astype(np.float64)
        splits = encoder.scheduler.n_splits
    cosines = np.sum(got * wanted, -1) / np.linalg.norm(got, axis=-1) / np.linalg.norm(wanted, axis=-1)
    smallest, least = finite(cosines.min()), COSINES[kind]
    good = smallest is not None and smallest >= least
    return {
        "passed": int(good),
        "failed": [] if good else [{"case": kind, "reason": f"a cosine is {smallest}, at least {least} is wanted"}],
        "figures": {
            "smallest_cosine": smallest,
            "mean_cosine": finite(cosines.mean()),
            "wanted_cosine": least,
            "texts": len(ids),
            "splits": splits,
        },
    }


def environment() -> dict[str, Any]:
    """What all devices of a report share."""
    import ggplug

    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "ggplug": ggplug.__version__,
    }
