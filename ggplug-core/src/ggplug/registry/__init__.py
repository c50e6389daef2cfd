"""Discover, load, probe, enumerate, and explain failures.

The functions of this module work on :data:`REGISTRY`, the one of this process; see :class:`Registry` for what they do.
Environment: see :class:`~ggplug.registry.discover.Settings`.
"""

from __future__ import annotations

from ggplug.hookspecs import HOOKS
from ggplug.registry.discover import Settings
from ggplug.registry.records import PluginStatus, Stage
from ggplug.registry.registry import Registry

REGISTRY = Registry(hooks=HOOKS)
"""The registry of this process."""

device = REGISTRY.device
devices = REGISTRY.devices
devices_by_kind = REGISTRY.devices_by_kind
doctor = REGISTRY.doctor
failures = REGISTRY.failures
init_best = REGISTRY.init_best
init_by_kind = REGISTRY.init_by_kind
init_by_name = REGISTRY.init_by_name
load = REGISTRY.load
load_all = REGISTRY.load_all
load_all_from_path = REGISTRY.load_all_from_path
register = REGISTRY.register
register_device = REGISTRY.register_device
registration = REGISTRY.registration
registrations = REGISTRY.registrations
status = REGISTRY.status
unload = REGISTRY.unload

__all__ = [
    "REGISTRY",
    "PluginStatus",
    "Registry",
    "Settings",
    "Stage",
    "device",
    "devices",
    "devices_by_kind",
    "doctor",
    "failures",
    "init_best",
    "init_by_kind",
    "init_by_name",
    "load",
    "load_all",
    "load_all_from_path",
    "register",
    "register_device",
    "registration",
    "registrations",
    "status",
    "unload",
]
