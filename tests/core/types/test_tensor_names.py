"""Names of tensors, graphs and contexts are texts, wherever they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ggplug as gg
from ggplug.errors import TypeMismatchError

X = gg.tensor([1.0, 2.0], name="x")


@pytest.mark.parametrize("name", [X, np.ones(2), b"x", 1, None, ["x"]], ids=lambda name: type(name).__name__)
@pytest.mark.parametrize(
    "given",
    [
        lambda name: gg.relu(X, name=name),
        lambda name: gg.view(X, 1, name=name),
        lambda name: gg.new_tensor("f32", 2, name),
        lambda name: gg.tensor([1.0], name=name),
        lambda name: gg.new_tensor("f32", 2).named(name),
        lambda name: gg.Context().new_tensor("f32", 2, name),
        lambda name: gg.Context(name),
        lambda name: gg.Graph(X, name=name),
    ],
    ids=["op", "view", "new_tensor", "tensor", "named", "member", "context", "graph"],
)
def test_a_name_that_is_no_text_is_refused(given: Callable[[Any], object], name: object) -> None:
    with pytest.raises(TypeMismatchError, match=f"a name must be a text, got a {type(name).__name__}"):
        given(name)
    assert X.name == "x"


def test_a_name_is_kept_and_changed() -> None:
    tensor = gg.relu(X, name=np.str_("first"))
    assert tensor.name == "first"
    assert tensor.named("second") is tensor
    assert "'second'" in repr(tensor)
    tensor.name = ""
    assert tensor.name == ""
