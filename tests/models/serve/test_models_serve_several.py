"""``ggplug serve --models-dir``: several models behind one server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import json
import os
import shutil
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from held import Doing, until

import ggplug_models
from ggplug.cli.app import app
from ggplug.errors import ModelError, ParameterError

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from paths import DATA
from served import WAIT, Live, port_of, running

from ggplug_models.serve.app import Rules
from ggplug_models.serve.batcher import Counts
from ggplug_models.serve.loaded import Loaded, loaded
from ggplug_models.serve.models import Models, models_in
from ggplug_models.serve.options.presets import Preset, presets_in
from ggplug_models.serve.problems import Problem
from ggplug_models.serve.service import About, Service

NAMES = ("a", "b", "c")


class Shelf:
    """Models of one file under several names, whose loading and release a test can hold, and let fail."""

    def __init__(self, names: tuple[str, ...] = NAMES, idle: float | None = None) -> None:
        self.names = names
        self.idle = idle
        self.log: list[str] = []
        self.services: weakref.WeakSet[Service] = weakref.WeakSet()
        self.failing: set[str] = set()
        self.held, self.released = threading.Event(), threading.Event()
        self.held.set()
        self.released.set()

    def find(self) -> dict[str, Path]:
        return dict.fromkeys(self.names, DATA / "qwen3.gguf")

    def service(self, name: str, path: Path) -> Service:
        @contextmanager
        def opens(counts: Counts) -> Iterator[Loaded]:
            self.log.append(f"load {name}")
            assert self.held.wait(WAIT)
            if name in self.failing:
                raise ModelError("the file is damaged")
            with loaded(lambda: ggplug_models.load(path, ["CPU"]), name, counts, slots=1) as found:
                yield found
            assert self.released.wait(WAIT)
            self.log.append(f"release {name}")

        service = Service(name, opens, slots=1, about=About(path), idle=self.idle)
        self.services.add(service)
        return service

    @contextmanager
    def served(self, rules: Rules | None = None, *, most: int = 0, autoload: bool = True) -> Iterator[Live]:
        models = Models(self.find, self.service, most=most, autoload=autoload)
        with running(models, rules) as live:
            yield live


def asked(model: str | None, **more: Any) -> dict[str, Any]:
    return {"model": model, "prompt": "hello", "max_tokens": 4, "temperature": 0, **more}


def complete(live: Live, model: str) -> str:
    status, _, found = live.ask("POST", "/v1/completions", asked(model))
    assert (status, found["model"]) == (200, model)
    return str(found["choices"][0]["text"])


def states(live: Live) -> dict[str, str]:
    return {each["id"]: each["status"]["value"] for each in live.ask("GET", "/v1/models")[2]["data"]}


def test_a_request_loads_the_model_that_it_names() -> None:
    shelf = Shelf()
    with shelf.served() as live:
        assert states(live) == {"a": "unloaded", "b": "unloaded", "c": "unloaded"}
        assert complete(live, "b") == complete(live, "a")
        assert states(live) == {"a": "loaded", "b": "loaded", "c": "unloaded"}
        assert live.ask("POST", "/tokenize?model=c", {"content": "hello"})[0] == 200
        assert live.ask("POST", "/api/generate", {"model": "a:latest", "prompt": "a", "stream": False})[0] == 200
    assert sorted(shelf.log) == sorted([f"{what} {name}" for what in ("load", "release") for name in NAMES])


def test_a_model_must_be_named_and_known() -> None:
    with Shelf().served() as live:
        for body, status, code in (
            (asked(None), 400, "missing_required_parameter"),
            (asked("d"), 404, "model_not_found"),
            (b"{", 400, "invalid_json"),
            ([1], 400, "missing_required_parameter"),
        ):
            found, _, answer = live.ask("POST", "/v1/completions", body)
            assert (found, answer["error"]["code"]) == (status, code)
        assert live.ask("GET", "/v1/models/d")[0] == 404
        assert live.ask("GET", "/slots")[0] == 400
        assert live.ask("POST", "/models/load", {"model": "d"})[0] == 404
        assert live.ask("POST", "/v1/messages", asked("d"))[2]["type"] == "error"
        assert "error" in live.ask("POST", "/api/show", {"model": "d"})[2]


def test_reading_the_state_of_a_model_does_not_load_it() -> None:
    shelf = Shelf()
    with shelf.served() as live:
        assert live.ask("GET", "/v1/models/a")[2]["status"]["value"] == "unloaded"
        assert live.ask("GET", "/props?model=a")[2]["error"]["code"] == "model_not_loaded"
        assert shelf.log == []
        complete(live, "a")
        assert live.ask("GET", "/props?model=a")[2]["model_alias"] == "a"
        assert live.ask("GET", "/slots?model=a")[0] == 200
        lines = live.ask("GET", "/metrics?model=a")[2].decode().splitlines()
        assert "llamacpp:tokens_predicted_total 4" in lines
        assert live.ask("GET", "/health")[2] == {"status": "ok"}
        assert [each["name"] for each in live.ask("GET", "/api/tags")[2]["models"]] == list(NAMES)
        assert [each["name"] for each in live.ask("GET", "/api/ps")[2]["models"]] == ["a"]


def test_the_props_are_those_of_a_router() -> None:
    with Shelf().served(most=2, autoload=False) as live:
        found = live.ask("GET", "/props")[2]
        assert (found["role"], found["max_instances"], found["models_autoload"]) == ("router", 2, False)


def test_the_model_that_was_not_used_for_the_longest_time_is_released() -> None:
    shelf = Shelf()
    with shelf.served(most=2) as live:
        for name in ("a", "b", "a", "c"):
            complete(live, name)
        assert states(live) == {"a": "loaded", "b": "unloaded", "c": "loaded"}
        assert shelf.log == ["load a", "load b", "release b", "load c"]


def test_the_names_of_ollama_are_those_of_models_also_where_names_are_checked() -> None:
    with Shelf().served(Rules(strict=True)) as live:
        assert live.ask("POST", "/v1/completions", asked("a:latest"))[0] == 200


def test_models_are_loaded_and_unloaded_when_a_client_says_so() -> None:
    with Shelf().served(autoload=False) as live:
        status, _, found = live.ask("POST", "/v1/completions", asked("a"))
        assert (status, found["error"]["code"]) == (400, "model_not_loaded")
        assert live.ask("POST", "/models/load", {"model": "a"})[2] == {"success": True}
        until(lambda: states(live)["a"] == "loaded")
        complete(live, "a")
        assert live.ask("POST", "/models/unload", {"model": "a"})[2] == {"success": True}
        until(lambda: states(live)["a"] == "unloaded")


def test_a_model_that_sleeps_is_woken_by_a_request_also_where_requests_load_none() -> None:
    shelf = Shelf(idle=0.05)
    with shelf.served(autoload=False) as live:
        live.ask("POST", "/models/load", {"model": "a"})
        until(lambda: states(live)["a"] == "sleeping")
        complete(live, "a")


@pytest.mark.parametrize("order", ["abcc", "abcb"])
def test_a_model_that_is_used_is_not_released_and_requests_for_others_wait_in_their_order(order: str) -> None:
    shelf = Shelf()
    with shelf.served(most=1) as live:
        shelf.held.clear()
        answers: list[str] = []

        def ask(name: str) -> None:
            complete(live, name)
            answers.append(name)

        threads = []
        for place, name in enumerate(order, 1):
            threads.append(threading.Thread(target=ask, args=(name,)))
            threads[-1].start()
            until(lambda place=place: users(live) == place)
        assert states(live) == {"a": "loading", "b": "unloaded", "c": "unloaded"}
        shelf.held.set()
        for thread in threads:
            thread.join(WAIT)
        assert answers == [*order]
        assert shelf.log[:5] == ["load a", "release a", "load b", "release b", "load c"]


@contextmanager
def left_while_loading(live: Live, shelf: Shelf, model: str) -> Iterator[None]:
    """A block in which a model is loaded whose only client has left; at its end it goes on."""
    shelf.held.clear()
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", live.port, timeout=WAIT)) as leaving:
        leaving.request("POST", "/v1/completions", json.dumps(asked(model)))
        until(lambda: f"load {model}" in shelf.log)
    until(lambda: users(live) == 0)
    yield
    shelf.held.set()


def test_a_model_whose_client_left_while_it_was_loaded_is_released_after_the_time_without_requests() -> None:
    shelf = Shelf(idle=0.05)
    with shelf.served() as live:
        with left_while_loading(live, shelf, "a"):
            assert states(live)["a"] == "loading"
        until(lambda: states(live)["a"] == "sleeping")


@pytest.mark.parametrize("gone", [False, True])
def test_a_model_whose_client_left_while_it_was_loaded_is_released_when_a_client_says_so(gone: bool) -> None:
    shelf = Shelf()
    with shelf.served() as live:
        with left_while_loading(live, shelf, "a"):
            if gone:
                shelf.names = ("b",)
                live.ask("GET", "/models?reload=1")
            else:
                live.ask("POST", "/models/unload", {"model": "a"})
        until(lambda: "release a" in shelf.log)


def test_a_request_that_says_how_long_its_model_stays_does_not_undo_that_it_is_to_be_released() -> None:
    shelf = Shelf()
    with shelf.served() as live:
        shelf.held.clear()
        body = {"model": "a", "prompt": "hello", "stream": False, "keep_alive": -1, "options": {"num_predict": 1}}
        asking = Doing(lambda: live.ask("POST", "/api/generate", body))
        until(lambda: states(live)["a"] == "loading")
        live.ask("POST", "/models/unload", {"model": "a"})
        shelf.held.set()
        assert asking.result()[0] == 200
        until(lambda: states(live)["a"] == "unloaded")


@pytest.mark.parametrize("loads", [False, True])
def test_a_request_that_comes_while_others_use_a_model_does_not_undo_that_it_is_to_be_released(loads: bool) -> None:
    shelf = Shelf()
    with shelf.served() as live:
        shelf.held.clear()
        asking = [Doing(lambda: complete(live, "a")) for _ in range(2)]
        until(lambda: users(live) == 2)
        live.ask("POST", "/models/unload", {"model": "a"})
        if loads:
            live.ask("POST", "/models/load", {"model": "a"})
        asking.append(Doing(lambda: complete(live, "a")))
        until(lambda: users(live) >= 3)
        shelf.held.set()
        for each in asking:
            each.result()
        if loads:
            assert shelf.log == ["load a"]
        else:
            until(lambda: shelf.log == ["load a", "release a"])


def test_a_model_that_sleeps_is_not_woken_after_a_client_unloaded_it_where_requests_load_none() -> None:
    with Shelf(idle=0.05).served(autoload=False) as live:
        live.ask("POST", "/models/load", {"model": "a"})
        until(lambda: states(live)["a"] == "sleeping")
        live.ask("POST", "/models/unload", {"model": "a"})
        assert states(live)["a"] == "unloaded"
        assert live.ask("POST", "/v1/completions", asked("a"))[0] == 400


def test_a_model_is_loaded_when_the_memory_of_another_one_is_free_and_not_before() -> None:
    shelf = Shelf()
    with shelf.served(most=1) as live:
        complete(live, "a")
        shelf.released.clear()
        live.ask("POST", "/models/unload", {"model": "a"})
        until(lambda: states(live)["a"] == "unloaded")
        asking = [Doing(lambda name=name: complete(live, name)) for name in ("b", "a")]
        until(lambda: users(live) == 2)
        live.ask("GET", "/health")
        assert shelf.log == ["load a"]
        shelf.released.set()
        for each in asking:
            each.result()
        assert shelf.log[:2] == ["load a", "release a"]


def test_the_server_answers_while_a_model_that_is_gone_is_released() -> None:
    shelf = Shelf()
    with shelf.served() as live:
        complete(live, "a")
        shelf.released.clear()
        shelf.names = ("b",)
        live.ask("GET", "/models?reload=1")
        complete(live, "b")
        until(lambda: users(live) == 0)
        complete(live, "b")
        assert shelf.log == ["load a", "load b"]
        shelf.released.set()
        until(lambda: "release a" in shelf.log)


def test_a_model_that_sleeps_keeps_its_place_until_a_client_loads_another_one_where_requests_load_none() -> None:
    with Shelf(idle=0.05).served(most=1, autoload=False) as live:
        for name in ("a", "b"):
            live.ask("POST", "/models/load", {"model": name})
            until(lambda name=name: states(live)[name] == "sleeping")
        assert states(live)["a"] == "unloaded"
        assert live.ask("POST", "/v1/completions", asked("a"))[0] == 400
        complete(live, "b")


def test_requests_that_wait_for_the_same_loading_get_its_error() -> None:
    shelf = Shelf()
    shelf.failing.add("a")
    with shelf.served() as live:
        shelf.held.clear()
        asking = [Doing(lambda: live.ask("POST", "/v1/completions", asked("a"))[0]) for _ in range(2)]
        until(lambda: users(live) == 2)
        until(lambda: shelf.log)
        shelf.held.set()
        assert [each.result() for each in asking] == [500, 500]
        assert shelf.log == ["load a"]


def test_requests_of_one_moment_share_a_loading() -> None:
    shelf = Shelf()
    shelf.failing.add("a")
    models = Models(shelf.find, shelf.service, most=0)

    async def use() -> None:
        async with models.used(models.named("a")):
            pass

    async def use_twice() -> list[Any]:
        return await asyncio.gather(use(), use(), return_exceptions=True)

    assert [type(each) for each in asyncio.run(use_twice())] == [Problem, Problem]
    assert shelf.log == ["load a"]
    models.close()


def users(live: Live) -> int:
    models = live.server.service
    assert isinstance(models, Models)
    return sum(service.users for service in models.services.values())


def test_a_client_that_leaves_the_queue_costs_no_model_its_memory() -> None:
    shelf = Shelf()
    with shelf.served(most=1) as live:
        shelf.held.clear()
        first = threading.Thread(target=complete, args=(live, "a"))
        first.start()
        until(lambda: users(live) == 1)
        leaving = http.client.HTTPConnection("127.0.0.1", live.port, timeout=WAIT)
        leaving.request("POST", "/v1/completions", json.dumps(asked("b")))
        until(lambda: users(live) == 2)
        leaving.close()
        until(lambda: users(live) == 1)
        shelf.held.set()
        first.join(WAIT)
        complete(live, "a")
        assert shelf.log == ["load a"]


def test_requests_that_wait_for_a_model_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Service, "most_inside", 2)
    shelf = Shelf()
    with shelf.served() as live:
        shelf.held.clear()
        threads = [threading.Thread(target=complete, args=(live, "a")) for _ in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: users(live) == 2)
        status, headers, found = live.ask("POST", "/v1/completions", asked("a"))
        assert (status, found["error"]["code"], "retry-after" in headers) == (429, "rate_limit_exceeded", True)
        shelf.held.set()
        for thread in threads:
            thread.join(WAIT)


def test_a_model_that_cannot_be_loaded_is_a_typed_error_and_others_are_served() -> None:
    shelf = Shelf()
    shelf.failing.add("a")
    with shelf.served(most=1) as live:
        status, _, found = live.ask("POST", "/v1/completions", asked("a"))
        assert (status, found["error"]["code"]) == (500, "model_not_loaded")
        assert live.ask("GET", "/v1/models/a")[2]["status"] == {"value": "unloaded", "failed": True}
        complete(live, "b")


def test_the_models_are_found_anew_when_a_client_says_so() -> None:
    shelf = Shelf(("a", "b"))
    with shelf.served() as live:
        complete(live, "a")
        shelf.names = ("b", "c")
        assert {*states(live)} == {"a", "b"}
        found = live.ask("GET", "/models?reload=1")[2]["data"]
        assert [each["id"] for each in found] == ["b", "c"]
        until(lambda: "release a" in shelf.log)
        complete(live, "c")


def test_nothing_is_left_of_a_model_that_is_gone() -> None:
    def threads() -> int:
        return sum(each.name.startswith("ggplug prompts") for each in threading.enumerate())

    shelf, before = Shelf(("a",)), threads()
    with shelf.served() as live:
        for name, following in (("a", "b"), ("b", "c"), ("c", "d")):
            complete(live, name)
            shelf.names = (following,)
            live.ask("GET", "/models?reload=1")
        until(lambda: gc.collect() is not None and [service.name for service in shelf.services] == ["d"])
        until(lambda: threads() == before)
    assert sorted(shelf.log) == sorted([f"{what} {name}" for what in ("load", "release") for name in NAMES])


def test_the_health_of_several_models_is_that_of_a_server_that_shuts_down(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf()
    with shelf.served() as live:
        complete(live, "a")
        models = live.server.service
        assert isinstance(models, Models)
        assert live.ask("GET", "/health")[::2] == (200, {"status": "ok"})
        monkeypatch.setattr(Service, "inside", 1)  # so that the server waits for a text
        live.server.stop()
        until(lambda: models.draining)
        assert live.ask("GET", "/health")[::2] == (503, {"status": "shutting down"})
        shelf.names = ("d",)
        assert live.ask("GET", "/models?reload=1")[0] == 503
        monkeypatch.undo()


def test_the_requests_of_all_models_are_counted_by_path_and_their_tokens_where_the_model_is_named() -> None:
    with Shelf().served() as live:
        complete(live, "a")
        lines = live.ask("GET", "/metrics")[2].decode().splitlines()
        assert 'ggplug_http_requests_total{path="/v1/completions",status="200"} 1.0' in lines
        assert not any("tokens_predicted" in line or "first_token" in line for line in lines)
        lines = live.ask("GET", "/metrics?model=a")[2].decode().splitlines()
        assert "llamacpp:tokens_predicted_total 4" in lines
        assert "ggplug_time_to_first_token_seconds_count 1.0" in lines


def test_an_unknown_path_is_one_whatever_model_is_named_and_loads_none() -> None:
    shelf = Shelf()
    with shelf.served() as live:
        for method, path, body, status in (
            ("GET", "/else", None, 404),
            ("POST", "/else", asked("a"), 404),
            ("GET", "/v1/completions", None, 405),
            ("POST", "/slots", asked("a"), 405),
        ):
            assert live.ask(method, path, body)[0] == status
        assert shelf.log == []


def test_several_requests_in_one_reach_models_that_were_found_later() -> None:
    shelf = Shelf(())
    with shelf.served() as live:
        shelf.names = ("a",)
        live.ask("GET", "/models?reload=1")
        body = {"instances": [{"@requestFormat": "completions", **asked("a")}]}
        assert live.ask("POST", "/predict", body)[2]["predictions"][0]["model"] == "a"


def test_keys_are_wanted_for_all_models() -> None:
    with Shelf().served(Rules(keys=["key"])) as live:
        assert live.ask("POST", "/v1/completions", asked("a"))[0] == 401
        assert live.ask("POST", "/models/load", {"model": "a"})[0] == 401
        assert live.ask("POST", "/v1/completions", asked("a"), {"Authorization": "Bearer key"})[0] == 200


def test_models_in_a_folder_are_named_by_their_paths(tmp_path: Path) -> None:
    names = ("x.gguf", "owner/y:Q8_0.gguf", "z-00001-of-00002.gguf", "z-00002-of-00002.gguf", "mmproj-x.gguf", "w.txt")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = models_in(tmp_path)
    assert {*found} == {"x", "owner/y:Q8_0", "z"}
    assert found["z"].name == "z-00001-of-00002.gguf"


# -- the command -----------------------------------------------------------------------------------

COMMAND = [sys.executable, "-m", "ggplug", "serve", "--port", "0", "--device", "CPU"]


@contextmanager
def started(*options: str) -> Iterator[http.client.HTTPConnection]:
    """A connection to the command, in a process of its own."""
    process = subprocess.Popen(
        [*COMMAND, *options], stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"}
    )
    try:
        connection = http.client.HTTPConnection("127.0.0.1", Doing(lambda: port_of(process)).result(), timeout=WAIT)
        yield connection
        connection.close()
    finally:
        process.kill()
        process.communicate()


def presets(tmp_path: Path, text: str, **given: Any) -> dict[str, Preset]:
    file = tmp_path / "presets.ini"
    file.write_text(text)
    return presets_in(file, given)


def test_a_section_of_presets_is_a_model_with_options_of_its_own(tmp_path: Path) -> None:
    text = """
