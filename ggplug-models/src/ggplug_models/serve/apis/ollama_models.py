"""Ollama's paths for models, which list them; models are neither copied nor deleted."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

from pydantic import AliasChoices, Field

from ggplug.backend import Device
from ggplug_models.networks.decoder import Decoder
from ggplug_models.serve.apis.ollama import KeepAlive, as_time
from ggplug_models.serve.bodies.body import Body, Many
from ggplug_models.serve.bodies.parameters import Count
from ggplug_models.serve.problems import Problem
from ggplug_models.serve.service import Service
from ggplug_models.serve.vectors import Floats

VERSION = "0.9.0"
"""The version of Ollama's API that is served; clients ask for it before they use newer parts."""

NEVER = "9999-12-31T23:59:59Z"
MOST_SECONDS = 1e10
"""More are written as :data:`NEVER`."""


class NameBody(Body):
    """The body of paths about a model."""

    NO_EFFECT = frozenset(["verbose", "stream", "insecure", "keep_alive"])

    model: str = Field(default="", validation_alias=AliasChoices("model", "name", "source"))


class EmbedBody(Body):
    """The body of ``/api/embed``, and of the older ``/api/embeddings``, whose text is the ``prompt``."""

    NO_EFFECT = frozenset(["truncate", "options"])

    model: str | None = None
    input: str | Many[str] = Field(validation_alias=AliasChoices("input", "prompt"))
    dimensions: Count | None = None
    keep_alive: KeepAlive | None = None


class EmbedWork:
    """The vectors of one request."""

    def __init__(self, service: Service, body: EmbedBody) -> None:
        self.service = service
        self._length = service.embedder.length(body.dimensions)
        self.ids = service.embedder.ids([body.input] if isinstance(body.input, str) else body.input)

    def _vectors(self, cancelled: Any) -> Floats:
        return self.service.embedder.vectors(self.ids, cancelled, self._length)

    def new(self, cancelled: Any) -> dict[str, Any]:
        """The reply of ``/api/embed``."""
        return {
            "model": self.service.name,
            "embeddings": self._vectors(cancelled).tolist(),
            "prompt_eval_count": sum(map(len, self.ids)),
        }

    def old(self, cancelled: Any) -> dict[str, Any]:
        """The reply of ``/api/embeddings``."""
        return {"embedding": self._vectors(cancelled)[0].tolist()}


def version() -> dict[str, str]:
    """The reply of ``/api/version``."""
    return {"version": VERSION}


def tags(services: Iterable[Service]) -> dict[str, Any]:
    """The reply of ``/api/tags``: all models."""
    return {"models": [_listed(service) for service in services]}


def running(services: Iterable[Service]) -> dict[str, Any]:
    """The reply of ``/api/ps``: the models that are loaded."""
    return {
        "models": [
            _listed(service) | {"expires_at": _expiry(service.expires), "size_vram": _on_devices(service)}
            for service in services
            if service.is_loaded
        ]
    }


def _on_devices(service: Service) -> int:
    """The bytes of a model's weights on devices whose memory is not the host's."""
    weights = service.model.weights if service.is_known else ()
    devices = ((each, each.buffer.type.device) for each in weights if each.buffer is not None)
    return sum(each.nbytes for each, device in devices if isinstance(device, Device) and not device.buffer_type.is_host)


def _expiry(seconds: float | None) -> str:
    """When a model's memory is released, in so many seconds."""
    return NEVER if seconds is None or seconds > MOST_SECONDS else as_time(time.time() + seconds)


def show(service: Service, body: NameBody) -> dict[str, Any]:
    """The reply of ``/api/show``."""
    model, writer = service.model, service.writer
    architecture = model.architecture
    return {
        "modelfile": "",
        "parameters": "",
        "template": "" if writer is None else writer.template.source,
        "details": _details(service),
        "model_info": {key: value for key, value in model.metadata.items() if _is_shown(value)},
        "capabilities": ["completion"] if isinstance(model, Decoder) else ["embedding"],
        "modified_at": _file(service)[1],
        "license": str(model.metadata.get("general.license", "")),
        "architecture": architecture,
    }


def _is_shown(value: Any) -> bool:
    """Whether JSON has a value of the metadata; long arrays are left out, too."""
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def pull(service: Service, body: NameBody) -> dict[str, Any]:
    """The reply of ``/api/pull`` for the model that is served.  Raises Problem for others."""
    check(service, body)
    return {"status": "success"}


def check(service: Service, body: NameBody) -> None:
    """Raises Problem for a model that is not the one of this server."""
    if body.model.removesuffix(":latest") not in service.names:
        raise Problem(
            404,
            f"this server has one model, {service.name!r}, and loads no others: {body.model!r:.200} is not there",
            param="model",
            code="model_not_found",
        )


def refuse(service: Service, body: NameBody) -> dict[str, Any]:
    """Raises Problem: the file of the model belongs to whoever started the server."""
    check(service, body)
    raise Problem(501, "this server neither copies nor deletes its model", param="model", code="not_supported")


def _listed(service: Service) -> dict[str, Any]:
    size, modified = _file(service)
    return {
        "name": service.name,
        "model": service.name,
        "modified_at": modified,
        "size": size,
        "digest": "",
        "details": _details(service),
    }


def _file(service: Service) -> tuple[int, str]:
    """The size of a model's file in bytes, and when it was written; without a file 0, and when it was first offered."""
    file = service.about.file
    found = file.stat() if file.is_file() else None
    return (0, as_time(service.created)) if found is None else (found.st_size, as_time(found.st_mtime))


def _details(service: Service) -> dict[str, Any]:
    if not service.is_known:
        return {"format": "gguf"}
    model, architecture = service.model, service.model.architecture
    return {
        "parent_model": "",
        "format": "gguf",
        "family": architecture,
        "families": [architecture],
        "parameter_size": _counted(model.n_params),
        "quantization_level": model.file_type or "",
    }


def _counted(parameters: int) -> str:
    """A number of parameters as Ollama writes it: ``8.0B``, ``134.5M``, ``99.3K``."""
    for limit, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if parameters >= limit:
            return f"{parameters / limit:.1f}{unit}"
    return str(parameters)
