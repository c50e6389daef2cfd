"""``ggplug serve``: whatever a body holds in whatever place, the answer is a reply or a refusal, never a fault."""

from __future__ import annotations

import copy
import http.client
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import ggplug_models
from ggplug_models import Decoder

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")
pytest.importorskip("llguidance")

from answers.scripted import THINKING
from llama_server.stand_ins import encoder, story
from served import Live, served

from ggplug_models.serve.app import Rules
from ggplug_models.serve.http.routes import routes_of_a_model
from ggplug_models.serve.writer import Defaults

Place = tuple[str | int, ...]

SCHEMA = {"type": "object", "properties": {"a": {"enum": ["b"]}}, "required": ["a"]}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALLS = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "b"}'}}]
MESSAGES = [
    {"role": "system", "content": "a"},
    {"role": "user", "content": [{"type": "text", "text": "a"}]},
    {"role": "assistant", "content": "", "reasoning_content": "b", "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "1", "content": "c"},
]
ONE = {
    "max_tokens": 1,
    "stream": False,
    "stop": ["x"],
    "seed": 1,
    "temperature": 0.5,
    "top_k": 2,
    "samplers": ["top_k"],
}
CHAT = {
    "model": "tiny",
    "messages": MESSAGES,
    "tools": TOOLS,
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "parallel_tool_calls": False,
    "chat_template_kwargs": {"b": {"c": 1}},
    "reasoning_effort": "low",
    "reasoning_budget_tokens": 1,
    "reasoning_budget_message": "a",
}
NATIVE = {**ONE, "n_probs": 1, "response_fields": ["content", "timings/prompt_n"], "return_tokens": True}
RESULT = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "c"}]}
BLOCKS = [
    {"role": "user", "content": [{"type": "text", "text": "a"}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "b"},
            {"type": "tool_use", "id": "1", "name": "f", "input": {"a": "b"}},
        ],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "c"}]}],
    },
]
ANTHROPIC = {
    "max_tokens": 1,
    "stream": False,
    "system": [{"type": "text", "text": "a"}],
    "messages": BLOCKS,
    "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1},
}
ITEMS = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "b"}]},
    {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"a": "b"}'},
    {"type": "function_call_output", "call_id": "1", "output": "c"},
]
RESPONSES = {
    "max_output_tokens": 1,
    "stream": False,
    "input": ITEMS,
    "instructions": "a",
    "tools": [{"type": "function", **FUNCTION}],
    "tool_choice": {"type": "function", "name": "f"},
    "reasoning": {"effort": "low"},
    "metadata": {"a": "b"},
}
OLLAMA = {"model": "tiny", "stream": False, "think": True, "options": {"num_predict": 1, "stop": ["x"], "top_k": 2}}
RESPONSE_FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}

