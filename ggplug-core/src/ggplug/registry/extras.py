"""The extras of a backend that ggplug itself uses, by ``Registration.get(name)``.  All are optional.

They are protocols: a backend needs to import nothing, only to provide objects (or modules) of that shape.

==================  ============================================================================================
``"cache"``         :class:`KernelCache`: compiled kernels on disk; ``ggplug cache`` shows, clears and prebuilds
``"benchmarks"``    a sequence of :class:`Instrument`; ``ggplug bench`` runs them on the backend's devices
``"quantizer"``     ``(n_threads=None)``: a :class:`Quantizer`; :mod:`ggplug.quantizing` encodes weights with it
==================  ============================================================================================

A distribution that is no backend contributes instruments by entry points of the group ``ggplug.benchmarks``; each names
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ggplug.backend import Device
from ggplug.types import Type

Progress = Callable[[int, int, str], None]
"""Called with how many are done, how many there are, and the name of the one that comes next."""


@runtime_checkable
class KernelCache(Protocol):
    """Compiled kernels on disk; :class:`ggplug.cache.KernelFiles` with a method :meth:`prebuild` is one."""

    def entries(self) -> Sequence[Any]:
        """The kernels in the cache: objects with ``name`` and ``bytes``.

        If known, they also have ``target``, ``used`` (in seconds) and ``path``, and for an unusable kernel ``problem``,
        the reason.
        """

    def clear(self) -> int:
        """Deletes all; returns how many there were."""

    def prebuild(self, progress: Progress) -> int:
        """Compiles what is likely to be needed and is missing; returns how many were compiled."""


@dataclass(frozen=True)
class Options:
    """The options of ``ggplug bench``.

    ``threads``: as many as a device on the host shall use; None is its default.  ``peers``: whether to measure other
    libraries too, where they are installed, and give ratios.  ``compare_with``: another device to measure
    alternately.  ``files``: models to measure with; ``prompt`` and ``generate``: tokens that these read and write.
    ``limited``: whether the device is limited to some instructions, so that peers have to be, too.  ``place_rules``:
    the placement of models, as options of the command line and their values.
    """

    threads: int | None = None
    peers: bool = False
    compare_with: Device | None = None
    files: tuple[Path, ...] = ()
    prompt: int = 256
    generate: int = 32
    limited: bool = False
    place_rules: tuple[tuple[str, str], ...] = ()


class Instrument(Protocol):
    """Something that measures a device.  ``name`` is one word; ``description`` one line.

    It may have ``runs_by_name``, true of one that runs only where it is named (it takes long, or runs others once
    more), and ``measures_files``, of one that measures the model files in ``Options.files``: ``"by name"`` if only
    where it is named as well, True if also where files alone are named.
    """

    name: str
    description: str

    def run(self, device: Device, options: Options) -> Iterable[Mapping[str, Any]]:
        """Measures, and yields a row as soon as it is known.

        ``case`` says what was measured; the other keys are what it was measured with (``threads``, ``nodes``) and the
        figures, whose names end with their unit (``milliseconds``, ``gigabytes_per_second``) or are ratios.  Raises
        UnsupportedOpError if the device cannot do it at all.
        """


@runtime_checkable
class Quantizer(Protocol):
    """Encodes rows on all threads, byte for byte as :func:`ggplug.quantize`."""

    def takes(self, source: Type, type: Type, *, weighted: bool) -> bool:
        """Whether it encodes rows of ``source`` as ``type``; ``weighted``: with an importance matrix."""

    def encode(
        self,
        data: npt.NDArray[np.uint8],
        source: Type,
        type: Type,
        importance: npt.NDArray[np.float32] | None,
        out: npt.NDArray[np.uint8],
    ) -> None:
        """Encodes ``data``, [rows, bytes of a row of ``source``], into ``out``, [rows, bytes of a row of ``type``].

        Both lie in memory without gaps.  ``importance``: [ne0], not negative, for all rows.
        """

    def close(self) -> None:
        """Ends its threads."""
