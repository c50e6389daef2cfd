"""Several models of one server, of which a limited number is loaded at the same time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ggplug_models.serve.problems import Problem, shutting_down, too_many
from ggplug_models.serve.service import Service, State


class Models:
    """The models of a server, by name.

    ``find``: returns by name what says which models they are, such as their files.  ``serve``: makes of a name, and
    what was found, the service of a model that is not loaded.
    ``most``: largest number of models that are loaded at the same time; 0: any.  ``autoload``: whether a request loads
    its model.

    A request for a model that is not loaded waits until one of the loaded models is not used, if there are ``most`` of
    them; of several the one that was used the longest time ago is released.  Requests that wait are served in their
    order.
    """

    def __init__(
        self,
        find: Callable[[], Mapping[str, Any]],
        serve: Callable[[str, Any], Service],
        *,
        most: int,
        autoload: bool = True,
    ) -> None:
        self.most = most
        self.autoload = autoload
        self.draining = False
        self.services: dict[str, Service] = {}
        self._found: Mapping[str, Any] = {}
        self._gone: list[Service] = []
        self._find = find
        self._serve = serve
        self._waiting = asyncio.Lock()
        self._left = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._read()

    def named(self, name: str | None) -> Service:
        """The service of a model.  Raises Problem."""
        if not name:
            raise Problem(
                400, "model is missing: this server has several", param="model", code="missing_required_parameter"
            )
        found = self.services.get(name) or self.services.get(name.removesuffix(":latest"))
        if found is None:
            raise Problem(
                404,
                f"unknown model {name!r:.200}; /models lists those there are",
                param="model",
                code="model_not_found",
            )
        return found

    def reload(self) -> None:
        """Finds the models anew.  One that is gone, or another one now, is released when its requests have ended.

        Raises what finding them raises, and Problem if the server shuts down; then they stay as they are.
        """
        if self.draining:
            raise shutting_down()
        self._read()
        self._close_gone()

    def _read(self) -> None:
        """Finds the models, and which of those before are gone, or are others now."""
        found = self._find()
        same = {name for name, each in found.items() if name in self.services and self._found[name] == each}
        new = {name: self._serve(name, each) for name, each in found.items() if name not in same}
        self._gone += [service for name, service in self.services.items() if name not in same]
        self.services = {name: new.get(name) or self.services[name] for name in found}
        self._found = found

    def _close_gone(self) -> None:
        """Closes the services of models that are gone and whose requests have ended, when their memory is released."""
        for service in [each for each in self._gone if not each.users]:
            if service.takes_memory:
                self._begin(self._release(service))
            else:
                self._gone.remove(service)
                service.close()

    async def _release(self, gone: Service) -> None:
        await gone.sleep(State.UNLOADED)
        self._close_gone()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Begins what goes on in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- loading ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def used(self, service: Service, *, load: bool = False) -> AsyncIterator[None]:
        """A block in which a model is loaded.  ``load``: even if requests do not load models.  Raises Problem."""
        if service.users >= service.most_inside:  # their bodies take memory while they wait
            raise too_many(f"{service.users} use the model or wait for it")
        try:
            async with service.used(lambda: self._ready(service, load or self.autoload)):
                yield
        finally:
            self._left.set()
            self._close_gone()

    def load(self, service: Service) -> None:
        """Loads a model, in the background."""
        service.want()
        self._begin(self._load(service))

    async def _load(self, service: Service) -> None:
        try:
            async with self.used(service, load=True):
                pass
        except Problem:
            pass  # the log has it, and the list of the models

    async def _ready(self, service: Service, load: bool) -> None:
        if service.state is State.UNLOADED and not load:
            raise Problem(
                400,
                f"the model {service.name!r} is not loaded, and requests do not load models; POST /models/load does",
                param="model",
                code="model_not_loaded",
            )
        if not service.is_loaded:
            # A request that waits uses no model: it may wait behind one that waits for its model's release.
            service.waiting += 1
            try:
                await self._waiting.acquire()  # which is fair
            finally:
                service.waiting -= 1
            try:
                await self._make_free(service)
                await service.wake()
            finally:
                self._waiting.release()
        else:
            await service.wake()

    async def _make_free(self, service: Service) -> None:
        """Waits until one more model may be loaded, and releases others for it."""
        while not service.is_loaded and self.most:
            others = (each for each in self._all() if each is not service)
            held = [service] * service.takes_memory + [each for each in others if self._has_place(each)]
            if len(held) < self.most:
                return
            other = next((each for each in held if not each.is_loaded), None)
            if other is not None:
                await other.sleep(State.UNLOADED)  # or waits until it is released
                continue
            unused = [each for each in held if not each.is_used]
            if unused:
                await min(unused, key=lambda each: each.rested).sleep(State.UNLOADED)
            else:
                self._left.clear()
                await self._left.wait()

    def _has_place(self, service: Service) -> bool:
        """Whether a model counts: it takes memory, or sleeps where requests may wake it, but load no other one."""
        return service.takes_memory or (not self.autoload and service.state is State.SLEEPING)

    def _all(self) -> list[Service]:
        return [*self.services.values(), *self._gone]

    # -- the server ---------------------------------------------------------------------------------

    @property
    def most_inside(self) -> int:
        """Maximum number of requests that are computed or wait."""
        each = [service.most_inside for service in self.services.values()]
        return max(each, default=0) * (self.most or len(each))

    @property
    def healthy(self) -> bool:
        """Whether requests are accepted, for each of the models."""
        return not self.draining and all(service.healthy for service in self.services.values())

    def rest(self) -> None:
        """As :meth:`.Service.rest`, for all models."""
        for service in self._all():
            service.rest()

    async def drain(self, patience: float, forced: Callable[[], bool]) -> None:
        """As :meth:`.Service.drain`, for all models."""
        self.draining = True
        await asyncio.gather(*(service.drain(patience, forced) for service in self._all()))

    def close(self) -> None:
        """Cancels all texts and releases the memory."""
        for service in self._all():
            service.close()


def models_in(folder: Path) -> dict[str, Path]:
    """The models in a folder, and in the folders in it, by their paths without ``.gguf``; files of parts count once."""
    found = {}
    for path in sorted(folder.rglob("*.gguf")):
        name = re.sub("-00001-of-[0-9]{5}$", "", path.relative_to(folder).as_posix().removesuffix(".gguf"))
        if not re.search("-[0-9]{5}-of-[0-9]{5}$", name) and not path.name.startswith("mmproj"):
            found[name] = path
    return found
