"""Libraries over these APIs: LiteLLM, LangChain, instructor, LlamaIndex, pydantic-ai."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest

pytest.importorskip("pydantic")

import pydantic
from scripted import CALL, Scripted

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would be loaded from the network


class City(pydantic.BaseModel):
    name: str
    people: int


TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
LYON = '{"name": "Lyon", "people": 500000}'


def test_litellm(scripted: Scripted, url: str) -> None:
    litellm = pytest.importorskip("litellm")
    scripted.texts += [*["Hi."] * 5, CALL, CALL, "Hi."]
    for model, base in (("openai/m", scripted.url), ("anthropic/m", url), ("ollama_chat/tiny", url)):
        found = litellm.completion(model, HELLO, api_base=base, api_key="none", max_tokens=20)
        assert found.choices[0].message.content == "Hi."
    chunks = litellm.completion("openai/m", HELLO, api_base=scripted.url, api_key="none", stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hi."
    chunks = litellm.completion("anthropic/m", HELLO, api_base=url, api_key="none", max_tokens=20, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hi."
    for model, base in (("openai/m", scripted.url), ("anthropic/m", url)):
        found = litellm.completion(model, HELLO, api_base=base, api_key="none", tools=TOOLS, max_tokens=200)
        (call,) = found.choices[0].message.tool_calls
        assert json.loads(call.function.arguments) == {"city": "Lyon"}
    found = litellm.text_completion("hello", "text-completion-openai/m", api_base=scripted.url, api_key="none")
    assert found.choices[0].text == "Hi."
    found = litellm.embedding("openai/m", ["a"], api_base=scripted.url, api_key="none")
    assert len(found.data[0]["embedding"]) == 64


def test_langchain(scripted: Scripted) -> None:
    langchain = pytest.importorskip("langchain_openai")
    chat = langchain.ChatOpenAI(base_url=scripted.url, api_key="none", model="m", max_retries=0)
    scripted.texts += ["Hi.", "Hi.", LYON, CALL]
    assert chat.invoke("hello").content == "Hi."
    assert "".join(part.content for part in chat.stream("hello")) == "Hi."
    assert chat.with_structured_output(City).invoke("hello") == City(name="Lyon", people=500000)

    def weather(city: str) -> str:
        """The weather of a city."""
        return city

    assert chat.bind_tools([weather]).invoke("hello").tool_calls[0]["args"] == {"city": "Lyon"}
    vectors = langchain.OpenAIEmbeddings(
        base_url=scripted.url, api_key="none", model="m", check_embedding_ctx_length=False
    )
    assert len(vectors.embed_query("a")) == 64


@pytest.mark.parametrize("mode", ["TOOLS", "JSON", "JSON_SCHEMA"])
def test_instructor(scripted: Scripted, mode: str) -> None:
    instructor = pytest.importorskip("instructor")
    openai = pytest.importorskip("openai")
    call = f'<tool_call>\n{{"name": "City", "arguments": {LYON}}}\n</tool_call>'
    scripted.texts += [call if mode == "TOOLS" else LYON]
    made = openai.OpenAI(base_url=scripted.url, api_key="none", max_retries=0)
    client = instructor.from_openai(made, mode=instructor.Mode[mode])
    found = client.chat.completions.create(model="m", messages=HELLO, response_model=City, max_retries=0)
    assert (found.name, found.people) == ("Lyon", 500000)  # of a class that is made from City


def test_llama_index(scripted: Scripted) -> None:
    like = pytest.importorskip("llama_index.llms.openai_like")
    from llama_index.core.llms import ChatMessage

    llm = like.OpenAILike(model="m", api_base=scripted.url, api_key="none", is_chat_model=True, max_retries=0)
    scripted.texts += ["Hi."] * 3
    assert llm.chat([ChatMessage(role="user", content="hello")]).message.content == "Hi."
    parts = list(llm.stream_chat([ChatMessage(role="user", content="hello")]))
    assert "".join(part.delta for part in parts) == "Hi."
    assert str(llm.complete("hello")) == "Hi."


def test_llama_index_calls_a_tool(scripted: Scripted) -> None:
    like = pytest.importorskip("llama_index.llms.openai_like")
    from llama_index.core.tools import FunctionTool

    def weather(city: str) -> str:
        """The weather of a city."""
        return city

    llm = like.OpenAILike(
        model="m",
        api_base=scripted.url,
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        max_retries=0,
    )
    scripted.texts += [CALL]
    found = llm.chat_with_tools([FunctionTool.from_defaults(weather)], user_msg="hello")
    (call,) = llm.get_tool_calls_from_response(found)
    assert (call.tool_name, call.tool_kwargs) == ("weather", {"city": "Lyon"})


def test_pydantic_ai(scripted: Scripted) -> None:
    try:
        import pydantic_ai
    except ImportError as missing:  # it needs more than its distribution says
        pytest.skip(str(missing))
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    def made() -> Any:
        return OpenAIChatModel("m", provider=OpenAIProvider(base_url=scripted.url, api_key="none"))

    model = made()
    scripted.texts += ["Hi.", CALL, "It rains."]
    agent = pydantic_ai.Agent(model)
    assert agent.run_sync("hello").output == "Hi."

    @agent.tool_plain
    def weather(city: str) -> str:
        """The weather of a city."""
        return f"rain in {city}"

    assert agent.run_sync("hello").output == "It rains."
    assert "rain in Lyon" in scripted.asked[2]
    result = f'<tool_call>\n{{"name": "final_result", "arguments": {LYON}}}\n</tool_call>'
    scripted.texts += [result, "Hi."]
    assert pydantic_ai.Agent(model, output_type=City).run_sync("hello").output == City(name="Lyon", people=500000)

    async def streamed() -> str:
        async with pydantic_ai.Agent(made()).run_stream("hello") as found:
            return str(await found.get_output())

    assert asyncio.run(streamed()) == "Hi."