BODIES: Mapping[str, list[Any]] = {
    "/v1/chat/completions": [
        {**ONE, **CHAT, "logprobs": True, "top_logprobs": 1, "stream_options": {"include_usage": True}},
        {**ONE, "messages": MESSAGES, "response_format": RESPONSE_FORMAT},
        {
            **ONE,
            "messages": MESSAGES,
            "tools": TOOLS,
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": TOOLS}},
        },
    ],
    "/v1/completions": [
        {**ONE, "prompt": ["a", "b"], "logprobs": 1, "echo": True, "logit_bias": {"5": 1, "6": False}},
        {**ONE, "prompt": [5, "a"], "best_of": 2, "logit_bias": [[5, 1.5], ["a", False]]},
        {**ONE, "prompt": {"content": [{"type": "text", "text": "a"}]}, "response_format": RESPONSE_FORMAT},
    ],
    "/completion": [
        {**NATIVE, "prompt": {"prompt_string": "a"}, "n": 2, "id_slot": 0, "grammar": 'root ::= "a"'},
        {**NATIVE, "prompt": [[5, 6], [7]], "post_sampling_probs": True, "json_schema": SCHEMA},
    ],
    "/infill": [
        {
            **NATIVE,
            "input_prefix": "a",
            "input_suffix": "b",
            "prompt": "c",
            "input_extra": [{"text": "d", "filename": "e"}],
        }
    ],
    "/v1/responses": [
        RESPONSES,
        {"max_output_tokens": 1, "input": "a", "text": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    ],
    "/v1/responses/input_tokens": [RESPONSES],
    "/v1/messages": [ANTHROPIC],
    "/v1/messages/count_tokens": [ANTHROPIC],
    "/api/chat": [
        {**OLLAMA, "messages": [*MESSAGES, {"role": "user", "content": "a"}], "tools": TOOLS},
        {**OLLAMA, "messages": MESSAGES, "format": SCHEMA},
    ],
    "/api/generate": [
        {**OLLAMA, "prompt": "a", "system": "b", "format": "json"},
        {**OLLAMA, "prompt": "a", "raw": True, "context": [5]},
    ],
    "/v1/embeddings": [
        {"model": "tiny", "input": ["a", "b"], "encoding_format": "base64", "dimensions": 2},
        {"input": [[5, 6], [7]]},
    ],
    "/embedding": [{"content": [{"prompt_string": "a"}, "b"]}],
    "/api/embed": [{"model": "tiny", "input": ["a"], "dimensions": 2}],
    "/api/embeddings": [{"prompt": "a"}],
    "/v1/rerank": [
        {"query": "a", "documents": ["a", "b"], "top_n": 1, "return_documents": True},
        {"query": "a", "texts": ["a", "b"], "return_text": True},
    ],
    "/tokenize": [{"content": "a", "add_special": True, "parse_special": False, "with_pieces": True}],
    "/detokenize": [{"tokens": [5, 6]}],
    "/apply-template": [CHAT],
    "/v1/chat/completions/input_tokens": [CHAT],
    "/api/show": [{"model": "tiny"}],
    "/api/pull": [{"name": "tiny"}],
    "/api/copy": [{"source": "tiny", "destination": "a"}],
    "/api/delete": [{"model": "tiny"}],
    "/api/push": [{"model": "tiny"}],
    "/api/create": [{"model": "tiny"}],
    "/slots/0?action=save": [{"filename": "a"}],
    "/slots/0?action=restore": [{"filename": "a"}],
    "/slots/0?action=erase": [{"filename": "a"}],
    "/lora-adapters": [[]],
}
"""For each path that reads a body, valid ones that have what the path knows."""

RANKING = ("/v1/embeddings", "/v1/rerank", "/embedding", "/api/embed", "/api/embeddings")
"""The paths that are asked of an encoder."""

REFUSING = ("/api/copy", "/api/delete", "/api/push", "/api/create")
"""The paths that refuse what they are asked with the status 501, whatever the body says."""

SAMPLE = 25
"""Number of cases of each path and server that are tried where time matters."""

FILLING = (("max_tokens",), ("max_output_tokens",), ("num_predict",))
"""What fills the whole context if it is a great number, which takes seconds."""

MISSING = object()
DEEP: Any = []
for _ in range(150):
    DEEP = [DEEP]

VALUES: Mapping[str, Any] = {
    "missing": MISSING,
    "null": None,
    "true": True,
    "false": False,
    "zero": 0,
    "negative": -1,
    "number": 3,
    "fraction": 1.5,
    "great": 10**400,
    "nan": float("nan"),
    "infinity": float("inf"),
    "empty text": "",
    "text": "a",
    "surrogate": "\ud800",
    "long text": "a" * 100_000,
    "empty list": [],
    "list of null": [None],
    "list of numbers": [1],
    "list of texts": ["a"],
    "list of objects": [{}],
    "deep": DEEP,
    "empty object": {},
    "object": {"a": None},
    "object of objects": {"type": {}, "function": "f", "content": 3, "text": 3, "name": []},
}


class Case(NamedTuple):
    """A body in which one place has another value."""

    path: str
    body: Any
    place: Place
    value: str


def places(body: Any, place: Place = ()) -> Iterator[Place]:
    """Every place of a body: of each object and list, and of each of their items."""
    yield place
    for key, each in body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ():
        yield from places(each, (*place, key))


def changed(body: Any, place: Place, value: Any) -> Any:
    """A copy of a body with another value in one place."""
    if not place:
        return [] if value is MISSING else value
    found = copy.deepcopy(body)
    holder = found
    for key in place[:-1]:
        holder = holder[key]
    if value is MISSING:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    return found


def cases(path: str, *, stream: bool) -> list[Case]:
    """All bodies that a path can be sent with one place changed.  ``stream``: whether those of a text are streamed."""
    bodies = [{**body, "stream": stream} if "stream" in body else body for body in BODIES[path]]
    found = [Case(path, body, place, value) for body in bodies for place in places(body) for value in VALUES]
    return [case for case in found if not (case.value == "great" and case.place[-1:] in FILLING)]


@pytest.fixture(scope="module")
def lives(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Live]]:
    """Servers of a model that describes tools in its prompts, of one that has a format for calls, and of an encoder."""
    folder = tmp_path_factory.mktemp("files")
    gaps = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
    one = {"slots": 2, "context": 1024, "defaults": Defaults(max_tokens=1)}
    with ExitStack() as opened:
        model = opened.enter_context(ggplug_models.load(story(folder / "story.gguf", gaps), ["CPU"]))
        ranker = opened.enter_context(
            ggplug_models.load(encoder(data / "bert.gguf", folder / "ranker.gguf", ranks=True), ["CPU"])
        )
        found = {
            "described": opened.enter_context(served(model, Rules(slot_files=folder), **one)),
            "calling": opened.enter_context(served(model, Rules(slot_files=folder), template=THINKING, **one)),
            "ranking": opened.enter_context(served(ranker)),
        }
        for name in ("described", "calling"):
            assert found[name].ask("POST", "/slots/0?action=save", {"filename": "a"})[0] == 200
        yield found


