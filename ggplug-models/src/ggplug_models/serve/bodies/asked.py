"""What clients ask for, whatever their API: each API converts its bodies to this, and the writer reads nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ggplug_models.serve.chats import AskedChat


@dataclass(frozen=True)
class Form:
    """The form that a text must have: any JSON object, JSON of a schema, or text of a GBNF grammar."""

    kind: Literal["json", "schema", "grammar"]
    value: Any = None


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request for texts.

    ``prompts``: the token ids before each text.  ``begins``: whether the texts begin an answer, and so lose a leading
    space.  ``n``: number of texts for each prompt.  ``max_tokens``: of each text; None: the server's limit.
    ``settings``: those of the sampler that the client chose.  ``biases``: numbers to add to logits, by token id or by
    text.  ``form``: what the texts must be like; None: anything.  ``scores``: number of the most probable tokens that
    are recorded for each position; None: nothing is recorded.  ``sampled``: whether these are the probabilities after
    the sampling steps.  ``chat``: the chat that the texts answer.  ``slot``: the preferred slot; -1: any.  ``keep``,
    ``discard``: numbers of tokens that a full context keeps and drops, if the server shifts.  ``echo``: whether the
    prompt's tokens are scored too.  ``lora``: scales of the server's LoRA adapters, by their numbers; those that are
    missing do not act; None: the scales that the server has now.
    """

    prompts: Sequence[list[int]]
    begins: bool = True
    n: int = 1
    max_tokens: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    biases: Sequence[tuple[int | str, float]] = ()
    ignore_ends: bool = False
    stops: Sequence[str] = ()
    form: Form | None = None
    chat: AskedChat | None = None
    scores: int | None = None
    sampled: bool = False
    slot: int = -1
    keep: int = 0
    discard: int = 0
    echo: bool = False
    lora: Mapping[int, float] | None = None
    stream: bool = False
    usage_in_stream: bool = False
    timings_per_token: bool = False
    progress: bool = False
    verbose: bool = False