[*]
slots = 2
temp = 0.5

[small]
model = small.gguf
context = 512 ; a comment
slots = 8  # another
pack = false
place =
 blk.0.*=CPU
 blk.1.*=CPU

[org/large:Q4_K_M]
hf-repo = org/large:Q4_K_M
"""
    found = presets(tmp_path, text, context=64, waiting=3)
    assert {name: each.model for name, each in found.items()} == {
        "small": "small.gguf",
        "org/large:Q4_K_M": "hf:org/large:Q4_K_M",
    }
    small, large = (each.options for each in found.values())
    assert [small[name] for name in ("context", "slots", "temperature", "waiting", "pack")] == [512, 8, 0.5, 3, False]
    assert small["place_rules"] == (("--place", "blk.0.*=CPU"), ("--place", "blk.1.*=CPU"))
    assert [large[name] for name in ("context", "slots", "temperature", "waiting", "pack")] == [64, 2, 0.5, 3, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model = a.gguf", "the presets cannot be read"),
        ("[a]\nmodel = a.gguf\n[a]\nmodel = b.gguf", "section 'a' already exists"),
        ("[a]\ncontext = 5", r"\[a\]: the key 'model' is missing"),
        ("[a]\nmodel = a.gguf\nhf-repo = b/c", r"\[a\] has both 'model' and 'hf-repo'"),
        ("[a]\nmodel = a.gguf\nport = 1", r"\[a\]: 'port' is no option of a model"),
        ("[a]\nmodel = a.gguf\ncontext = x", r"\[a\]: .*context.*'x' is not a valid integer"),
        ("[a]\nmodel = a.gguf\nchat-template = none.jinja", "none.jinja.* does not exist"),
    ],
)
def test_wrong_presets_are_refused_with_their_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        presets(tmp_path, text)


def test_the_command_serves_presets_and_reads_them_again(tmp_path: Path) -> None:
    file, model = tmp_path / "presets.ini", DATA / "qwen3.gguf"
    file.write_text(f"[a]\nmodel = {model}\ncontext = 40\n[b]\nmodel = {model}\n")
    with started("--models-preset", str(file), "--context", "50") as connection:
        for name, context in (("a", 40), ("b", 50)):
            found = answer(connection, "POST", "/v1/completions", asked(name))
            assert found["usage"]["completion_tokens"] == 4
            assert answer(connection, "GET", f"/v1/models/{name}")["context"] == context
        file.write_text(f"[b]\nmodel = {model}\ncontext = 30\n[c]\nmodel = {model}\n")
        listed = answer(connection, "GET", "/models?reload=1")["data"]
        assert [(each["id"], each["status"]["value"]) for each in listed] == [("b", "unloaded"), ("c", "unloaded")]
        answer(connection, "POST", "/v1/completions", asked("b"))
        assert answer(connection, "GET", "/v1/models/b")["context"] == 30
        file.write_text("[b]\n")
        assert "model" in answer(connection, "GET", "/models?reload=1")["error"]["message"]
        assert len(answer(connection, "GET", "/models")["data"]) == 2


def answer(connection: http.client.HTTPConnection, method: str, path: str, body: Any = None) -> Any:
    connection.request(method, path, None if body is None else json.dumps(body))
    return json.load(connection.getresponse())


def test_the_command_serves_a_folder_and_releases_what_is_not_used(tmp_path: Path) -> None:
    shutil.copy(DATA / "qwen3.gguf", tmp_path / "one.gguf")
    (tmp_path / "damaged.gguf").write_bytes(b"GGUF")
    with started("--models-dir", str(tmp_path), "--sleep-idle-seconds", "0.1", "--models-max", "1") as connection:
        assert answer(connection, "GET", "/props")["max_instances"] == 1
        found = answer(connection, "POST", "/v1/completions", asked("one"))
        assert found["usage"]["completion_tokens"] == 4
        until(lambda: answer(connection, "GET", "/v1/models/one")["status"]["value"] == "sleeping")
        assert answer(connection, "POST", "/v1/completions", asked("damaged"))["error"]["code"] == "model_not_loaded"


def test_the_command_serves_a_model_with_an_adapter() -> None:
    file, adapter = str(DATA / "qwen3.gguf"), DATA / "adapters" / "qwen3-lora.gguf"
    with started(file, "--lora", f"{adapter}=0.5", "--sleep-idle-seconds", "0.1") as connection:
        (listed,) = answer(connection, "GET", "/lora-adapters")
        assert (listed["id"], listed["path"], listed["scale"]) == (0, adapter.name, 0.5)
        found = answer(connection, "POST", "/v1/completions", asked("x"))["choices"][0]["text"]
        assert answer(connection, "POST", "/lora-adapters", []) == {"success": True}
        until(lambda: answer(connection, "GET", "/props")["is_sleeping"])
        plain = answer(connection, "POST", "/v1/completions", asked("x"))["choices"][0]["text"]
    with ggplug_models.load(file, ["CPU"]) as model:
        assert plain == "".join(model.generate("hello", 4))
        with model.adapt(adapter, 0.5):
            assert found == "".join(model.generate("hello", 4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "Give either MODEL, --models-dir or --models-preset."),
        ([str(DATA / "qwen3.gguf"), "--models-dir", str(DATA)], "Give either MODEL, --models-dir or --models-preset."),
        (["--models-dir", str(DATA), "--name", "a"], "is for one MODEL"),
        (["--models-dir", str(DATA), "--replicas", "2"], "--replicas is for one MODEL"),
        ([str(DATA / "qwen3.gguf"), "--device", "CPU", "--replicas", "2"], "--replicas needs devices of a cluster"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(options: list[str], message: str) -> None:
    found = CliRunner().invoke(app, ["serve", *options])
    assert (found.exit_code, message in found.output) == (2, True)


def test_each_of_several_requests_in_one_names_its_model() -> None:
    shelf = Shelf()
    with shelf.served() as live:
        form = {"@requestFormat": "completions"}
        instances = [
            form | asked("a"),
            form | asked("b"),
            {**form, "prompt": "hello", "max_tokens": 4},
            form | asked("d"),
        ]
        status, _, found = live.ask("POST", "/predict?model=c", {"instances": instances})
        assert status == 200
        assert [each.get("model") for each in found["predictions"]] == ["a", "b", "c", None]
        assert found["predictions"][3]["error"]["code"] == "model_not_found"
        assert states(live) == {"a": "loaded", "b": "loaded", "c": "loaded"}
