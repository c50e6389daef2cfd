"""The cluster: joining it, its nodes and their devices, and the processes of devices on them."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

# Ray reads them when it is imported: no usage statistics; processes that reserve no GPU see all of them; and after
# ``ray.shutdown`` calls fail, instead of starting another cluster.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ggplug.backend import Device, Registration
from ggplug.errors import DeviceNotFoundError, GGPlugError, PluginError, in_one_line
from ggplug.registry import REGISTRY
from ggplug_ray.actors import Actor, ActorHost
from ggplug_ray.device import RayDevice
from ggplug_ray.faults import lost
from ggplug_ray.host import DeviceHost, Facts, devices_here, versions
from ggplug_ray.link import LOOK, OPENING, WATCH, Link
from ggplug_ray.settings import VARIABLE, cache_limit

log = logging.getLogger("ggplug")

THREADS = 64
"""How many messages a device's process handles at once: one of each stream, and those of other calls."""


class Node(NamedTuple):
    """A machine of the cluster, or one of several nodes on it.  ``processors``: as many as Ray may use there."""

    id: str
    name: str
    processors: int


class Cluster:
    """A Ray cluster that this process has joined.

    ``address``: ``auto`` or an address.  Raises DeviceNotFoundError if no cluster answers there.
    """

    def __init__(self, address: str) -> None:
        if not ray.is_initialized():
            _join(address)
        self._task = ray.remote(devices_here)
        made: Any = ray.remote  # its annotations lack the groups
        # Ray would report each message to its dashboard, which takes a twentieth of a message's time.
        quiet: dict[str, Any] = {"concurrency_groups": {"beat": 1}, "max_restarts": 0, "enable_task_events": False}
        self._device = made(**quiet, max_concurrency=THREADS)(DeviceHost)
        self._actor = made(**quiet)(ActorHost)

    def nodes(self) -> list[Node]:
        """The nodes that are alive, by name."""
        alive = _alive()
        alive.sort(key=lambda each: (_name(each), each["NodeID"]))
        seen: Counter[str] = Counter()
        found = []
        for each in alive:
            name = _name(each)
            seen[name] += 1
            number = f"-{seen[name]}" if seen[name] > 1 else ""
            found.append(Node(each["NodeID"], name + number, max(1, int(each["Resources"].get("CPU", 1)))))
        return found

    def devices(self, backend: Registration, within: float) -> Iterator[RayDevice]:
        """The devices of all nodes.  One that does not list them within so many seconds is left out, with a warning."""
        silent: dict[str, str] = {}
        end = time.monotonic() + within
        asked = [(node, self._task.options(**_options(node)).remote()) for node in self.nodes()]
        for node, reference in asked:
            try:
                theirs, facts = ray.get(reference, timeout=max(LOOK, end - time.monotonic()))
            except (RayError, GetTimeoutError) as error:
                silent[node.name] = in_one_line(error)
                log.warning("node %s of the Ray cluster lists no devices: %s", node.name, silent[node.name])
                continue
            for each in facts:
                yield RayDevice(node.id, node.name, each, backend, partial(self._open, node, each, theirs))
        if silent and len(silent) == len(asked):
            name, reason = next(iter(silent.items()))
            raise DeviceNotFoundError(
                f"no node of the Ray cluster lists its devices; {name}: {reason}",
                remedy=f"install the same ggplug on every node: ggplug-core {versions()['ggplug-core']} and ggplug-ray",
            )

    def machines(self, devices: Sequence[Device]) -> list[Machine]:
        """The machines of some devices of nodes, in their order."""
        found: dict[str, list[RayDevice]] = {}
        for device in devices:
            assert isinstance(device, RayDevice)
            found.setdefault(device.node, []).append(device)
        return [
            Machine(name, [each.there for each in those], partial(self._act, those[0])) for name, those in found.items()
        ]

    def _act(self, device: RayDevice, factory: str, *given: Any) -> Actor:
        """Starts a process with an object on the node of a device.  Raises its error; DeviceLostError."""
        link, _ = self._started(device.node_id, device.node, device, device.there, self._actor, factory, given)
        return Actor(link)

    def _open(self, node: Node, facts: Facts, theirs: dict[str, str], device: RayDevice) -> Link:
        """Starts the process of a device on its node.  Raises PluginError for another version, DeviceLostError."""
        check_versions(device.name, node.name, facts, theirs)
        link, found = self._started(node.id, node.name, device, facts.name, self._device, facts.name, cache_limit())
        check_versions(device.name, node.name, facts, found)
        link.set_clock()
        return link

    def _started(
        self, node_id: str, node: str, device: RayDevice, there: str, made: Any, *given: Any
    ) -> tuple[Link, dict[str, str]]:
        """Starts a process on a node, or on one of its name that was started again; returns the versions there."""
        nodes = self.nodes()
        now = next((each for each in nodes if each.id == node_id), None)
        now = now or next((each for each in nodes if each.name == node), None)
        if now is None:
            raise lost(device, node, "the node has left the cluster")
        actor = made.options(**_options(now)).remote(*given)
        link = Link(device, node, there, actor)
        reference = link.send("open")
        end = time.monotonic() + OPENING
        while not ray.wait([reference], timeout=LOOK)[0]:
            if time.monotonic() > end:
                link.lose(f"its process did not start within {OPENING:.0f} s")
                break
        found, link.process = link.answer(reference)
        WATCH.add(link)
        return link, found


