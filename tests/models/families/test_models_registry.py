"""Model families of other distributions: found by an entry point when a file needs them, and never in place of one."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import ggplug_models
import ggplug_models.architectures
from ggplug.errors import DuplicateNameError, ModelError, PluginError
from ggplug.gguf import GGUFWriter
from ggplug.registry.discover import Installed
from ggplug_models import ARCHITECTURES, deciding
from ggplug_models.architectures import MODULES
from ggplug_models.architectures.llama import Llama
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.model import architecture
from ggplug_models.networks.transformer import Transformer

FAMILY = """
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.model import architecture
from ggplug_models.networks.transformer import Transformer

@architecture("otherlm")
class OtherLm(Transformer, Decoder):
    '''A block of llama's.'''
"""


@pytest.fixture
def brings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module ``otherlm`` that an installed distribution names for the architecture ``otherlm``."""
    point = EntryPoint("otherlm", "otherlm_family:OtherLm", deciding.GROUP)
    installed = Installed(point.name, point.value, "ggplug-otherlm", "1.0", "", False, point)
    monkeypatch.setattr(deciding, "scan", lambda group: (installed,) if group == deciding.GROUP else ())
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "otherlm_family.py"
    ARCHITECTURES.pop("otherlm", None)
    sys.modules.pop("otherlm_family", None)


def file_of(folder: Path, name: str) -> Path:
    path = folder / "model.gguf"
    with GGUFWriter(path, name) as writer:
        writer.write()
    return path


def test_a_family_of_another_distribution_is_found_when_a_file_needs_it(brings: Path) -> None:
    brings.write_text(FAMILY)
    with pytest.raises(ModelError, match=r"otherlm\.\w+"):  # the file has no keys: the family looked for them
        ggplug_models.load(file_of(brings.parent, "otherlm"), ["CPU"])
    assert ARCHITECTURES["otherlm"].__module__ == "otherlm_family"


def test_a_family_that_does_not_load_is_reported_with_its_error(brings: Path) -> None:
    brings.write_text("import nothing_of_that_name")
    with pytest.raises(PluginError, match=r"otherlm_family:OtherLm .*'otherlm'.*nothing_of_that_name"):
        ggplug_models.load(file_of(brings.parent, "otherlm"), ["CPU"])


def test_an_architecture_has_one_class() -> None:
    with pytest.raises(
        DuplicateNameError, match=r"'llama' already has the class ggplug_models\.architectures\.llama\.Llama"
    ):
        architecture("llama")(type("Other", (Transformer, Decoder), {}))
    assert ARCHITECTURES["llama"] is Llama
    assert architecture("llama")(Llama) is Llama  # as where a module is loaded again


def test_a_module_of_families_is_imported_when_a_file_of_one_is_loaded(data: Path) -> None:
    program = f"""
import sys, ggplug_models
prefix = "ggplug_models.architectures."
before = [name for name in sys.modules if name.startswith(prefix)]
"gemma3" in ggplug_models.ARCHITECTURES, list(ggplug_models.ARCHITECTURES)
ggplug_models.load({str(data / "gemma3.gguf")!r}, ["CPU"]).free()
print(before, [name.removeprefix(prefix) for name in sys.modules if name.startswith(prefix)])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[] ['gemma']\n"


@pytest.mark.parametrize("module", MODULES)
def test_the_table_has_the_architectures_that_a_module_registers(module: str) -> None:
    name = f"ggplug_models.architectures.{module}"
    importlib.import_module(name)
    assert {each for each in ARCHITECTURES if ARCHITECTURES[each].__module__ == name} == set(MODULES[module])


def test_the_table_has_all_modules_with_families() -> None:
    folder = Path(ggplug_models.architectures.__file__).parent
    registering = {path.stem for path in folder.glob("*.py") if "@architecture(" in path.read_text("utf-8")}
    assert registering == set(MODULES)
