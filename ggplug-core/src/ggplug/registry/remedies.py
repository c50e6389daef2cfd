"""From whatever went wrong to one line that says why, and one that says what to do."""

from __future__ import annotations

from ggplug.errors import GGPlugError, KernelCompileError
from ggplug.registry.discover import edited_in, install_again
from ggplug.registry.facts import RefusalError
from ggplug.registry.isolation import FaultError, HangError
from ggplug.registry.records import Failure, Plugin, reason_of


def failure_of(plugin: Plugin, doing: str, error: Exception) -> Failure:
    """The record of a plugin's failure: what it was doing, the reason, and the remedy."""
    without = f"GGPLUG_DISABLE={plugin.qualified} leaves it out"
    folder = edited_in(plugin.distribution)
    fault = f"this is a fault of the plugin: {f'mend it in {folder}' if folder else 'upgrade it'}; {without}"
    if isinstance(error, HangError):
        return Failure(doing, str(error), f"raise GGPLUG_LOAD_TIMEOUT if it is only slow; {without}", slow=True)
    if isinstance(error, RefusalError):
        return Failure(doing, str(error), error.remedy or fault)
    cause = error.cause if isinstance(error, FaultError) else error
    if isinstance(cause, RefusalError):  # found inside of the plugin's own time limit
        return Failure(doing, str(cause), cause.remedy or fault)
    return Failure(doing, reason_of(cause), _remedy(plugin, cause, without) or fault, cause)


def _remedy(plugin: Plugin, cause: BaseException, without: str) -> str | None:
    if isinstance(cause, GGPlugError) and cause.remedy is not None:
        return cause.remedy
    if isinstance(cause, (MemoryError, KernelCompileError)):
        return without
    if isinstance(cause, ModuleNotFoundError) and cause.name is not None:
        missing = cause.name.partition(".")[0]
        if plugin.distribution is None:
            return f"install what provides the module {missing}"
        if missing == plugin.top_level:
            return f"its files are missing: {install_again(plugin.distribution, repair=True)}"
        if edited_in(plugin.distribution):
            named = f"name it in the dependencies of {edited_in(plugin.distribution)}"
            return f"install what provides the module {missing}, and {named}; {without}"
        return f"{install_again(plugin.distribution)} installs what it needs; {without}"
    if isinstance(cause, ImportError):
        if plugin.distribution is None:
            return f"install the versions that it needs; {without}"
        return f"{install_again(plugin.distribution)} installs the versions that it needs; {without}"
    if isinstance(cause, (ValueError, RuntimeError)) and "main thread" in reason_of(cause):
        return f"GGPLUG_LOAD_TIMEOUT=0 loads plugins in the calling thread, without a time limit; {without}"
    if isinstance(cause, OSError):
        return f"a library, driver or file that it needs is missing or damaged: install that; {without}"
    return None