def ask(live: Live, path: str, body: Any) -> tuple[int, Any]:
    """The status and the reply, or the error of a reply that is cut off or no JSON."""
    try:
        status, _, found = live.ask("DELETE" if path == "/api/delete" else "POST", path, body)
        return status, found if isinstance(found, bytes) else json.dumps(found, allow_nan=False).encode()
    except (http.client.HTTPException, OSError, ValueError) as error:
        return 500, repr(error).encode()


def faults(live: Live, asked: Iterable[Case]) -> list[str]:
    """The cases that a server answers as its own fault, with a status or within a stream."""
    found = []
    for case in asked:
        status, reply = ask(live, case.path, changed(case.body, case.place, VALUES[case.value]))
        if (status >= 500 and not (status == 501 and case.path in REFUSING)) or b"see the server's log" in reply:
            place = ".".join(map(str, case.place))
            found.append(f"{case.path}: {case.value} at {place or 'the root'}: {status} {reply[:200]!r}")
    return found


def test_every_path_that_reads_a_body_has_valid_ones() -> None:
    known = {path.partition("?")[0] for path in BODIES}
    for paths, methods, _ in routes_of_a_model(Rules()):
        if not {*methods} <= {"GET", "HEAD"}:
            assert known & {path.replace("{number}", "0") for path in paths}, paths


@pytest.mark.parametrize("path", BODIES)
def test_the_bodies_are_valid(lives: Mapping[str, Live], path: str) -> None:
    for body in BODIES[path]:
        for live, _ in served_by(lives, path):
            ask(live, "/slots/0?action=erase", {})  # short prompts of the others cannot be saved
            status, reply = ask(live, path, body)
            assert status == (501 if path in REFUSING else 200), reply


def served_by(lives: Mapping[str, Live], path: str) -> list[tuple[Live, list[Case]]]:
    """The servers that can answer a path, with what they are asked: whole replies of one, and streams of the other."""
    whole, streamed = cases(path, stream=False), cases(path, stream=True)
    if path in RANKING:
        return [(lives["ranking"], whole)]
    return [(lives["described"], whole), (lives["calling"], streamed)]


@pytest.mark.long
@pytest.mark.parametrize("path", BODIES)
def test_no_value_in_any_place_of_a_body_is_a_fault_of_the_server(lives: Mapping[str, Live], path: str) -> None:
    for live, asked in served_by(lives, path):
        assert not faults(live, asked)


@pytest.mark.parametrize("path", BODIES)
def test_few_values_in_any_place_of_a_body_are_no_fault_of_the_server(lives: Mapping[str, Live], path: str) -> None:
    """A sample of the test before, which takes minutes."""
    chance = random.Random(path)
    for live, asked in served_by(lives, path):
        assert not faults(live, chance.sample(asked, min(len(asked), SAMPLE)))


