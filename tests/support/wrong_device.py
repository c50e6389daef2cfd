"""A device some of whose kernels are wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ggplug.backend import Decline, Group
from ggplug_testing.devices.fusing import FusingDevice


class Wrong(FusingDevice):
    """A device whose kernels of some groups make the first element larger; ``wrong`` selects them."""

    def __init__(self, wrong: Callable[[Group], bool], by: float = 0.01, name: str = "wrong", **how: Any) -> None:
        super().__init__(name, **how)
        self.wrong, self.by = wrong, by

    def match(self, group: Group) -> Any:
        found = super().match(group)
        if isinstance(found, Decline) or not self.wrong(group):
            return found

        def kernel(*args: Any) -> None:
            found(*args)
            result = args[1][args[0].node] if len(group) > 1 else args[1]
            result.array()[0, 0, 0, 0] += self.by

        kernel.__name__ = f"wrong_{'_'.join(node.op.name for node in group.nodes)}"
        return kernel
