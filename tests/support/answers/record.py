"""Records in ``tests/data/answers.json.xz`` how llama.cpp reads the answers of models, for each of its templates.

    pip download --no-binary :all: --no-deps llama-cpp-python==0.3.36    # and unpack it
    python tests/support/answers/record.py .../vendor/llama.cpp /tmp/oracle

The second folder gets the compiled program.  An answer is what a template writes for a message of the assistant, so it
is in the model's own format.  Answers that llama.cpp refuses, or from which it loses text or calls, are left out.
"""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DATA = HERE.parents[1] / "data"
ENDS = (
    "<|im_end|>",
    "</s>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    "<|END_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>",
    "<|eom_id|>",
    "<end_of_sentence>",
    "[e~[",
    "<turn|>",
    "<|call|>",
    "<|return|>",
    "<|end|>",
    "<|calls|><|begin|>assistant",
    "<seed:eos>",
    "</assistant>",
    "<｜hy_eos:opensource｜>",
    "<|message_sep|>",
    "<|end_of_msg|>",
    "<|role_end|>",
    "<|eot|>",
)

ASKED = {"role": "user", "content": "What now?"}


def _tool(name: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    described = {key: {"description": f"the {key}", **schema} for key, schema in properties.items()}
    parameters = {"type": "object", "properties": described, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": f"Does {name}.", "parameters": parameters},
    }


TOOLS = [
    _tool("get_weather", {"city": {"type": "string"}, "days": {"type": "integer"}}, ["city"]),
    _tool("now", {}, []),
    _tool(
        "plan",
        {
            "name": {"type": "string"},
            "steps": {"type": "array", "items": {"type": "object", "properties": {"do": {"type": "string"}}}},
            "options": {"type": "object", "properties": {"fast": {"type": "boolean"}, "rate": {"type": "number"}}},
        },
        ["name", "steps", "options"],
    ),
    _tool("say", {"text": {"type": "string"}}, ["text"]),
]


def _call(name: str, number: int = 1, /, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": f"call{number:05d}", "type": "function", "function": function}


NESTED = {
    "name": "trip",
    "steps": [{"do": "pack {bags}"}, {"do": 'say "bye" \\ go'}],
    "options": {"fast": True, "rate": 1.5},
}
UNICODE = "Grüße, 東京 👍 — 1 < 2 & «ok»"
CODE = 'if (a < b) { print("x"); }\n\tdone\n\nlast line'

MESSAGES: dict[str, dict[str, Any]] = {
    "one call": {"content": "", "tool_calls": [_call("get_weather", city="Oslo", days=3)]},
    "text before": {"content": "I will look.", "tool_calls": [_call("get_weather", city="Oslo")]},
    "parallel": {
        "content": "",
        "tool_calls": [_call("get_weather", 1, city="Rome"), _call("say", 2, text="hi"), _call("now", 3)],
    },
    "nested": {"content": "", "tool_calls": [_call("plan", **NESTED)]},
    "unicode": {"content": "Ça va 東京?", "tool_calls": [_call("say", text=UNICODE)]},
    "code": {"content": "", "tool_calls": [_call("say", text=CODE)]},
    "no arguments": {"content": "", "tool_calls": [_call("now")]},
    "reasoning": {
        "content": "",
        "reasoning_content": "The user wants {weather}.\nSo I ask.",
        "tool_calls": [_call("get_weather", city="Oslo", days=1)],
    },
    "refusal": {"content": 'I cannot do that: {"a": 1} < 2.'},
    "thoughts and text": {"content": "Four.\n\nReally.", "reasoning_content": "2 + 2 = 4, <sure>."},
}


WRITTEN: dict[str, list[str]] = {
    "fireworks-ai-llama-3-firefunction-v2": [
        ' functools[{"name": "say", "arguments": {"text": "hi"}}]',
        'Sure. functools[{"name": "now", "arguments": {}}, {"name": "say", "arguments": {"text": "a]b"}}]',
    ],
    "openai-gpt-oss-120b": [
        '<|channel|>commentary to=functions.say <|constrain|>json<|message|>{"text": "hi"}',
        "<|channel|>analysis<|message|>Hm <b>.<|end|><|start|>assistant<|channel|>commentary to=functions.say"
        '<|message|>{"text": "hi"}',
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.now<|channel|>commentary json"
        "<|message|>{}",
        "<|channel|>analysis<|message|>A.<|end|><|start|>assistant<|channel|>analysis<|message|>B.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>C.",
        "<|channel|>final<|message|>Only <tool_call> text.",
    ],
    "Qwen-Qwen3-0.6B": [
        '<think>\nHm\n</think>\n\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "<think>Only a thought",
        "<think>\nA <tool_call> in it.\n</think>\n\nText.",
    ],
    "meta-llama-Llama-3.1-8B-Instruct": [
        '{"type": "function", "name": "say", "parameters": {"text": "x"}}',
        'I call {"name": "now", "parameters": {}}',
    ],
    "Qwen3-Coder": [
        "<function=say>\n<parameter=text>\nhi\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=say>\n<parameter=text>\n\n a\n\n</parameter>\n</function>\n</tool_call>",
    ],
    "moonshotai-Kimi-K2": [
        '<|tool_call_begin|>functions.say:0<|tool_call_argument_begin|>{"text": "x"}<|tool_call_end|>',
        "<think>T</think>A<|tool_calls_section_begin|><|tool_call_begin|>functions.now:12<|tool_call_argument_begin|>{}"
        "<|tool_call_end|><|tool_calls_section_end|>",
    ],
    "LFM2-8B-A1B": [
        '<|tool_call_start|>[say(text="a, (b) \'c\'"), get_weather(city="Oslo", days=2)]<|tool_call_end|>',
        'A<|tool_call_start|>[plan(name="n", steps=[{"do": "x"}], options={"fast": true, "rate": 1.5})]'
        "<|tool_call_end|>",
    ],
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": [
        "Hm\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>say\n```json\n"
        '{"text": "x"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "Hm</think>Text.",
    ],
    "meetkai-functionary-medium-v3.2": ['say\n{"text": "x"}', "all\nHi"],
    "mistralai-Mistral-Nemo-Instruct-2407": [
        '[TOOL_CALLS][{"name": "say", "arguments": {"text": "x"}, "id": "123456789"}]',
    ],
    "GLM-4.6": [
        "\n<think>T</think>\n<tool_call>now\n</tool_call>",
        "\n<tool_call>say\n<arg_key>text</arg_key>\n<arg_value>a\nb</arg_value>\n</tool_call>",
    ],
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": [
        "<|START_THINKING|>T<|END_THINKING|><|START_RESPONSE|>Hi<|END_RESPONSE|>",
        '<|START_ACTION|>[{"tool_call_id": "7", "tool_name": "now", "parameters": {}}]<|END_ACTION|>',
    ],
    "google-gemma-4-31B-it": [
        "<|channel>thought\nT\n<channel|>Text.",
        '<|tool_call>call:say{text:<|"|>a:{b},c<|"|>}<tool_call|>',
        "Text<|tool_call>call:now{}<tool_call|>",
    ],
}
"""Answers that no template writes, but models do."""


