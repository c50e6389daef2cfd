"""``ggplug perplexity``: how well a language model predicts a text, also compared with another model, and tasks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ggplug.cli.model_file import ModelFile
from ggplug.cli.output import Command, NewPath, console, echo, json_option, print_json, print_table
from ggplug.cli.placement import PlaceRules, placement_options
from ggplug_models.commands.bars import counting
from ggplug_models.commands.lines import bytes_of, content_of
from ggplug_models.commands.options import (
    adapted,
    cache_option,
    device_option,
    growth_option,
    lora_option,
    model_argument,
    pack_option,
    placed,
)

if TYPE_CHECKING:
    from ggplug_models.networks.decoder import Decoder
    from ggplug_models.quality.divergence import Divergence, Estimate

PERCENTILES = {
    "maximum": 100.0,
    **{f"{value} %": value for value in (99.9, 99.0, 95.0, 90.0, 75.0)},
    "median": 50.0,
    **{f"{value} %": value for value in (25.0, 10.0, 5.0, 1.0, 0.1)},
    "minimum": 0.0,
}


@click.command(cls=Command)
@model_argument
@click.argument("file", required=False, type=click.Path(allow_dash=True, dir_okay=False, path_type=Path))
@click.option(
    "--context",
    type=click.IntRange(4),
    metavar="N",
    help="Number of tokens of a chunk; the perplexity is measured on the second half of each chunk. Default: 512, or "
    "the model's context length if that is smaller.",
)
@click.option("--chunks", type=click.IntRange(1), metavar="N", help="Measure only the first N chunks. Default: all.")
@click.option(
    "--save-logits",
    "saved",
    type=NewPath(),
    metavar="OUT",
    help="Write what the model predicts to a file, for --kl-divergence. It has two bytes for each token of the "
    "vocabulary for each token that is predicted.",
)
@click.option(
    "--kl-divergence",
    "base",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="BASE",
    help="Compare the model with the one whose predictions the file BASE has, on the text that it has, too; FILE is "
    "left out. llama-perplexity's files are read.",
)
@click.option("--hellaswag", "kind", flag_value="hellaswag", help="FILE has tasks of HellaSwag: six lines for each.")
@click.option("--winogrande", "kind", flag_value="winogrande", help="FILE has tasks of WinoGrande, as CSV.")
@click.option(
    "--multiple-choice",
    "kind",
    flag_value="multiple-choice",
    help="FILE has tasks of several answers, such as ARC, MMLU or TruthfulQA, in llama.cpp's binary format.",
)
@click.option(
    "--tasks",
    type=click.IntRange(1),
    metavar="N",
    help="Number of tasks, drawn as by llama-perplexity. Default: 400 of HellaSwag, otherwise all.",
)
@cache_option
@device_option
@placement_options
@pack_option
@growth_option
@lora_option
@json_option
def perplexity(
    model: ModelFile,
    file: Path | None,
    context: int | None,
    chunks: int | None,
    saved: Path | None,
    base: Path | None,
    kind: str | None,
    tasks: int | None,
    cache_type: str,
    devices: tuple[str, ...],
    place_rules: PlaceRules,
    pack: bool,
    pack_growth: int | None,
    adapters: tuple[tuple[Path, float], ...],
    as_json: bool,
) -> None:
    """Measure how well the language model MODEL.gguf predicts the text of FILE.

    Prints the perplexity of the text and its standard error, as llama-perplexity does; smaller is better. With
    --kl-divergence, how far its predictions are from those of another model, such as the one that it was quantised
    from; with --hellaswag, --winogrande or --multiple-choice, how many tasks it solves. If FILE is -, it is read from
    standard input.
    """
    _check(file, base, kind, {"--context": context, "--chunks": chunks, "--save-logits": saved, "--tasks": tasks})
    names, placement = placed(devices, place_rules)
    given = None if kind is None else bytes_of(file)
    text = None if kind is not None or base is not None else content_of(file)

    @contextlib.contextmanager
    def loaded() -> Iterator[Decoder]:
        from ggplug_models.loading import load_language_model

        how: dict[str, Any] = {"placement": placement, "pack": pack, "pack_growth": pack_growth}
        with load_language_model(model, names, **how) as found, contextlib.ExitStack() as stack:
            adapted(stack, found, adapters)
            yield found

    if base is not None:
        _compare(loaded(), base, chunks, cache_type, as_json=as_json)
    elif kind is not None:
        assert given is not None
        _choose(loaded(), kind, given, tasks, cache_type, as_json=as_json)
    else:
        assert text is not None
        _measure(loaded(), text, context, chunks, saved, cache_type, as_json=as_json)


def _check(file: Path | None, base: Path | None, kind: str | None, options: dict[str, object]) -> None:
    """Raises UsageError for options that do not belong together."""
    if base is not None and kind is not None:
        raise click.UsageError(f"--kl-divergence and --{kind} cannot be combined.")
    if base is None and file is None:
        raise click.UsageError("Missing argument 'FILE'.")
    if base is not None and file is not None:
        raise click.UsageError("--kl-divergence compares on the text that BASE has: leave FILE out.")
    what, taken = "a text", ["--context", "--chunks", "--save-logits"]
    if base is not None:
        what, taken = "--kl-divergence", ["--chunks"]
    elif kind is not None:
        what, taken = f"--{kind}", ["--tasks"]
    for name, value in options.items():
        if value is not None and name not in taken:
            raise click.UsageError(f"{name} is not for {what}.")


def _measure(
    loading: contextlib.AbstractContextManager[Decoder],
    text: str,
    context: int | None,
    chunks: int | None,
    saved: Path | None,
    cache_type: str,
    *,
    as_json: bool,
) -> None:
    from ggplug_models.perplexity import in_chunks, perplexities
    from ggplug_models.quality import base_logits

    with loading as model, contextlib.ExitStack() as stack:
        tokens = model.tokenizer.encode(text, add_special=True)
        read = in_chunks(model, tokens, context, chunks)
        keep = None
        if saved is not None:
            keep = stack.enter_context(base_logits.saving(saved, read, model.n_vocab))
        with counting() as bar:
            task = bar.add_task("reading chunks", total=len(read))
            how: dict[str, Any] = {"chunks": chunks, "cache_type": cache_type, "keep": keep}
            for found in perplexities(model, tokens, read.shape[1], **how):
                bar.update(task, completed=found.chunks, description=f"perplexity {found.value:.4f}")
    n_ctx = read.shape[1]
    if as_json:
        print_json(
            {
                "perplexity": found.value,
                "standard_error": found.error,
                "chunks": found.chunks,
                "context": n_ctx,
                "tokens": found.tokens,
            }
        )
        return
    echo(f"perplexity {found.value:.4f} +/- {found.error:.4f}")
    _note(f"measured on {found.tokens} tokens in {found.chunks} chunks of {n_ctx}")


def _note(line: str) -> None:
    console(stderr=True).print(line, style="dim")


# -- compared with another model -----------------------------------------------------------------------


def _compare(
    loading: contextlib.AbstractContextManager[Decoder],
    base: Path,
    chunks: int | None,
    cache_type: str,
    *,
    as_json: bool,
) -> None:
    from ggplug_models.quality.base_logits import BaseLogits
    from ggplug_models.quality.divergence import divergences

    with BaseLogits(base) as expected, loading as model, counting() as bar:
        count, n_ctx = expected.chunks.shape
        task = bar.add_task("reading chunks", total=min(count, chunks or count))
        for found in divergences(model, expected, chunks=chunks, cache_type=cache_type):
            bar.update(task, completed=found.chunks, description=f"KL divergence {found.mean.value:.5f}")
    if as_json:
        print_json(_as_dict(found, n_ctx))
        return
    _show(found)
    _note(f"measured on {found.tokens} tokens in {found.chunks} chunks of {n_ctx}")


def _estimates(found: Divergence) -> dict[str, Estimate]:
    return {
        "perplexity": found.perplexity,
        "base_perplexity": found.base_perplexity,
        "log_ratio": found.log_ratio,
        "ratio": found.ratio,
        "difference": found.difference,
        "kl_divergence": found.mean,
        "probability_change": found.mean_change,
        "rms_probability_change": found.rms_change,
        "same_top_token": found.same_top,
    }


def _percentiles(found: Divergence) -> Iterator[tuple[str, float, float]]:
    """For each percentile its name, that of the divergence, and that of the changes of probabilities."""
    import numpy as np

    columns = (np.percentile(values, list(PERCENTILES.values())) for values in (found.kld, found.changes))
    yield from zip(PERCENTILES, *(column.tolist() for column in columns), strict=True)


def _as_dict(found: Divergence, n_ctx: int) -> dict[str, Any]:
    return {
        **{name: {"value": each.value, "standard_error": each.error} for name, each in _estimates(found).items()},
        "correlation": found.correlation,
        "percentiles": {
            name: {"kl_divergence": kld, "probability_change": change} for name, kld, change in _percentiles(found)
        },
        "chunks": found.chunks,
        "context": n_ctx,
        "tokens": found.tokens,
    }


TITLES = {
    "perplexity": "perplexity",
    "base_perplexity": "perplexity of the base",
    "log_ratio": "ln(perplexity / base)",
    "ratio": "perplexity / base",
    "difference": "perplexity - base",
    "kl_divergence": "mean KL divergence",
    "probability_change": "mean change of p, %",
    "rms_probability_change": "RMS change of p, %",
    "same_top_token": "same top token, %",
}


def _show(found: Divergence) -> None:
    rows = []
    for name, each in _estimates(found).items():
        percent = 100 if TITLES[name].endswith("%") else 1
        digits = 3 if percent == 100 else 6
        rows.append((TITLES[name], f"{percent * each.value:.{digits}f}", f"{percent * each.error:.{digits}f}"))
    rows.append(("correlation of ln p, %", f"{100 * found.correlation:.2f}", ""))
    print_table(["", "value", "+/-"], rows, right=["value", "+/-"])
    echo("")
    columns = ["percentile", "KL divergence", "change of p, %"]
    rows = [(name, f"{kld:.6f}", f"{100 * change:.3f}") for name, kld, change in _percentiles(found)]
    print_table(columns, rows, right=columns[1:])


# -- tasks ---------------------------------------------------------------------------------------------


def _choose(
    loading: contextlib.AbstractContextManager[Decoder],
    kind: str,
    data: bytes,
    count: int | None,
    cache_type: str,
    *,
    as_json: bool,
) -> None:
    from ggplug_models.quality.choices import accuracy, choose
    from ggplug_models.quality.tasks import KINDS

    tasks = KINDS[kind].read(data, count)
    choices = []
    with loading as model, counting() as bar:
        task = bar.add_task("reading tasks", total=len(tasks))
        for each in choose(model, tasks, cache_type):
            choices.append(each)
            so_far = 100 * accuracy(tasks, choices).value
            bar.update(task, completed=len(choices), description=f"{KINDS[kind].title} {so_far:.2f} %")
    found = accuracy(tasks, choices)
    if as_json:
        print_json(
            {
                "accuracy": found.value,
                "standard_error": found.error,
                "interval": found.interval,
                "chance": found.chance,
                "right": found.right,
                "tasks": [
                    {"log_probabilities": each.logs, "chosen": each.chosen, "right": each.right} for each in choices
                ],
            }
        )
        return
    low, high = (100 * end for end in found.interval)
    value, error, chance = 100 * found.value, 100 * found.error, 100 * found.chance
    echo(f"{KINDS[kind].title} {value:.4f} % +/- {error:.4f} %")
    _note(f"{found.right} of {found.tasks} tasks; 95 % interval {low:.2f} to {high:.2f} %; by chance {chance:.2f} %")
