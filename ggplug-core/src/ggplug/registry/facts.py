"""What plugins state about themselves: read once, checked, and kept.

A device's attributes may be properties that ask a driver, and so may fail, block or answer nonsense.  The registry
reads them once, when the plugin lists its devices, and works with what it read.
"""

from __future__ import annotations

from itertools import islice
from numbers import Integral
from typing import NamedTuple, cast

from ggplug.backend import API_VERSION, API_VERSIONS, BufferType, Capabilities, Device, DeviceProps, Registration
from ggplug.registry.discover import edited_in, install_again
from ggplug.types import DeviceKind

HOOK = "ggplug_backend_registration"

MOST_DEVICES = 1024
"""Of one plugin: a list without an end is refused."""


class RefusalError(Exception):
    """A plugin does not provide what the interface requires.  ``remedy``: what to do, if it is not to fix it."""

    def __init__(self, reason: str, remedy: str | None = None) -> None:
        super().__init__(reason)
        self.remedy = remedy


class RegistrationFacts(NamedTuple):
    """A registration, and what it stated when its plugin was loaded."""

    registration: Registration
    name: str
    version: str


class DeviceFacts(NamedTuple):
    """A device, and what it stated when its plugin listed it."""

    device: Device
    name: str
    description: str
    kind: DeviceKind
    device_id: str | None
    capabilities: Capabilities

    @property
    def hardware(self) -> object:
        """What is equal for two devices that are the same piece of hardware."""
        return self.device if self.device_id is None else self.device_id.strip().casefold()


def check_api_version(version: int, distribution: str | None = None) -> None:
    """Refuses a plugin that was written for a version of the interface that this core does not accept.

    ``distribution``: the one that it comes from, if it comes from one.  Raises RefusalError.
    """
    if version in API_VERSIONS:
        return
    accepted = " to ".join(dict.fromkeys((str(API_VERSIONS[0]), str(API_VERSIONS[-1]))))
    upgrade = "pip install --upgrade ggplug-core"
    if version < API_VERSIONS[0]:
        folder = edited_in(distribution)
        if folder:
            upgrade = f"change it in {folder} for api_version {API_VERSIONS[-1]}"
        else:
            upgrade = "upgrade the plugin" if distribution is None else install_again(distribution)
        upgrade += f", or install a ggplug-core that accepts {version}"
    raise RefusalError(
        f"it was written for api_version {version} of the interface, and this ggplug-core accepts {accepted}", upgrade
    )


def check_registration(
    found: object, announced: int | None = None, distribution: str | None = None
) -> RegistrationFacts:
    """Checks what a hook returned, the API version before all else.  Touches no device.  Raises RefusalError.

    ``announced``: the API version in the metadata of its ``distribution``; None if there is none.
    """
    if not isinstance(found, Registration):
        raise RefusalError(f"{HOOK} returned {_what(found)}, not a ggplug Registration")
    version = getattr(found, "api_version", None)
    if not isinstance(version, int):
        raise RefusalError(
            f"{type(found).__name__} states no api_version; this ggplug-core has version {API_VERSION} of the interface"
        )
    if announced not in (None, version):
        raise RefusalError(
            f"its entry point is in the group of api_version {announced}, but its registration says {version}",
            "name the version that it was written for in both: docs/compatibility.md",
        )
    check_api_version(version, distribution)
    kind = type(found).__name__
    name = getattr(found, "name", None)
    if not isinstance(name, str) or not name.strip() or ":" in name or "," in name:
        raise RefusalError(f"{kind}.name is {_what(name)}; it must be a string without colon and comma")
    own_version = found.version
    if not isinstance(own_version, str):
        raise RefusalError(f"{kind}.version is {_what(own_version)}; it must be a string")
    return RegistrationFacts(found, name, own_version)


def check_devices(registration: RegistrationFacts, found: object) -> tuple[DeviceFacts, ...]:
    """Checks what ``Registration.devices`` returned, and completes it.  Raises RefusalError."""
    if isinstance(found, (str, bytes)) or not hasattr(found, "__iter__"):
        raise RefusalError(f"devices() returned {_what(found)}, not a sequence of devices")
    listed = tuple(map(check_device, islice(found, MOST_DEVICES + 1)))
    if len(listed) > MOST_DEVICES:
        raise RefusalError(f"devices() returned more than {MOST_DEVICES} devices")
    names: set[str] = set()
    for each in listed:
        if not each.name.casefold().startswith(registration.name.casefold()):
            raise RefusalError(
                f"the name of the device {each.name!r} does not begin with its backend's, {registration.name!r}"
            )
        if each.name.casefold() in names:
            raise RefusalError(f"two devices are called {each.name!r}")
        names.add(each.name.casefold())
        if each.device.registration is None:
            each.device.registration = registration.registration
    return listed


def check_device(device: object) -> DeviceFacts:
    """What a device states about itself.  Raises RefusalError for what is missing or of the wrong type."""
    if not isinstance(device, Device):
        raise RefusalError(f"{_what(device)} is among the devices, which is not a ggplug Device")
    name = getattr(device, "name", None)
    which = name if isinstance(name, str) and name else type(device).__name__
    description, kind = getattr(device, "description", None), getattr(device, "kind", None)
    capabilities, device_id = device.capabilities, device.device_id
    for attribute, value, wanted in (
        ("name", name, str),
        ("description", description, str),
        ("kind", kind, DeviceKind),
        ("capabilities", capabilities, Capabilities),
        ("device_id", device_id, (str, type(None))),
    ):
        if not isinstance(value, wanted) or (attribute != "device_id" and value == ""):
            raise RefusalError(f"the device {which} has the {attribute} {_what(value)}")
    memory = device.buffer_type if type(device).init is Device.init else None
    if isinstance(memory, BufferType) and not memory.is_host:
        # Otherwise its kernels would fail when they compute, one by one.
        raise RefusalError(
            f"the device {which} has memory that the host does not see, {memory!r}, and the default stream, whose "
            "kernels are given arrays of host memory",
            "derive it from ggplug.discrete.DiscreteDevice, or allocate a ggplug.host.HostBufferType",
        )
    return DeviceFacts(device, str(name), str(description), cast(DeviceKind, kind), device_id, capabilities)


def ask(facts: DeviceFacts) -> DeviceProps:
    """What a device says of itself now, checked.  Raises RefusalError, and what the device raises."""
    props = facts.device.props()
    if not isinstance(props, DeviceProps):
        raise RefusalError(f"props() returned {_what(props)}, not DeviceProps")
    counts = (props.memory_free, props.memory_total)
    for count in counts:
        if count is not None and (not isinstance(count, Integral) or isinstance(count, bool) or count < 0):
            raise RefusalError(
                f"memory() returned {_what(counts)}; it must return two numbers of bytes, free and total"
            )
    free, total = (None if count is None else int(count) for count in counts)
    if free is not None and total is not None and free > total:
        raise RefusalError(f"memory() says that {free} of {total} bytes are free")
    stated = check_device(facts.device)
    return DeviceProps(facts.name, stated.description, facts.kind, free, total, stated.device_id, stated.capabilities)


def silent(facts: DeviceFacts) -> DeviceProps:
    """The last known description of a device that does not answer now."""
    return DeviceProps(facts.name, facts.description, facts.kind, None, None, facts.device_id, facts.capabilities)


def _what(value: object) -> str:
    if value is None:
        return "None"
    try:
        return f"{type(value).__name__} {repr(value)[:60]}"
    except Exception:  # half-made objects often cannot even describe themselves
        return type(value).__name__
