"""``ggplug finetune``: trains an adapter for a language model, or its weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ggplug.cli.model_file import ModelFile
from ggplug.cli.output import Command, NewPath, byte_count, echo
from ggplug.cli.placement import PlaceRules, placement_options
from ggplug_models.commands.options import device_option, model_argument, placed

if TYPE_CHECKING:
    from ggplug import opt


@click.command(cls=Command)
@model_argument
@click.argument("data", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--lora", type=NewPath(), metavar="OUT", help="Train a LoRA adapter, and write it to OUT.")
@click.option(
    "--full",
    type=NewPath(),
    metavar="OUT",
    help="Train the weights themselves, and write the model to OUT. They must be F32, F16 or BF16; this takes 12 bytes "
    "of memory more for each.",
)
@click.option("--rank", type=click.IntRange(1), default=8, show_default=True, help="Of the adapter's matrices.")
@click.option(
    "--alpha",
    type=click.FloatRange(0, min_open=True),
    default=16.0,
    show_default=True,
    help="What the adapter's matrices compute is multiplied with alpha / rank.",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="PATTERN",
    help="Change only weights whose names match, such as 'blk.*.attn_*'. May be repeated. Default: all matrices of the "
    "blocks for an adapter; with --full, all weights.",
)
@click.option("--epochs", type=click.IntRange(1), default=1, show_default=True, metavar="N")
@click.option(
    "--context",
    type=click.IntRange(1),
    metavar="N",
    help="Number of tokens of a text that are read. Longer texts are cut into pieces, chats are cut off. Default: 512, "
    "or the model's context length if that is smaller.",
)
@click.option("--batch", type=click.IntRange(1), default=4, show_default=True, metavar="N", help="Texts of a batch.")
@click.option(
    "--period",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of batches whose gradients are added up for a step.",
)
@click.option(
    "--learning-rate",
    type=click.FloatRange(0),
    metavar="RATE",
    help="Of AdamW. Default: 2e-4 for an adapter, 2e-5 with --full.",
)
@click.option(
    "--held-out",
    type=click.FloatRange(0, 1),
    default=0.05,
    show_default=True,
    metavar="PART",
    help="Part of the texts that is not learned from, but evaluated after each epoch.",
)
@click.option(
    "--checkpoint",
    type=NewPath(),
    metavar="FILE",
    help="Write FILE after each epoch. If it is there already, go on from it.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N")
@device_option
@placement_options
def finetune(
    model: ModelFile,
    data: Path,
    lora: Path | None,
    full: Path | None,
    rank: int,
    alpha: float,
    targets: tuple[str, ...],
    epochs: int,
    context: int | None,
    batch: int,
    period: int,
    learning_rate: float | None,
    held_out: float,
    checkpoint: Path | None,
    seed: int,
    devices: tuple[str, ...],
    place_rules: PlaceRules,
) -> None:
    """Train the language model MODEL.gguf on the texts of DATA.

    DATA is a file of lines, DATA.jsonl, or of plain text. A line is {"text": "..."}, or {"messages": [...]} for a chat:
    then the answers of the assistant are learned. With --lora, the model stays as it is, and may have weights of any
    type: ggplug run MODEL.gguf --lora OUT computes with both.
    """
    from ggplug_models.chat.template import KEY
    from ggplug_models.finetuning.finetune import finetune as run
    from ggplug_models.finetuning.texts import read_learned
    from ggplug_models.loading import load_language_model

    out = lora if full is None else full
    if out is None or (lora is not None and full is not None):
        raise click.UsageError("Name the file to write either with --lora or with --full.")
    names, placement = placed(devices, place_rules)
    with load_language_model(model, names, placement=placement, pack=False) as loaded:
        texts = read_learned(data, loaded.tokenizer, loaded.template if KEY in loaded.metadata else None)
        echo(f"{data}: {len(texts)} texts, {sum(map(len, texts))} tokens to learn")
        found = run(
            loaded,
            texts,
            out,
            full=full is not None,
            rank=rank,
            alpha=alpha,
            targets=targets,
            n_ctx=context,
            epochs=epochs,
            batch=batch,
            period=period,
            learning_rate=learning_rate,
            held_out=held_out,
            checkpoint=checkpoint,
            seed=seed,
            begun=lambda loss: None if loss is None else echo(f"before: held out {loss:.4f}"),
            callbacks=[_report],
        )
    if found.cut:
        echo(f"{found.cut} tokens of answers lie after the context, and were left out")
    echo(f"{out}: {byte_count(out.stat().st_size)}")


def _report(training: opt.Training, epoch: opt.Epoch) -> None:
    """Prints what is known of an epoch."""
    evaluated = "" if epoch.validation_loss is None else f", held out {epoch.validation_loss:.4f}"
    echo(f"epoch {epoch.number}: loss {epoch.loss:.4f}{evaluated}, {epoch.seconds:.0f} s")
