"""llama-server's paths for the state of the server: ``/props``, ``/slots``, ``/lora-adapters``, ``/models``."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any

from ggplug.errors import FileKindError, GGPlugError, GGUFError, ModelError
from ggplug_models.serve.apis.llama_server import defaults
from ggplug_models.serve.batcher import SlotStatus
from ggplug_models.serve.bodies.body import Body, Many
from ggplug_models.serve.bodies.parameters import LoraScale
from ggplug_models.serve.problems import Problem
from ggplug_models.serve.service import FINGERPRINT, Service, result_of
from ggplug_models.serve.timings import timings
from ggplug_models.serve.writer import Writer
from ggplug_models.state.one_sequence import OneSequence
from ggplug_models.state.session_files import restore, save


class SlotBody(Body):
    """The body of ``POST /slots/NUMBER``.  ``filename``: of a file in the folder of ``--slot-save-path``."""

    filename: str | None = None


def props(service: Service, *, slots: bool, metrics: bool) -> dict[str, Any]:
    """What clients of llama-server ask for first.  ``slots``, ``metrics``: whether these paths exist."""
    writer, file = service.texts, service.about.file
    texts, special = writer.tokenizer.vocabulary.texts, writer.tokenizer.vocabulary.special
    return {
        "default_generation_settings": {"n_ctx": writer.session.n_ctx, "params": defaults(writer)},
        "total_slots": writer.slots,
        "model_alias": service.name,
        "model_path": file.name,  # no folders: they are not the clients' concern
        "modalities": {"vision": False, "audio": False},
        "chat_template": writer.template.source,
        "bos_token": texts[special["bos"]] if "bos" in special else "",
        "eos_token": texts[special["eos"]] if "eos" in special else "",
        "build_info": FINGERPRINT,
        "is_sleeping": not service.is_loaded,
        "endpoint_slots": slots,
        "endpoint_props": False,
        "endpoint_metrics": metrics,
    }


def model_of(service: Service) -> dict[str, Any]:
    """The model in OpenAI's list of models."""
    found = {
        "id": service.name,
        "object": "model",
        "created": service.created,
        "owned_by": "ggplug",
        "aliases": [service.name, *service.about.aliases],
        "tags": list(service.about.tags),
        "status": {"value": service.state, "failed": service.failed},
    }
    if not service.is_known:
        return found
    model, writer = service.model, service.writer
    return found | {
        "architecture": model.architecture,
        "writes": writer is not None,
        "context": model.n_ctx if writer is None else writer.session.n_ctx,
        "embedding_length": model.n_embd,
        "meta": {"n_ctx_train": model.n_ctx, "n_embd": model.n_embd, "n_vocab": model.n_vocab},
    }


def slots(service: Service) -> list[dict[str, Any]]:
    """The status of each slot."""
    writer = service.texts
    return [_slot(writer, each) for each in writer.batcher.slots]


def _slot(writer: Writer, status: SlotStatus) -> dict[str, Any]:
    request = status.request
    most = -1 if request is None or request.max_tokens is None else request.max_tokens - request.generated
    found: dict[str, Any] = {
        "id": status.number,
        "id_task": -1 if request is None else id(request) & 0x7FFFFFFF,
        "n_ctx": writer.session.n_ctx,
        "speculative": writer.batcher.guesses,
        "is_processing": request is not None,
        "n_tokens": status.tokens,
        "next_token": [
            {
                "has_next_token": request is not None,
                "n_remain": most,
                "n_decoded": 0 if request is None else request.generated,
            }
        ],
    }
    return found if request is None else found | {"timings": timings(request)}


