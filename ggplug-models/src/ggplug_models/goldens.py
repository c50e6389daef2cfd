"""Replays recorded outputs of tiny models: ``python -m ggplug_models.goldens FOLDER --device CPU --json``.

The outputs of ``NAME.gguf`` are in ``NAME.npz`` in the same folder.  ``tokens_0`` to ``tokens_N`` are token ids.

Language models have ``logits_f32_i``, float32 ``(n, n_vocab)``, the logits of every position in float32 arithmetic; for
quantised weights also ``logits_i``, those that llama.cpp computes from the file; ``greedy``, the greedy continuation
of the last text; and ``n_ctx``, the context length.  Models that predict masked tokens have the logits alone.
Encoder-decoders have ``source_i``, the ids of the source text of each text.
Encoders have the vectors before normalisation: ``embd_f32_i``, ``(n, n_embd)``, of the tokens, and ``pooled_f32_i``,
``(n_embd,)``, of the text.

Logits and vectors are compared by NMSE = sum((a - b)**2) / sum(b**2).  It must be at most 1e-5, or for quantised
weights at most 1.5 times that of llama.cpp plus 1e-6.  Vectors must also have a cosine of at least 0.9999.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from ggplug.backend import Device
from ggplug.cli.output import Command, print_json, printable
from ggplug.errors import ModelError
from ggplug_models.generation.loop import generate
from ggplug_models.loading import load
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.denoiser import Denoiser
from ggplug_models.networks.encoder import Encoder
from ggplug_models.sampling import LogitsError
from ggplug_models.state.session import Session
from ggplug_models.state.steps import Outputs
from ggplug_models.weights.rules import LayerSplit

Array = npt.NDArray[Any]

PLAIN_LIMIT = 1e-5
QUANTIZED_FACTOR, QUANTIZED_TOLERANCE = 1.5, 1e-6
LEAST_COSINE = 0.9999

MICRO_BATCHES = (512, 16, 1)
"""The micro-batches that each text is decoded with: the whole text, 16 tokens, one token."""


def nmse(found: Array, wanted: Array) -> float:
    """The normalised mean square error of ``found``; infinite if a value is not finite."""
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(all="ignore"):
        distance = float(np.sum((found - wanted) ** 2) / np.sum(wanted**2))
    return distance if np.isfinite(distance) else float("inf")


def replay(path: Path, devices: Sequence[Device | str] | None, split: LayerSplit | None = None) -> dict[str, Any]:
    """Replays a model; returns a dict with name, ok, nmse, greedy_equal and error.  Reports errors, raises none."""
    report: dict[str, Any] = {"name": path.stem, "ok": False, "nmse": None, "greedy_equal": None, "error": None}
    try:
        with np.load(path.with_suffix(".npz")) as archive:
            golden = {name: archive[name] for name in archive.files}
        with load(path, devices, placement=split) as model:
            problems = list(
                _language_model(model, golden, report)
                if isinstance(model, Decoder)
                else _encoder(model, golden, report)
            )
        if report["nmse"] is not None and not np.isfinite(report["nmse"]):
            problems.append("NMSE is not finite")
            report["nmse"] = None  # JSON has no number for it
        report["ok"] = not problems
        report["error"] = "; ".join(problems) or None
    except Exception as error:
        report["error"] = f"{type(error).__name__}: {error}"
    return report


def _texts(golden: dict[str, Array]) -> list[list[int]]:
    count = sum(name.startswith("tokens_") for name in golden)
    if not count:
        raise ModelError("the archive has no tokens_0")
    return [golden[f"tokens_{i}"].tolist() for i in range(count)]


def _language_model(model: Decoder, golden: dict[str, Array], report: dict[str, Any]) -> Iterator[str]:
    texts = _texts(golden)
    quantized = any(tensor.type.is_quantized for tensor in model.weights)
    n_ctx = int(golden.get("n_ctx", model.n_ctx))
    worst = 0.0
    for micro_batch in MICRO_BATCHES:
        with Session(model, n_ctx, cache_type="f32", micro_batch=micro_batch) as session:
            for i, tokens in enumerate(texts):
                session.clear()
                if f"source_{i}" in golden:
                    session.encode(golden[f"source_{i}"].tolist())
                distance = nmse(session.decode({0: tokens}, Outputs.ALL)[0], golden[f"logits_f32_{i}"])
                worst = max(worst, distance)
                limit = PLAIN_LIMIT
                if quantized:
                    own = nmse(golden[f"logits_{i}"], golden[f"logits_f32_{i}"])
                    limit = QUANTIZED_FACTOR * own + QUANTIZED_TOLERANCE
                if not distance <= limit:
                    yield f"text {i}, {micro_batch} tokens at once: NMSE {distance:.2e}, more than {limit:.2e}"
            if micro_batch == MICRO_BATCHES[0] and "greedy" in golden:
                wanted = golden["greedy"].tolist()
                found: list[int] | LogitsError
                try:
                    found = list(generate(session, texts[-1], len(wanted)))
                except LogitsError as error:
                    found = error
                report["greedy_equal"] = found == wanted
                if found != wanted:
                    yield f"greedy: {found}, wanted {wanted}"
    report["nmse"] = worst


def _encoder(model: Encoder, golden: dict[str, Array], report: dict[str, Any]) -> Iterator[str]:
    worst = 0.0
    for i, tokens in enumerate(_texts(golden)):
        vectors = {"embd": model.hidden_states(tokens), "pooled": model.embed_ids([tokens], normalize=False)[0]}
        if isinstance(model, Denoiser):
            vectors["logits"] = model.logits(tokens)
        for name, found in vectors.items():
            wanted = golden.get(f"{name}_f32_{i}")
            if wanted is None:
                continue
            if found.shape != wanted.shape:
                raise ModelError(f"{name}_f32_{i} has the shape {wanted.shape}, the model gives {found.shape}")
            worst = max(worst, nmse(found, wanted))
            lengths = np.linalg.norm(found, axis=-1) * np.linalg.norm(wanted, axis=-1)
            cosine = float(np.min(np.sum(found * wanted, axis=-1) / lengths))
            if not cosine >= LEAST_COSINE:
                yield f"text {i}, {name}: cosine {cosine:.6f}, less than {LEAST_COSINE}"
    report["nmse"] = worst


@click.command(cls=Command)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--device", "devices", multiple=True, metavar="NAME", help="Device to run on; repeat it to split the layers."
)
@click.option("--split", metavar="RATIOS", help="Split of the layers: 'even', or proportions such as 2,1.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
@click.option("--only", metavar="TEXT", default="", help="Replay only models whose name contains TEXT.")
def main(folder: Path, devices: tuple[str, ...], split: str | None, as_json: bool, only: str) -> None:
    """Replay every NAME.gguf in FOLDER that has a NAME.npz.  The exit code is 0 if all results agree, else 1."""
    names = [name for option in devices for name in option.split(",")]
    layer_split = None if split is None else LayerSplit.parse(split)
    paths = [p for p in sorted(folder.glob("*.gguf")) if only in p.stem and p.with_suffix(".npz").exists()]
    if not paths:
        raise ModelError(f"{folder} has no NAME.gguf with a NAME.npz of the same name", got=folder)
    reports = []
    for path in paths:
        reports.append(replay(path, names or None, layer_split))
        if not as_json:
            each = reports[-1]
            verdict = "ok " if each["ok"] else "BAD"
            click.echo(printable(f"{verdict} {each['name']}  {each['nmse']}  {each['error'] or ''}"))
    if as_json:
        print_json(reports)
    sys.exit(0 if all(each["ok"] for each in reports) else 1)


if __name__ == "__main__":
    main()
