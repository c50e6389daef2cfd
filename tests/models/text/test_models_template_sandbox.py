"""Whatever a chat template does, it makes no more than a chat needs, and comes to an end."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from paths import DATA

from ggplug.errors import ModelError, ParameterError
from ggplug_models import ChatTemplate, Tokenizer, load_tokenizer

pytest.importorskip("jinja2")

HELLO = [{"role": "user", "content": "Hi"}]
TOO_MUCH = (
    "more than a template is allowed|exceeds the limit|(is|are) allowed|allows in templates|templates c|is undefined|"
    "or have more than"
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *map(chr, range(33, 127))],
            "tokenizer.ggml.token_type": np.array([2, 3, 3, *[1] * 94], np.int32),
        }
    )


def text(n: int) -> str:
    return f"{{% set x = 'a' * {n} %}}"


GROWING = {
    "center": "{{ 'a'|center(50000000) }}",
    "center method": "{{ 'a'.center(50000000) }}",
    "center of an attribute": "{{ ('a'|attr('center'))(50000000) }}",
    "ljust": "{{ 'a'.ljust(50000000) }}",
    "rjust": "{{ 'a'.rjust(50000000) }}",
    "zfill": "{{ 'a'.zfill(50000000) }}",
    "expandtabs": "{{ ('\\t' * 10000).expandtabs(5000) }}",
    "percent": "{{ '%50000000d' % 1 }}",
    "percent with a width given": "{{ '%*d' % (50000000, 1) }}",
    "precision": "{{ '%.50000000f' % 1 }}",
    "format": "{{ '{:50000000}'.format(1) }}",
    "format with a width given": "{{ '{:{}}'.format(1, 50000000) }}",
    "format_map": "{{ '{a:50000000}'.format_map({'a': 1}) }}",
    "format by a map": "{{ ['%50000000d']|map('format', 1)|join }}",
    "many fields": text(20000) + "{{ ('{0}' * 5000).format(x) }}",
    "format's filter": "{{ '%50000000d'|format(1) }}",
    "fields of attributes": "{% set n = namespace(y='a' * 4000) %}{{ '{0.y}'.format(n) }}",
    "replace": text(10000) + "{{ x|replace('a', x) }}",
    "replace method": text(10000) + "{{ x.replace('', x) }}",
    "translate": text(10000) + "{{ x.translate({97: x}) }}",
    "join": text(10000) + "{{ x|join(x) }}",
    "join method": text(10000) + "{{ x.join(x) }}",
    "join of attributes": text(100000) + "{% set n = namespace(y=x) %}{{ ([n] * 1000)|join(attribute='y') }}",
    "join of a generator": text(100000) + "{{ ''.join(([{'y': x}] * 1000)|map(attribute='y')) }}",
    "indent": "{{ ('\\n' * 20000)|indent(4000, blank=true) }}",
    "indent with text": text(20000) + "{{ ('\\n' * 20000)|indent(x, blank=true) }}",
    "tojson": "{{ [[1, 1]]|tojson(indent=50000000) }}",
    "lipsum": "{{ lipsum(n=1) }}",
    "batch": "{{ [1]|batch(50000000, 0)|list }}",
    "slice": "{{ [1]|slice(50000000)|list }}",
    "wordwrap": text(20000) + "{{ x|wordwrap(1) }}",
    "wordwrap by text": text(10000) + "{{ x|wordwrap(1, wrapstring=x) }}",
    "striptags": "{{ ('<!-- -->' * 10000)|striptags }}",
    "striptags method": "{{ (('<!-- -->' * 10000)|safe).striptags() }}",
    "urlize": text(20000) + "{{ x|urlize }}",
    "round": "{{ 1|round(100000, 'ceil') }}",
    "sum of lists": "{{ ([[1]] * 10)|sum(start=[]) }}",
    "times": "{{ [0] * 50000000 }}",
    "power": "{{ 10 ** 100000 }}",
    "to_bytes": "{{ (1).to_bytes(50000000, 'big') }}",
    "rfind": text(100000) + "{{ x.rfind('b' + x[:1000]) }}",
    "strip": text(100000) + "{{ x.strip('b' * 1000 + 'a') }}",
    "punycode": "{{ 'a'.encode('punycode') }}",
    "doubled by ~": "{% set n = namespace(x='a') %}{% for i in range(26) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "doubled by +": "{% set n = namespace(x='a') %}{% for i in range(26) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "doubled lists": "{% set n = namespace(x=1) %}{% for i in range(26) %}{% set n.x = [n.x, n.x] %}{% endfor %}",
    "doubled dicts": "{% set n = namespace(x=1) %}{% for i in range(26) %}{% set n.x = {1: n.x, 2: n.x} %}{% endfor %}",
    "doubled tuples": "{% set n = namespace(x=1) %}{% for i in range(26) %}{% set n.x = (n.x, n.x) %}{% endfor %}",
    "doubled by dict": "{% set n = namespace(x=1) %}{% for i in range(26) %}"
    "{% set n.x = dict(a=n.x, b=n.x) %}{% endfor %}",
    "doubled views": "{% set n = namespace(x=1) %}{% for i in range(26) %}"
    "{% set n.x = {1: n.x, 2: n.x}.values() %}{% endfor %}{{ n.x }}",
    "doubled arguments": "{% macro m(i) %}{% if i %}{{ m(i - 1, varargs, varargs) }}{% else %}{{ varargs }}{% endif %}"
    "{% endmacro %}{{ m(26) }}",
    "doubled cyclers": "{% set n = namespace(x=1) %}{% for i in range(26) %}"
    "{% set n.x = cycler(n.x, n.x).items %}{% endfor %}{{ n.x }}",
    "kept in a list": text(100000) + "{% set n = namespace(l=[]) %}{% for i in range(1000) %}"
    "{% set n.l = n.l + [x[1:]] %}{% endfor %}",
    "a block": text(10000) + "{% set y %}{% for i in range(5000) %}" + "a" * 10000 + "{% endfor %}{% endset %}",
    "output": text(10000) + "{% for i in range(5000) %}{{ x }}{% endfor %}",
    "constant output": "{% for i in range(5000) %}" + "a" * 10000 + "{% endfor %}",
    "macros that call themselves": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
    "{{ m(40) }}",
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops that call themselves": "{% for i in [40] recursive %}{% if i %}{{ loop([i - 1]) }}{{ loop([i - 1]) }}"
    "{% endif %}{% endfor %}",
}


@pytest.mark.parametrize("name", GROWING)
def test_a_template_makes_no_more_than_a_chat_needs(
    tokenizer: Tokenizer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ggplug_models.chat.allowance.SMALLEST", 1 << 18)  # the end comes sooner
    monkeypatch.setattr("ggplug_models.chat.allowance.MOST", 1 << 14)
    template = ChatTemplate(GROWING[name], tokenizer)
    with pytest.raises(
        ModelError, match=f"fails with these messages.*({TOO_MUCH})|format string reads an attribute|sum supports"
    ):
        template.render(HELLO)


def test_nothing_is_made_while_a_template_is_compiled(tokenizer: Tokenizer) -> None:
    tracemalloc.start()
    try:
        ChatTemplate("{{ 'a'|center(50000000) }}{{ 'a' * 50000000 }}{{ ['a']|join|center(50000000) ~ 'b' }}", tokenizer)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000


def test_time_has_an_end_where_a_template_makes_nothing(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggplug_models.chat.allowance.SECONDS", 0.0)
    with pytest.raises(ModelError, match="the template exceeds the time limit of 0 seconds"):
        ChatTemplate("{% for i in range(3) %}{% endfor %}", tokenizer).render(HELLO)


def test_a_template_may_write_a_long_chat_again_for_each_message(tokenizer: Tokenizer) -> None:
    chat = [{"role": "user", "content": "word " * 2000}, {"role": "assistant", "content": "a"}] * 100
    source = "{% set n = namespace(t='') %}{% for m in messages %}"
    source += "{% set n.t = n.t + m.role + m.content|trim + '\\n' %}{% endfor %}"
    found = ChatTemplate(source + "{{ n.t }}", tokenizer).render(chat)
    assert found == "".join(f"{m['role']}{m['content'].strip()}\n" for m in chat)


def test_what_a_template_writes_of_a_calls_arguments_is_their_text(tokenizer: Tokenizer) -> None:
    function = {"name": "f", "arguments": '{"a": 1' + " " * 100_000 + "}"}
    messages = [{"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}]
    arguments = "messages[0].tool_calls[0].function.arguments"
    for written in (arguments, f"'' ~ {arguments}", f"'' + {arguments}", f"[{arguments}]|join", f"{arguments}|string"):
        source = "{% for i in range(1000) %}{{ " + written + " }}{% endfor %}"
        tracemalloc.start()
        try:
            with pytest.raises(ModelError, match=TOO_MUCH):
                ChatTemplate(source, tokenizer).render(messages)
            assert tracemalloc.get_traced_memory()[1] < 32 << 20
        finally:
            tracemalloc.stop()


def test_a_long_message_is_no_templates_fault(tokenizer: Tokenizer) -> None:
    content = "a <b> " * 1_000_000
    source = "{% for m in messages %}"
    source += "{{ m.content.split('</think>')[-1].strip()|replace('b', 'bb') }}{{ m|tojson }}{% endfor %}"
    found = ChatTemplate(source, tokenizer).render([{"role": "user", "content": content}])
    assert found == content.strip().replace("b", "bb") + json.dumps({"role": "user", "content": content})


def test_what_is_no_chat_is_refused_before_the_template_sees_it(tokenizer: Tokenizer) -> None:
    deep: Any = "a"
    for _ in range(1000):
        deep = [deep]
    with pytest.raises(ParameterError, match="nested deeper than 100"):
        ChatTemplate("{{ tools }}", tokenizer).render(HELLO, tools=[{"a": deep}])


def test_a_template_of_many_megabytes_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ModelError, match="has 2000000 characters; at most 262144 are allowed"):
        ChatTemplate("a" * 2_000_000, tokenizer)


def test_every_filter_of_the_vendors_templates_is_known() -> None:
    from jinja2 import Environment, nodes

    from ggplug_models.chat.sandbox import FILTERS

    data = DATA / "chat_templates.json"
    environment = Environment(extensions=["jinja2.ext.loopcontrols"])
    for source in json.loads(data.read_text("utf-8"))["templates"].values():
        tree = environment.parse(source.replace("{% generation %}", "").replace("{% endgeneration %}", ""))
        assert {each.name for each in tree.find_all(nodes.Filter)} <= FILTERS.keys()


def test_a_template_changes_only_its_own_lists_and_only_by_texts_and_numbers(tokenizer: Tokenizer) -> None:
    def render(source: str, **variables: Any) -> str:
        return ChatTemplate(source, tokenizer).render(HELLO, **variables)

    queue = "{% set n = namespace(l=['a']) %}{% set _ = n.l.append('b') %}{{ n.l.pop(0) }}{{ n.l }}"
    assert render(queue) == "a['b']"
    given = ["mine"]
    for source in ("{{ given.append('x') }}", "{{ given.pop() }}", "{{ messages.append('x') }}"):
        with pytest.raises(ModelError, match="unsafe"):
            render(source, given=given)
    assert given == ["mine"]
    for inner in ("l", "[l]", "messages", "{}"):
        with pytest.raises(ModelError, match="append supports only texts and numbers in templates"):
            render("{% set l = [] %}{{ l.append(" + inner + ") }}")
    endless = "{% set l = [] %}{% for n in range(99999) %}{% for m in range(999) %}{% set _ = l.append('aaaaaaaa') %}"
    with pytest.raises(ModelError, match=r"more than a template is allowed|exceeds the time limit"):
        render(endless + "{% endfor %}{% endfor %}")


def test_what_filters_yield_can_be_written_as_json(tokenizer: Tokenizer) -> None:
    source = "{{ tools | map(attribute='a') | tojson }}"
    assert ChatTemplate(source, tokenizer).render(HELLO, tools=[{"a": 1}, {"a": "x"}]) == '[1, "x"]'
