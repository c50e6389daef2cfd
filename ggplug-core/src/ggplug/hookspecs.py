"""The pluggy hooks: plugins use them to provide a backend, to decide placements, and to observe computations.

A plugin is a module or any object.  It implements a hook by a function with one of the names below, marked with
:data:`hookimpl`.  The function takes the arguments that it needs, by name, and may leave out the others::

    import ggplug as gg

    @gg.hookimpl
    def ggplug_nodes_timed(graph, device, times):
        for node, start, end in times:
            ...

A backend's plugin is found through its entry point.  A policy or an observer is registered by
``ggplug.hookspecs.HOOKS.register(plugin)``, or is in the plugin of a backend together with its registration.

*Hooks without listeners cost nothing.*  The scheduler calls :meth:`Hooks.listeners` once per computation, which is a
lookup in an empty dictionary, and takes no time stamps if the answer is None.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import pluggy

from ggplug.errors import PlacementError, PluginError, in_one_line

if TYPE_CHECKING:
    from ggplug.backend import Device, NodeTime, Registration
    from ggplug.graph import Graph
    from ggplug.nodes.groups import Groups
    from ggplug.tensor import Tensor

_P = ParamSpec("_P")
_T = TypeVar("_T")

PROJECT = "ggplug"
"""The project name of our pluggy markers."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a plugin as the implementation of the hook that it is named after."""

log = logging.getLogger("ggplug")


# -- the hooks -------------------------------------------------------------------------------------


@hookspec
def ggplug_backend_registration() -> Registration:  # type: ignore[empty-body]
    """Returns the registration of a backend.  Called once, when the plugin is loaded.

    Must not touch hardware: that happens when ``Registration.devices`` is called, after the registration's
    ``api_version`` was found to fit.
    """


@hookspec(firstresult=True)
def ggplug_placement(graph: Graph, node: Tensor, devices: Sequence[Device]) -> Device | None:
    """Decides which device computes a node; the scheduler takes the first answer that is not None.

    ``devices``: those that support the node and can access its pinned sources, in priority order.  Returns one of
    them, or None.  Pins of the user come before policies.  Called when a graph with a new structure is
    split, not when it runs again; the answer must depend on the structure only.
    """


@hookspec
def ggplug_graph_prepared(graph: Graph, start: int, end: int) -> None:
    """A computation has what it needs before its first split: inputs, memory, and plans that are bound to it.

    ``start``: when the computation was asked for; ``end``: when its first split could begin.  Both are
    ``time.perf_counter_ns``.  Inputs that the caller set before are not included.
    """


@hookspec
def ggplug_graph_computed(graph: Graph, devices: Sequence[Device], start: int, end: int) -> None:
    """A whole graph was computed, and the devices were waited for.

    ``devices``: those that took part.  ``start``, ``end``: ``time.perf_counter_ns``.
    """


@hookspec
def ggplug_graph_failed(graph: Graph, error: BaseException, start: int, end: int) -> None:
    """The computation of a whole graph raised ``error``, in place of ``ggplug_graph_computed``."""


@hookspec
def ggplug_split_computed(graph: Graph, split: Graph, device: Device, start: int, end: int, submitted: int = 0) -> None:
    """One split of a graph was computed on a device, and the device was waited for.

    ``graph``: the whole graph; ``split``: the part.  ``start``, ``end``: ``time.perf_counter_ns``; ``submitted``: when
    the plan had returned, and the host began to wait.  While a plugin listens splits do not overlap.
    """


@hookspec
def ggplug_split_failed(graph: Graph, split: Graph, device: Device, error: BaseException, start: int, end: int) -> None:
    """One split of a graph, or a copy that it needs, raised ``error``, in place of ``ggplug_split_computed``.

    ``ggplug_nodes_timed`` follows with the nodes that ran, if the plan knows them.
    """


@hookspec
def ggplug_split_copied(graph: Graph, split: Graph, device: Device, nbytes: int, start: int, end: int) -> None:
    """What a split reads from the memory of other devices was copied to its device, and waited for.

    ``nbytes``: of all copies together.  The other arguments are those of ``ggplug_split_computed``.
    """


@hookspec
def ggplug_nodes_timed(graph: Graph, device: Device, times: Sequence[NodeTime], groups: Groups) -> None:
    """The nodes of a split (or of a graph that was computed as one) ran, and when.

    ``times``: position in ``graph.tensors`` (-1 for the whole graph, from devices that do not time nodes), start and
    end in ``time.perf_counter_ns``.  A group has one entry, with the position of its last node: ``groups`` has its
    members.  While a plugin listens plans are computed by ``Plan.compute_traced``.
    """


@hookspec
def ggplug_member_worked(
    device: Device, member: Device | None, what: str, nodes: int, nbytes: int, start: int, end: int
) -> None:
    """A member of a combined device computed a stage, or the members exchanged a result.

    ``member``: None for an exchange.  ``what``: ``compute``, or the kind of the exchange and the name of the result.
    ``nodes``: that were computed; ``nbytes``: of the result.  ``start``, ``end``: ``time.perf_counter_ns``; until the
    member was waited for.
    """


@hookspec
def ggplug_kernels_compiled(device: str, names: Sequence[str], start: int, end: int) -> None:
    """Kernels that were not on disk were compiled, while the calling thread waited.

    ``device``: the name of a device, or of the backend whose devices share the kernels.
    """


@hookspec
def ggplug_host_worked(what: str, start: int, end: int) -> None:
    """The calling thread did work that belongs to no device, such as ``sampling``; see :meth:`Hooks.timed`."""


