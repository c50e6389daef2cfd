"""Several copies of a model on different machines, between which one server distributes its requests."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from pydantic_core import from_json
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from ggplug.backend import Device, Registration
from ggplug.errors import DeviceLostError, GGPlugError, in_one_line
from ggplug_models.serve.answers import ClientDisconnected
from ggplug_models.serve.apis.errors import response_of
from ggplug_models.serve.http.endpoint import logged
from ggplug_models.serve.http.event_stream import watched
from ggplug_models.serve.http.incoming import Incoming
from ggplug_models.serve.http.routing import READS
from ggplug_models.serve.problems import Problem, shutting_down
from ggplug_models.serve.service import TICK

LOG = logging.getLogger("ggplug.serve")

HEADER = "X-Ggplug-Replica"
"""Header that names the replica: of a response, which one answered; of a request, which one is to answer."""

PIECE = 64
"""Characters of a prompt by which beginnings differ in length."""

MOST_BEGINNINGS = 1 << 16
"""How many beginnings of prompts are remembered."""

RESTART_SECONDS = 5.0
"""Pause between two attempts to start a replica again."""

ANSWERING = "ggplug_models.serve.http.answering:Answering"
"""What answers on a machine."""

CARRIED = ("type", "method", "path", "raw_path", "query_string", "headers", "http_version", "scheme", "root_path")
"""What a replica gets of a request's scope."""


class Actor(Protocol):
    """A process on a machine, with an object whose methods are called there."""

    def call(self, what: str, *given: Any) -> Any:
        """Calls a method, a coroutine, and waits for the result.  Raises its error; DeviceLostError."""

    def post(self, what: str, *given: Any) -> None:
        """Calls a method, and does not wait."""

    def stream(self, what: str, *given: Any) -> AsyncIterator[Any]:
        """Calls a method, an asynchronous generator, and yields what that yields.  Raises as :meth:`call` does."""

    def end(self) -> None:
        """Ends the process."""


class Machine(Protocol):
    """A machine that starts actors: what the extra ``"machines"`` of a backend returns.

    ``name``: of the machine.  ``devices``: the names that the chosen devices have there.
    """

    name: str
    devices: Sequence[str]

    def start(self, factory: str, *given: Any) -> Actor:
        """Starts a process with the object that ``factory``, ``module:name``, makes of plain data."""


def machines_of(devices: Sequence[Device]) -> list[Machine]:
    """The other machines among devices, in their order; none for devices of this one."""
    by_registration: dict[Registration, list[Device]] = {}
    for device in devices:
        if device.registration is not None:
            by_registration.setdefault(device.registration, []).append(device)
    found: list[Machine] = []
    for registration, those in by_registration.items():
        machines = registration.get("machines")
        found += [] if machines is None else machines(those)
    return found


class Replica:
    """A copy of the model.  ``actor``: None while it is not loaded.  ``busy``: number of requests that it computes."""

    def __init__(self, number: int, machine: Machine) -> None:
        self.name = str(number)
        self.machine = machine
        self.actor: Actor | None = None
        self.busy = 0


