"""The timings of a text, as llama-server reports them."""

from __future__ import annotations

from ggplug_models.serve.request import Request


def timings(request: Request) -> dict[str, float]:
    """Numbers of tokens, and milliseconds for them: of the prompt without what was reused, and of the text; of drafts.

    The first token comes with the prompt, so that rates of the text are over the others.
    """
    times = request.times
    read = len(request.prompt) - request.reused if times.prompted else 0
    return {
        "cache_n": request.reused,
        **_rate("prompt", read, read, times.prompt_seconds if read else 0.0),
        **_rate("predicted", request.generated, max(request.generated - 1, 0), times.generating_seconds),
        **({"draft_n": request.drafted, "draft_n_accepted": request.accepted} if request.drafted else {}),
    }


def _rate(name: str, count: int, steps: int, seconds: float) -> dict[str, float]:
    return {
        f"{name}_n": count,
        f"{name}_ms": 1e3 * seconds,
        f"{name}_per_token_ms": 1e3 * seconds / steps if steps else 0.0,
        f"{name}_per_second": steps / seconds if steps and seconds else 0.0,
    }