class SlotFiles:
    """Saves, restores and erases slots.  ``folder``: of the files; None: slots cannot be saved."""

    def __init__(self, service: Service, folder: Path | None) -> None:
        self._service = service
        self._folder = folder

    async def act(self, number: int, action: str, body: SlotBody) -> dict[str, Any]:
        """Does what ``action`` says.  Raises Problem, ParameterError, ModelError, OSError."""
        writer = self._service.texts
        if action == "erase":
            return await self._called(writer, lambda: self._erase(writer, number))
        if action not in ("save", "restore"):
            raise Problem(400, "action must be save, restore or erase", param="action", code="invalid_value")
        path = self._path(body.filename)
        if action == "save":
            return await self._called(writer, lambda: self._save(writer, number, path))
        return await self._called(writer, lambda: self._restore(writer, number, path))

    async def _called(self, writer: Writer, function: Any) -> dict[str, Any]:
        found: dict[str, Any] = await result_of(asyncio.wrap_future(writer.batcher.call(function)))
        return found

    def _path(self, name: str | None) -> Path:
        if self._folder is None:
            raise Problem(501, "this server was started without --slot-save-path", param="action", code="not_supported")
        if name is None or not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}", name):
            wanted = "letters, digits, dots, dashes and underscores, at most 128"
            raise Problem(400, f"filename must have only {wanted}", param="filename", code="invalid_value")
        return self._folder / name

    def _erase(self, writer: Writer, number: int) -> dict[str, Any]:
        writer.batcher.check_free(number)
        count = len(writer.session.tokens(number))
        writer.session.clear(number)
        writer.batcher.set_reusable(number, 0)
        return {"id_slot": number, "n_erased": count}

    def _save(self, writer: Writer, number: int, path: Path) -> dict[str, Any]:
        writer.batcher.check_free(number)
        reusable = writer.batcher.reusable(number)
        count = len(writer.session.tokens(number))
        if reusable < count:  # what an answer added is computed differently from a prompt
            if not (reusable and writer.session.can_rewind(reusable, number)):
                raise Problem(
                    400,
                    f"slot {number} cannot be saved: requests could reuse none of its {count} tokens; they can reuse "
                    "those of longer prompts, or with a recurrent state those of a prompt without an answer (n_predict "
                    "0)",
                    code="nothing_to_save",
                )
            writer.session.rewind(reusable, number)
        try:
            save(OneSequence(writer.session, number), path)
        except FileKindError as error:
            raise _refused(path, error) from error
        return {
            "id_slot": number,
            "filename": path.name,
            "n_saved": len(writer.session.tokens(number)),
            "n_written": path.stat().st_size,
        }

    def _restore(self, writer: Writer, number: int, path: Path) -> dict[str, Any]:
        writer.batcher.check_free(number)
        with writer.session.locked():  # raises what is wrong with the model's own files, which the client did not name
            pass
        try:
            restore(OneSequence(writer.session, number), path)
        except FileNotFoundError:
            raise Problem(400, f"there is no file {path.name!r}", param="filename", code="file_not_found") from None
        except (GGUFError, ModelError) as error:
            raise _refused(path, error) from error
        count = len(writer.session.tokens(number))
        writer.batcher.set_reusable(number, count)
        return {
            "id_slot": number,
            "filename": path.name,
            "n_restored": count,
            "n_read": path.stat().st_size,
        }


def _refused(path: Path, error: GGPlugError) -> Problem:
    """The problem of a file that cannot be used, without the name of its folder, which is not the clients' concern."""
    words = str(error).replace(f"{path.parent}{os.sep}", "")
    return Problem(400, f"{words:.500}", param="filename", code="file_refused")


def listed(raw: bytes) -> Any:
    """The JSON of a body.  Raises Problem."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise Problem(400, "the body is not valid JSON", code="invalid_json") from None


class AdaptersBody(Body):
    """The list that ``POST /lora-adapters`` takes, as the value of ``lora``."""

    lora: Many[LoraScale]


def adapters(service: Service) -> list[dict[str, Any]]:
    """The reply of ``/lora-adapters``."""
    paths = [path.name for path, _ in service.about.adapters]
    return [
        {"id": number, "path": path, "scale": scale}
        for number, (path, scale) in enumerate(zip(paths, service.scales, strict=True))
    ]


def set_adapters(service: Service, asked: Any) -> dict[str, Any]:
    """The reply to ``POST /lora-adapters``.  Raises ValidationError, ParameterError."""
    service.adapt({each.id: each.scale for each in AdaptersBody.model_validate({"lora": asked}).lora})
    return {"success": True}