USER = {"role": "user", "content": "a"}
CALLING = {"max_tokens": 1, "tools": TOOLS}
USED = {"max_tokens": 1, "messages": [USER], "tools": ANTHROPIC["tools"]}
REFUSED: list[tuple[str, Any, str, str]] = [
    ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": []}]}, "messages", "any content"),
    *(
        (
            "/v1/messages",
            {"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "tool_result", "content": content}]}]},
            "messages.0",
            "must be a text, or a list of blocks",
        )
        for content in (3, True, {"text": "a"})
    ),
    ("/v1/messages", {**USED, "tool_choice": {"type": {}}}, "tool_choice.type", "valid string"),
    ("/v1/messages", {**USED, "tool_choice": {"type": "tool", "name": []}}, "tool_choice.name", "valid string"),
    *(
        ("/infill", {"input_prefix": "a", "input_suffix": "b", "prompt": prompt}, "prompt", "should be a string")
        for prompt in ([], ["a", "b"], [5])
    ),
    ("/v1/responses", {"input": [{"type": "reasoning", "summary": 3}, {**USER, "type": "message"}]}, "input.0", "list"),
    *(
        (
            "/v1/chat/completions",
            {**CALLING, "messages": [USER, {"role": "assistant", "content": "", "tool_calls": [call]}, USER]},
            "",
            "a call of a tool must have a function with a name",
        )
        for call in ({"function": "f"}, {"function": None}, "f", 3)
    ),
]


@pytest.mark.parametrize(("path", "body", "param", "message"), REFUSED, ids=[str(n) for n in range(len(REFUSED))])
def test_a_value_of_a_wrong_kind_is_refused_and_named(
    lives: Mapping[str, Live], path: str, body: Any, param: str, message: str
) -> None:
    status, reply = ask(lives["described"], path, body)
    assert status == 400
    assert message in json.loads(reply)["error"]["message"]
    assert json.loads(reply)["error"].get("param", param) == (param or None)


ANYTHING = [
    ("/v1/responses", '{"input": "a", "stream": true, "metadata": {"b": [1, {"c": @}]}}', "metadata.b.1.c"),
    (
        "/v1/responses",
        '{"input": "a", "tools": [{"type": "function", "name": "f", "parameters": {"b": @}}]}',
        "tools.0.",
    ),
    ("/v1/chat/completions", '{"messages": [{"role": "user", "content": "a", "str": @}]}', "messages.0.str"),
    (
        "/v1/chat/completions",
        '{"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"b": @}}',
        "kwargs.b",
    ),
    (
        "/v1/messages",
        '{"messages": [{"role": "user", "content": [{"type": "text", "b": @}]}]}',
        "messages.0.content.0.b",
    ),
    ("/api/chat", '{"messages": [{"role": "user", "content": "a", "b": @}], "stream": false}', "messages.0.b"),
    ("/completion", '{"prompt": "a", "json_schema": {"const": @}}', "json_schema.const"),
    ("/detokenize", '{"tokens": [5, @]}', "tokens.1"),
    ("/tokenize", '{"content": "a", "unknown": @}', "unknown"),
]
"""Bodies with a number where any value is allowed."""

INFINITE = ["NaN", "Infinity", "-Infinity", "1e999", "-1E+999", "1" * 400 + ".0", "1" * 250 + "e99"]


@pytest.mark.parametrize("number", INFINITE, ids=[each[:10] for each in INFINITE])
def test_a_number_that_is_not_finite_is_refused_where_any_value_is_allowed(
    lives: Mapping[str, Live], number: str
) -> None:
    for path, body, param in ANYTHING:
        status, reply = ask(lives["calling"], path, body.replace("@", number).encode())
        assert status == 400, (path, reply)
        assert param in reply.decode()


def test_a_text_may_name_what_is_not_finite(lives: Mapping[str, Live]) -> None:
    body = {"content": "NaN Infinity 1e999", "unknown": ["NaN", 1e99, "1" * 400]}
    assert ask(lives["calling"], "/tokenize", body)[0] == 200


def test_metadata_of_a_file_that_is_not_finite_is_left_out_of_a_reply(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = {**model.metadata, "a.nan": float("nan"), "a.infinity": float("-inf"), "a.number": 1.5}
    monkeypatch.setattr(model, "metadata", metadata)
    with served(model, slots=1) as live:
        status, reply = ask(live, "/api/show", {})
    assert status == 200
    assert {name for name in json.loads(reply)["model_info"] if name.startswith("a.")} == {"a.number"}
