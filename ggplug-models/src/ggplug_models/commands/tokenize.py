"""``ggplug tokenize``: the tokens of a text."""

from __future__ import annotations

from pathlib import Path

import click

from ggplug.cli.model_file import ModelFile
from ggplug.cli.output import Command, echo, json_option, on_one_line, print_json
from ggplug_models.commands.lines import content_of
from ggplug_models.commands.options import model_argument


@click.command(cls=Command)
@model_argument
@click.argument("text", required=False)
@click.option(
    "--file",
    "file",
    type=click.Path(allow_dash=True, dir_okay=False, path_type=Path),
    metavar="PATH",
    help="Read the text from this UTF-8 file; - is standard input.",
)
@click.option(
    "--special/--no-special",
    default=True,
    show_default=True,
    help="Add BOS and EOS where the model's file says so, and convert names of special tokens in the text, such as "
    "<|im_start|>, to these tokens.",
)
@json_option
def tokenize(model: ModelFile, text: str | None, file: Path | None, special: bool, as_json: bool) -> None:
    """Print the tokens of TEXT with the tokenizer of MODEL.gguf.

    Prints one line for each token: its id and its text.
    """
    from ggplug_models.tokenizers import load_tokenizer

    if (text is None) == (file is None):
        raise click.UsageError("Give either TEXT or --file, not both.")
    found = text if text is not None else content_of(file)
    tokenizer = load_tokenizer(model)
    ids = tokenizer.encode(found, add_special=special, parse_special=special)
    pieces = [tokenizer.piece(token) for token in ids]
    if as_json:
        print_json({"ids": ids, "pieces": [piece.decode("utf-8", "backslashreplace") for piece in pieces]})
        return
    width = len(str(tokenizer.n_vocab))
    for token, piece in zip(ids, pieces, strict=True):
        echo(f"{token:{width}} '{on_one_line(piece.decode('utf-8', 'backslashreplace'))}'")
