"""Libraries over these APIs: LiteLLM, LangChain, instructor, LlamaIndex, pydantic-ai."""

from __future__ import annotations

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


LYON = '{"name": "Lyon", "people": 500000}'


def test_litellm(scripted: Scripted, url: str) -> None:
    litellm = pytest.importorskip("litellm")
    scripted.texts += ["Hi.", "Hi.", "Hi.", "Hi."]
    for model, base in (("openai/m", scripted.url), ("anthropic/m", url), ("ollama_chat/tiny", url)):
        found = litellm.completion(model, HELLO, api_base=base, api_key="none", max_tokens=20)
        assert found.choices[0].message.content == "Hi."
    chunks = litellm.completion("openai/m", HELLO, api_base=scripted.url, api_key="none", stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hi."
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


def test_pydantic_ai(scripted: Scripted) -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai", exc_type=ImportError)
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("m", provider=OpenAIProvider(base_url=scripted.url, api_key="none"))
    scripted.texts += ["Hi.", CALL, "It rains."]
    agent = pydantic_ai.Agent(model)
    assert agent.run_sync("hello").output == "Hi."

    @agent.tool_plain
    def weather(city: str) -> str:
        """The weather of a city."""
        return f"rain in {city}"

    assert agent.run_sync("hello").output == "It rains."
    assert "rain in Lyon" in scripted.asked[2]
