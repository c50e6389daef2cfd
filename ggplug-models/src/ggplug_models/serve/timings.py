"""The timings of a text, as llama-server reports them."""

from __future__ import annotations

from ggplug_models.serve.request import Progress, Request


def timings(request: Request, progress: Progress | None = None) -> dict[str, float]:
    """Numbers of tokens, and milliseconds for them: of the prompt without what was reused, and of the text; of drafts.

    The first token comes with the prompt, so that rates of the text are over the others.  ``progress``: the timings are
    those of when it was reported.
    """
    times, generated = request.times, request.generated
    if progress is not None:
        read, seconds, generated = progress.processed - progress.cache, progress.seconds, 0
    else:
        read = len(request.prompt) - request.reused if times.prompted else 0
        seconds = times.prompt_seconds
    return {
        "cache_n": request.reused,
        **_rate("prompt", read, read, seconds if read else 0.0),
        **_rate("predicted", generated, max(generated - 1, 0), times.generating_seconds if generated else 0.0),
        **({"draft_n": request.drafted, "draft_n_accepted": request.accepted} if request.drafted else {}),
    }


def _rate(name: str, count: int, steps: int, seconds: float) -> dict[str, float]:
    return {
        f"{name}_n": count,
        f"{name}_ms": 1e3 * seconds,
        f"{name}_per_token_ms": 1e3 * seconds / steps if steps else 0.0,
        f"{name}_per_second": steps / seconds if steps and seconds else 0.0,
    }
