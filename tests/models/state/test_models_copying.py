"""Models, sessions and texts hold memory and locks: ``copy`` and ``pickle`` refuse them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ggplug.errors import SerializationError
from ggplug.gguf import GGUFReader
from ggplug_models import Decoder


@pytest.mark.parametrize("made", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_holds_memory_of_a_model_is_not_copied(model: Decoder, made: Callable[[Any], Any]) -> None:
    with model.session(16) as session:
        for thing in (model, session, session.memory, model.weights, model.generate("a", 1)):
            with pytest.raises(SerializationError, match="cannot be copied or sent to another process") as seen:
                made(thing)
            assert seen.value.got is thing
            assert seen.value.remedy


@pytest.mark.parametrize("made", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_reader_of_a_file_is_not_copied(data: Path, made: Callable[[Any], Any]) -> None:
    with GGUFReader(data / "qwen3.gguf") as reader, pytest.raises(SerializationError, match="open the file again"):
        made(reader)


def test_a_tokenizer_is_one_object_however_it_is_copied(model: Decoder) -> None:
    assert copy.copy(model.tokenizer) is model.tokenizer
    assert copy.deepcopy(model.tokenizer) is model.tokenizer
    with pytest.raises(SerializationError, match="cannot be sent to another process"):
        pickle.dumps(model.tokenizer)


def test_where_a_model_lies_is_copied_with_its_devices(model: Decoder) -> None:
    assert str(copy.deepcopy(model.placement)) == str(model.placement)
    assert copy.deepcopy(model.packing) == model.packing