class Machine(NamedTuple):
    """A node of some chosen devices, on which objects in processes can be started.

    ``devices``: their names there.  ``start``: starts a process with the object that ``factory``, ``module:name``,
    makes of plain data.
    """

    name: str
    devices: Sequence[str]
    start: Callable[..., Actor]


def check_versions(device: str, node: str, facts: Facts, theirs: dict[str, str]) -> None:
    """Raises PluginError unless client and node have one interface, and the same kernels where both have the plugin."""
    for what, own in versions().items():
        if theirs.get(what) != own:
            raise PluginError(
                f"{device}: node {node} has another version of {what}: {theirs.get(what)}, not {own}",
                remedy=f"install ggplug-core=={versions()['ggplug-core']} on both machines",
            )
    try:
        here = REGISTRY.registration(facts.name.rstrip("0123456789"))
    except GGPlugError:
        return  # this machine has no such device
    if here.version != facts.plugin:
        raise PluginError(
            f"{device}: node {node} has {here.name} {facts.plugin}, and this machine {here.version}, so their kernels "
            "may differ",
            remedy="install the same version on both machines",
        )


def _join(address: str) -> None:
    if address.startswith("ray://"):
        raise DeviceNotFoundError(
            f"{address} is an address of Ray Client, which is not supported",
            got=address,
            remedy=f"run the program on a machine of the cluster, with {VARIABLE}=auto",
        )
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "include_dashboard": False}
    try:
        ray.init(address, **{name: value for name, value in quiet.items() if name != "include_dashboard"})
    except (ConnectionError, ValueError, RuntimeError) as error:
        if address != "auto":
            raise DeviceNotFoundError(
                f"no Ray cluster answers at {address}: {in_one_line(error)}",
                remedy=f"start one: ray start --head; or {VARIABLE}=auto",
            ) from error
        try:
            _start(**quiet)
        except Exception as started:  # Ray raises no narrower one if its processes do not start in time
            raise DeviceNotFoundError(
                f"Ray starts no cluster on this machine: {in_one_line(started)}",
                remedy=f"start one: ray start --head; then set {VARIABLE} to its address",
            ) from started


def _start(**how: Any) -> None:
    """Starts a cluster of this machine alone, from a thread that lives as long as this process.

    Linux ends Ray's processes with the thread that started them, and the one that loads a plugin ends.
    """
    started = Future[None]()

    def run() -> None:
        try:
            ray.init(**how)
        except BaseException as error:
            started.set_exception(error)
        else:
            started.set_result(None)
            threading.Event().wait()

    threading.Thread(target=run, name="ggplug-ray cluster", daemon=True).start()
    started.result()


def _alive() -> list[dict[str, Any]]:
    listed: Any = ray.nodes  # Ray does not declare its types
    nodes: list[dict[str, Any]] = listed()
    return [each for each in nodes if each["Alive"]]


def _name(node: dict[str, Any]) -> str:
    """The name that ``ray start --node-name`` gave a node, or else that of its machine; without comma and colon."""
    name = node.get("NodeName") or ""
    if not name or name == node["NodeManagerAddress"]:
        name = node["NodeManagerHostname"]
    return str(name).replace(",", "-").replace(":", "-")


def _options(node: Node) -> dict[str, Any]:
    """Where a process runs.  It takes no processor from Ray's accounts, and has no cluster itself."""
    environment = {
        VARIABLE: "",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "GGPLUG_THREADS": os.environ.get("GGPLUG_THREADS", str(node.processors)),
    }
    return {
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=False),
        "runtime_env": {"env_vars": environment},
    }
