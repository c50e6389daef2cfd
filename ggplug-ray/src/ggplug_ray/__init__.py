"""Devices on other machines: those of the nodes of a Ray cluster, named ``Ray/NODE/DEVICE``.

Nothing imports Ray until a cluster is named, by the environment variable ``GGPLUG_RAY`` or by :func:`connect`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from ggplug.backend import Device, Registration
from ggplug.errors import DeviceNotFoundError
from ggplug.hookspecs import hookimpl
from ggplug.registry import REGISTRY
from ggplug_ray.settings import VARIABLE, address

__all__ = ["RayRegistration", "connect"]

WITHIN = 120.0
"""Seconds for all nodes together to list their devices, unless the caller or the registry has a limit."""

SPARE = 5.0
"""Seconds by which that ends before the registry's time limit."""


class RayRegistration(Registration):
    """The backend of all devices of a cluster.  It joins the cluster when its devices are listed first."""

    name = "Ray"
    version = "0.1.0"
    api_version = 2

    def __init__(self) -> None:
        self._devices: list[Device] | None = None
        self._cluster: Any = None
        self._joining = threading.Lock()

    def devices(self) -> Sequence[Device]:
        limit = REGISTRY.settings.timeout
        return self.joined(address(), max(limit - SPARE, limit / 2) if limit else WITHIN)

    def get(self, name: str) -> Any:
        if name == "stall":
            from ggplug_ray.stream import stall

            return stall
        if name == "benchmarks" and self._cluster is not None:
            from ggplug_ray.benchmark import ClusterInstrument

            return (ClusterInstrument(),)
        return self._cluster.machines if name == "machines" and self._cluster is not None else None

    def joined(self, at: str, within: float) -> list[Device]:
        """The devices of the cluster at an address; later calls return those of the first cluster.

        ``within``: seconds for all nodes together to list their devices; a node that takes longer has none.

        Raises DeviceNotFoundError if there is no address, no cluster there, or no Ray.
        """
        with self._joining:
            if self._devices is None:
                if not at:
                    raise DeviceNotFoundError(
                        f"{VARIABLE} names no cluster", remedy=f"set {VARIABLE}=auto, or to a cluster's address"
                    )
                try:
                    from ggplug_ray.cluster import Cluster
                except ModuleNotFoundError as error:
                    if error.name != "ray":
                        raise
                    remedy = 'pip install "ggplug-core[ray]"'
                    raise DeviceNotFoundError("Ray is not installed", remedy=remedy) from error
                cluster = Cluster(at)
                self._devices = list(cluster.devices(self, within))
                self._cluster = cluster
            return self._devices


_registration = RayRegistration()


def connect(address: str = "auto", *, within: float = WITHIN) -> list[Device]:
    """The devices of a cluster.  ``auto``: the one that runs on this machine; if none does, it is started.

    The first cluster of a process is its only one.  Call it before devices are looked up by name, or set
    ``GGPLUG_RAY``: then ``ggplug.device("Ray/NODE/CPU")`` finds them too.  ``within``: seconds for all nodes together
    to list their devices; a node that takes longer has none.  Raises DeviceNotFoundError.
    """
    return list(_registration.joined(address, within))


@hookimpl
def ggplug_backend_registration() -> Registration:
    """The registration, for ggplug's registry."""
    return _registration
