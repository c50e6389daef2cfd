"""``ggplug.testing`` where the suite is installed, and core where it is not."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import ggplug_testing
from ggplug import testing
from ggplug.errors import PluginError

# Core alone: neither the suite nor any plugin, as the first of which the suite would be found.
ALONE = """
import sys
sys.modules["ggplug_testing"] = None
from ggplug.cli import main
from ggplug.cli import extensions
extensions.scan = lambda group: ()
main(sys.argv[1:])
"""


def core_only(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", ALONE, *map(str, arguments)], capture_output=True, text=True)


def test_importing_the_module_imports_nothing_else() -> None:
    program = (
        "import sys, ggplug; before = set(sys.modules); import ggplug.testing; print(*(set(sys.modules) - before)); "
        "ggplug.testing.check; print('ggplug_testing' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ggplug.testing", "True"]


def test_it_has_the_names_of_the_suite() -> None:
    assert testing.__all__ == ggplug_testing.__all__
    for name in testing.__all__:
        assert getattr(testing, name) is getattr(ggplug_testing, name)
    assert not hasattr(testing, "suite")


@pytest.mark.parametrize("name", testing.__all__)
def test_without_the_suite_a_name_says_how_to_get_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ggplug_testing", None)
    with pytest.raises(PluginError, match=rf"ggplug\.testing\.{name} .*not installed.*ggplug-core\[test\]") as caught:
        getattr(import_module("ggplug.testing"), name)
    assert caught.value.fields["distribution"] == "ggplug-testing"


def test_what_the_suite_itself_lacks_is_not_taken_for_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(name: str) -> None:
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    monkeypatch.setattr(testing, "whole", lacking)
    with pytest.raises(ModuleNotFoundError, match="numpy"):
        _ = testing.check


def test_commands_of_core_run_without_the_suite(tmp_path: Path) -> None:
    """Some of them; `nox -s backends` runs all, where wheels alone are installed."""
    for arguments in (["--help"], ["ops"], ["bench", "--list"], ["new-backend", "fresh", "--into", tmp_path]):
        done = core_only(*arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        assert "conformance" not in done.stdout or arguments[0] != "--help"
    done = core_only("conformance", "CPU")
    assert done.returncode == 2
    assert "No such command 'conformance'" in done.stderr