class Replicas:
    """The ASGI application and the life of several copies of a model, each of which is a whole server on a machine.

    A request goes to the copy that computed the longest beginning of its prompt, unless another one computes at least
    ``slots`` requests fewer; otherwise to the one that computes the fewest.  A copy that was lost is started again;
    requests that it had not begun to answer go to another one.

    ``machines``: where the copies are; several may be on one.  ``given``: what :class:`.Answering` gets on a machine.
    ``most_inside``: maximum number of requests that all copies together compute or let wait.
    """

    def __init__(
        self,
        machines: Sequence[Machine],
        given: Callable[[Machine], Sequence[Any]],
        *,
        slots: int,
        most_inside: int,
        body_limit: int,
    ) -> None:
        self.replicas = [Replica(number, machine) for number, machine in enumerate(machines)]
        self.most_inside = most_inside
        self.draining = False
        self._given = given
        self._slots = slots
        self._incoming = Incoming(body_limit)
        self._numbers = itertools.count()
        self._begun: OrderedDict[bytes, Replica] = OrderedDict()
        """Which replica computed a beginning of a prompt last, by its digest."""
        self._restarts: set[asyncio.Task[None]] = set()

    # -- their life --------------------------------------------------------------------------------

    def open(self) -> None:
        """Loads all copies, at the same time.  Raises what loading one raises; GGPlugError."""
        with ThreadPoolExecutor(len(self.replicas), "ggplug replicas") as pool:
            for done in [pool.submit(self._start, replica) for replica in self.replicas]:
                done.result()

    def _start(self, replica: Replica) -> None:
        actor = replica.machine.start(ANSWERING, *self._given(replica.machine))
        try:
            actor.call("load")
        except BaseException:
            actor.end()
            raise
        replica.actor = actor

    def rest(self) -> None:
        """Nothing: each copy releases its memory itself."""

    @property
    def inside(self) -> int:
        """Number of requests that are computed or wait."""
        return sum(replica.busy for replica in self.replicas)

    async def drain(self, patience: float, forced: Callable[[], bool]) -> None:
        """Refuses new requests, waits until accepted ones are answered, and ends the processes."""
        self.draining = True
        end = time.monotonic() + patience
        while self.inside and time.monotonic() < end and not forced():
            await asyncio.sleep(TICK)
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def close(self) -> None:
        """Ends all processes."""
        self.draining = True
        for replica in self.replicas:
            actor, replica.actor = replica.actor, None
            if actor is not None:
                actor.end()

    def _lose(self, replica: Replica, actor: Actor, error: DeviceLostError) -> None:
        """A copy was lost: it is started again."""
        if replica.actor is not actor or self.draining:
            return
        LOG.warning("replica %s was lost: %s", replica.name, in_one_line(error))
        replica.actor = None
        task = asyncio.get_running_loop().create_task(self._restart(replica))
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)

    async def _restart(self, replica: Replica) -> None:
        while not self.draining:
            try:
                await asyncio.to_thread(self._start, replica)
            except GGPlugError as error:
                LOG.warning("replica %s does not start: %s", replica.name, in_one_line(error))
                await asyncio.sleep(RESTART_SECONDS)
            else:
                break
        if self.draining:
            await asyncio.to_thread(self.close)

    # -- requests ----------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            raw = b"" if scope["method"] in READS else await self._incoming.read(request)
            beginnings = await asyncio.to_thread(lambda: list(beginnings_of(raw)))
            tried: list[Replica] = []
            while not await self._answered(self._chosen(request.headers, beginnings, tried), scope, raw, receive, send):
                pass
        except ClientDisconnected:
            pass
        except Problem as problem:
            await response_of(problem, scope["path"])(scope, receive, send)

    def _chosen(self, headers: Headers, beginnings: Sequence[bytes], tried: list[Replica]) -> Replica:
        """The replica for a request, which is noted in ``tried``.  Raises Problem if there is none."""
        if self.draining:
            raise shutting_down()
        there = [each for each in self.replicas if each.actor is not None and each not in tried]
        if not there:
            raise Problem(503, "no replica of the model can answer now; try again later", code="device_lost")
        chosen = min(there, key=lambda each: each.busy)
        known = next((self._begun[each] for each in reversed(beginnings) if each in self._begun), None)
        if known in there and known.busy < chosen.busy + self._slots:
            chosen = known
        chosen = next((each for each in there if each.name == headers.get(HEADER)), chosen)
        for beginning in beginnings:
            self._begun[beginning] = chosen
            self._begun.move_to_end(beginning)
        while len(self._begun) > MOST_BEGINNINGS:
            self._begun.popitem(last=False)
        tried.append(chosen)
        return chosen

    async def _answered(self, replica: Replica, scope: Scope, raw: bytes, receive: Receive, send: Send) -> bool:
        """Has a replica answer a request; False if it was lost before its answer began."""
        actor, number, begun = replica.actor, next(self._numbers), False
        assert actor is not None
        known = left = False

        def leave() -> None:
            nonlocal left
            left = True
            if known:
                actor.post("leave", number)

        carried = {name: scope[name] for name in CARRIED if name in scope}
        replica.busy += 1
        try:
            async with watched(receive, leave):
                async for messages in actor.stream("ask", number, carried, raw):
                    if left and not known:
                        actor.post("leave", number)
                    known = True
                    for message in messages:
                        if message["type"] == "http.response.start":
                            MutableHeaders(scope=message)[HEADER] = replica.name
                        begun = True
                        await send(message)
        except GGPlugError as error:
            if isinstance(error, DeviceLostError):
                self._lose(replica, actor, error)
                return begun  # the rest of what was begun is missing, which closes the connection
            if not begun:
                raise logged(error) from error
            LOG.error("replica %s ended an answer: %s", replica.name, in_one_line(error))
        finally:
            replica.busy -= 1
        return True


def beginnings_of(raw: bytes) -> Iterator[bytes]:
    """The digests of longer and longer beginnings of the prompt in a body; those of a chat that goes on stay."""
    try:
        body = from_json(raw)
    except ValueError:
        return
    if not isinstance(body, Mapping):
        return
    prompt = [body[key] for key in ("system", "instructions", "messages", "prompt", "input") if key in body]
    text = json.dumps(prompt)
    digest = hashlib.sha256()
    for start in range(0, len(text) - PIECE + 1, PIECE):
        digest.update(text[start : start + PIECE].encode())
        yield digest.digest()
