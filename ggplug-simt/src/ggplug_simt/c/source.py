"""The text of a program: the dialect, access to elements, the block types it needs, and one kernel with its sizes.

Each family of kernels is a C file next to the Python module with its choosers.  A program is one kernel of such a file,
specialised by ``#define`` lines; equal programs are compiled once.
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import NamedTuple

from ggplug_simt.c.types import declarations


class Source(NamedTuple):
    """A program as the key of its text; hashable.

    ``family``: file name of the kernels, without suffix.  ``kernel``: the function in it.  ``defines``: names and their
    replacements; a name may have parameters, ``F(x)``.  ``tensors``, ``scalars``: what its arguments struct holds, the
    latter as ``(name, C type)``.  ``writes``: the tensors that it stores in; the others are const.
    """

    family: str
    kernel: str
    defines: tuple[tuple[str, str], ...]
    tensors: tuple[str, ...]
    writes: tuple[str, ...]
    scalars: tuple[tuple[str, str], ...]

    def text(self, language: str) -> str:
        """The whole program in ``language``: ``opencl`` or ``cuda``."""
        lines = [f"#define {self.kernel.upper()} 1", *(f"#define {name} {value}" for name, value in self.defines)]
        members = [f"    tensor {name};" for name in self.tensors]
        members += [f"    {kind} {name};" for name, kind in self.scalars]
        return "\n".join(
            [
                *lines,
                part(f"dialect/{language}.h"),
                part("dialect/access.h"),
                declarations(tuple(value for _, value in self.defines)),
                part("dialect/items.h"),
                *([part("dialect/faults.h")] if "faults" in self.tensors else []),
                "typedef struct {",
                *members,
                "} arguments;",
                f"#define PARAMETERS {self.parameters()}",
                part(f"kernels/{self.family}.c"),
            ]
        )

    def parameters(self) -> str:
        """The kernel's parameters: a pointer for each tensor, const where it only reads, and the arguments struct."""
        pointers = [f"GLOBAL {'' if n in self.writes else 'const '}char *{n}_data" for n in self.tensors]
        return ", ".join([*pointers, "const arguments args"])

    def __str__(self) -> str:
        types = [f"{name}={value}" for name, value in self.defines if name.startswith("T") and len(name) == 2]
        run = "".join(f" + {value}" for name, value in self.defines if name == "FUSED" and value)
        return f"{self.kernel}[{' '.join(types)}]{run}" if types else self.kernel + run


@functools.cache
def part(path: str) -> str:
    """The text of a file of this package."""
    return resources.files("ggplug_simt.c").joinpath(path).read_text(encoding="utf-8")