class Oracle:
    """The compiled program.  ``llama_cpp``: the folder of the sources.  ``folder``: for what is compiled."""

    def __init__(self, llama_cpp: Path, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        program = folder / "oracle"
        common = llama_cpp / "common"
        names = ("peg-parser", "json", "json-schema", "json-schema-to-grammar", "trie", "unicode", "log", "common")
        sources = [
            *common.glob("chat*.cpp"),
            *common.glob("parsers/*.cpp"),
            *common.glob("jinja/*.cpp"),
            *(common / f"{name}.cpp" for name in names),
            HERE / "oracle.cpp",
        ]
        includes = [f"-I{llama_cpp / each}" for each in ("common", "include", "ggml/include", "vendor")]

        def compiled(source: Path) -> str:
            made = folder / f"{source.parent.name}-{source.stem}.o"
            if not made.exists():
                flags = ["-std=c++17", "-O1", "-ffunction-sections", *includes, "-c", str(source), "-o", str(made)]
                subprocess.run(["g++", *flags], check=True)
            return str(made)

        with ThreadPoolExecutor(2) as pool:
            made = list(pool.map(compiled, sources))
        # What needs a model is not called here, and not linked.
        linking = ["-Wl,--unresolved-symbols=ignore-all", "-Wl,--gc-sections", "-static", "-pthread"]
        subprocess.run(["g++", "-o", str(program), *made, *linking], check=True)
        self._process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def __call__(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found


def texts(oracle: Oracle, source: str) -> Iterator[tuple[str, str, str]]:
    """For each message its name, what the template adds for an answer, and the answer's text."""
    asked = oracle(template=source, messages=[ASKED], tools=TOOLS, eos="</s>")
    if "error" in asked:
        return
    generation: str = asked["generation"]
    kept = asked["prompt"][: len(asked["prompt"]) - len(generation)]
    for name, message in MESSAGES.items():
        answered = [ASKED, {"role": "assistant", **message}]
        found = oracle(template=source, messages=answered, tools=TOOLS, eos="</s>", add_generation_prompt=False)
        prompt = found.get("prompt", "")
        if not prompt.startswith(kept):
            continue
        text = prompt[len(kept) :]
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, generation, strict=False)))
        if "</" in generation[common:]:  # the answer has a reasoning, which the prompt has ended already
            continue
        text = text[common:].rstrip("\n")
        text = next((text.removesuffix(end) for end in ENDS if text.endswith(end)), text).rstrip("\n")
        yield name, generation, text


def is_whole(message: dict[str, Any], text: str, read: dict[str, Any]) -> bool:
    """Whether what was read has the calls and the text of a message, without the format's marks."""
    called = [call["function"]["name"] for call in message.get("tool_calls", ())]
    content, read_text = message["content"], read["content"] + read["reasoning"]
    lost = content in text and content not in read_text
    return [call[0] for call in read["calls"]] == called and not lost and "<|" not in read_text


def main() -> None:
    oracle = Oracle(Path(sys.argv[1]), Path(sys.argv[2]))
    templates = json.loads(lzma.decompress((DATA / "llama_cpp_templates.json.xz").read_bytes()))["templates"]
    cases = []
    for template, source in templates.items():
        for name, generation, text in texts(oracle, source):
            read = oracle(template=source, messages=[ASKED], tools=TOOLS, eos="</s>", text=text)
            if "message" in read and is_whole(MESSAGES[name], text, read["message"]):
                cases.append([template, name, generation, text, read["message"]])
        for number, text in enumerate(WRITTEN.get(template, ()), 1):
            read = oracle(template=source, messages=[ASKED], tools=TOOLS, eos="</s>", text=text)
            cases.append([template, f"written {number}", read["generation"], text, read["message"]])
    recorded = {
        "source": "common/chat*.cpp of llama.cpp in llama-cpp-python 0.3.36 (tests/support/answers/record.py)",
        "tools": TOOLS,
        "cases": cases,
    }
    (DATA / "answers.json.xz").write_bytes(lzma.compress(json.dumps(recorded, ensure_ascii=False).encode(), preset=9))
    print(f"{len(cases)} answers of {len({case[0] for case in cases})} templates")


if __name__ == "__main__":
    main()