SPECS = (
    ggplug_backend_registration,
    ggplug_placement,
    ggplug_graph_prepared,
    ggplug_graph_computed,
    ggplug_graph_failed,
    ggplug_split_computed,
    ggplug_split_failed,
    ggplug_split_copied,
    ggplug_nodes_timed,
    ggplug_member_worked,
    ggplug_kernels_compiled,
    ggplug_host_worked,
)

_OF_SPLITS = frozenset(
    (
        "ggplug_graph_prepared",
        "ggplug_split_computed",
        "ggplug_split_failed",
        "ggplug_split_copied",
        "ggplug_nodes_timed",
    )
)
"""Hooks for which splits are computed one after the other."""


class Hooks:
    """The plugins that listen to each hook.  Safe to use from several threads.

    ``callers``: the hooks that a plugin implements, by name, each with pluggy's HookCaller.  ``epoch`` counts
    registrations: a scheduler keeps it with the decisions of policies, and asks again when it differs.
    ``splits_observed``: whether a plugin observes splits; the scheduler looks at it in each computation.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(sys.modules[__name__])
        self._lock = threading.Lock()
        self.callers: dict[str, Any] = {}
        self.splits_observed = False

    def register(self, plugin: object, name: str | None = None) -> str:
        """Registers a plugin's hooks and returns the name of the registration.

        ``name``: by default the module's or the class's.  Raises PluginError, and registers nothing, if a hook takes
        arguments that its specification lacks, if there is no such hook, or if the plugin or the name is registered
        already.
        """
        with self._lock:
            known = self._manager.get_name(plugin)
            if known is not None:
                raise PluginError(f"the hooks of {plugin!r} are registered already, as {known!r}")
            if name is None:
                name = self._free_name(str(getattr(plugin, "__name__", type(plugin).__qualname__)))
            elif self._manager.has_plugin(name):
                raise PluginError(f"a plugin called {name!r} is registered already")
            try:
                self._manager.register(plugin, name)
                self._manager.check_pending()
                self._check_plain(plugin)
            except Exception as error:
                if self._manager.is_registered(plugin):
                    self._manager.unregister(plugin)
                raise PluginError(f"the hooks of {plugin!r} do not match ggplug's: {error}") from error
            self._changed()
            return name

    def _free_name(self, wanted: str) -> str:
        name = wanted
        for count in itertools.count(2):
            if not self._manager.has_plugin(name):
                break
            name = f"{wanted}-{count}"
        return name

    def _check_plain(self, plugin: object) -> None:
        # Observers are called one by one, so that the others are called if one fails.
        for caller in self._manager.get_hookcallers(plugin) or ():
            for impl in caller.get_hookimpls():
                if impl.plugin is plugin and (impl.wrapper or impl.hookwrapper):
                    raise TypeError(f"{caller.name} is marked as a wrapper; ggplug's hooks cannot have wrappers")

    def unregister(self, plugin: object) -> None:
        """Removes a plugin's hooks; does nothing if it is not registered."""
        with self._lock:
            if self._manager.is_registered(plugin):
                self._manager.unregister(plugin)
                self._changed()

    def _changed(self) -> None:
        callers = {spec.__name__: getattr(self._manager.hook, spec.__name__) for spec in SPECS}
        self.callers = {name: caller for name, caller in callers.items() if caller.get_hookimpls()}
        self.splits_observed = not _OF_SPLITS.isdisjoint(self.callers)
        self.epoch += 1

    def listeners(self, hook: str) -> Any:
        """A pluggy HookCaller that calls all implementations of a hook, or None if there are none."""
        return self.callers.get(hook)

    def implementations(self, hook: str, plugin: object) -> list[Any]:
        """The functions of one registered plugin that implement a hook."""
        caller = self.callers.get(hook)
        return [] if caller is None else [impl.function for impl in caller.get_hookimpls() if impl.plugin is plugin]

    def notify(self, hook: str, **facts: Any) -> None:
        """Calls all observers of a hook; an error of one is logged, and the others are called."""
        caller = self.callers.get(hook)
        if caller is None:
            return
        for impl in reversed(caller.get_hookimpls()):
            try:
                impl.function(*[facts[name] for name in impl.argnames])
            except Exception:
                log.exception("the observer %s failed in %s", impl.plugin_name, hook)

    def timed(self, what: str, function: Callable[_P, _T]) -> Callable[_P, _T]:
        """The function, each call of which is reported to observers of ``ggplug_host_worked``; itself without any.

        ``what``: one word for what it does.
        """
        if "ggplug_host_worked" not in self.callers:
            return function

        def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            start = time.perf_counter_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self.notify("ggplug_host_worked", what=what, start=start, end=time.perf_counter_ns())

        return call

    def place(self, graph: Graph, node: Tensor, devices: Sequence[Device]) -> tuple[Device, str] | None:
        """The device that a policy chose for a node and the policy's name, or None if no policy chose one.

        Raises PlacementError if a policy raises, or chooses a device that is not in ``devices``.
        """
        caller = self.callers.get("ggplug_placement")
        if caller is None:
            return None
        facts = {"graph": graph, "node": node, "devices": devices}
        for impl in reversed(caller.get_hookimpls()):
            try:
                device = impl.function(*[facts[name] for name in impl.argnames])
            except Exception as error:
                why = f"the placement policy {impl.plugin_name} failed for {node!r}: {in_one_line(error)}"
                raise PlacementError(why) from error
            if device is not None:
                if device not in devices:
                    offered = ", ".join(d.name for d in devices) or "none"
                    raise PlacementError(
                        f"the placement policy {impl.plugin_name} chose {device!r} for {node!r}; "
                        f"it must choose one of {offered}",
                        got=device,
                        tensor=node,
                    )
                return device, impl.plugin_name
        return None


HOOKS = Hooks()
"""The hooks of this process."""
