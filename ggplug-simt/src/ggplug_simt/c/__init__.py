"""The library of programs in a small C dialect that compiles as OpenCL C, and as CUDA C++ and HIP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.backend import Decline, Group
from ggplug.patterns import Pattern
from ggplug_simt.c.kernels import GROUPS, match
from ggplug_simt.c.launch import RECORD, MatrixProduct, arguments, layout
from ggplug_simt.c.profile import Profile
from ggplug_simt.c.source import Source
from ggplug_simt.library import Launch, Launches, Library, Program, VendorProgram
from ggplug_simt.properties import Properties

__all__ = ["CLibrary", "MatrixProduct", "Profile", "Source"]


class CLibrary(Library):
    """Programs in C, cut for a device.  ``language``: ``opencl`` or ``cuda``; ``profile``: the sizes."""

    offset: np.dtype[Any] = np.dtype(np.int64)
    record = RECORD

    def __init__(self, language: str, properties: Properties) -> None:
        self.language = language
        self.profile = Profile.of(properties)

    def match(self, group: Group) -> Launches | Decline:
        return match(self.profile, group)

    @property
    def patterns(self) -> Sequence[Pattern]:
        return tuple(GROUPS)

    def facts(self) -> Mapping[str, object]:
        return {"tile": str(self.profile.tile)}

    def text(self, program: Program) -> str:
        assert isinstance(program, Source)
        return program.text(self.language)

    def arguments(self, launch: Launch, **noted: int) -> npt.NDArray[np.uint8]:
        return arguments(launch, **noted)

    def offset_of(self, program: Program | VendorProgram, number: int) -> int:
        assert isinstance(program, (Source, MatrixProduct))
        fields = layout(program.tensors, program.scalars).fields
        assert fields is not None
        return int(fields[program.tensors[number]][1])
