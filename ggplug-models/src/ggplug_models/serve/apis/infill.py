"""llama-server's ``/infill``: the text between a beginning and an end, with the tokens that a model has for that."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from ggplug_models.serve.apis.llama_server import NativeBody
from ggplug_models.serve.bodies.asked import Asked
from ggplug_models.serve.bodies.asking import asked
from ggplug_models.serve.bodies.body import Body, Many
from ggplug_models.serve.bodies.prompts import Texts, several
from ggplug_models.serve.problems import Problem, wrong
from ggplug_models.serve.writer import Writer


class Extra(Body):
    """A text that comes before the others, such as another file."""

    text: str
    filename: str = "tmp"


class InfillBody(NativeBody):
    """The body of ``/infill``.  ``prompt``: what follows the beginning and is continued."""

    input_prefix: str
    input_suffix: str
    input_extra: Many[Extra] = Field(default_factory=list)
    prompt: Texts = ""


def ask(writer: Writer, body: InfillBody) -> Asked:
    """What an infill asks for.  Raises Problem, ParameterError, ModelError."""
    prompts = several(body.prompt, "prompt")
    if len(prompts) != 1 or not isinstance(prompt := prompts[0], str):
        raise wrong(("prompt",), "Input should be a string")
    ids = gap(writer, body.input_prefix + prompt, body.input_suffix, body.input_extra)
    return asked(body, [writer.prompt(ids, "prompt")], begins=False, scores=body.n_probs or None)


def gap(writer: Writer, before: str, after: str, extras: Sequence[Extra] = (), param: str | None = None) -> list[int]:
    """The prompt for the text between two others.

    ``param``: the parameter that asks for it; None: the path does.  Raises Problem for a model that has no tokens for
    that.
    """
    tokenizer = writer.tokenizer
    special = tokenizer.vocabulary.special
    missing = [name for name in ("fim_pre", "fim_suf", "fim_mid") if name not in special]
    if missing:
        raise Problem(
            501 if param is None else 400,  # clients repeat what they did not cause
            f"this model cannot fill gaps: its vocabulary has no tokens for that ({', '.join(missing)})",
            param=param,
            code="model_not_supported",
        )
    ids = [*tokenizer.vocabulary.before]
    for extra in extras:
        if "fim_sep" in special:
            ids += [special["fim_sep"], *tokenizer.encode(f"{extra.filename}\n{extra.text}")]
        else:
            ids += tokenizer.encode(f"--- snippet: {extra.filename} ---\n{extra.text}\n")
    ids += [special["fim_pre"], *tokenizer.encode(before), special["fim_suf"], *tokenizer.encode(after)]
    return [*ids, special["fim_mid"]]
