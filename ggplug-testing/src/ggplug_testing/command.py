"""``ggplug conformance``: puts a device to the conformance suite, without pytest."""

from __future__ import annotations

import click


@click.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True},
    short_help="Check a device with the conformance suite.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def conformance(arguments: tuple[str, ...]) -> int:
    """Check a device with the conformance suite: all of it, or the parts that the options name."""
    from ggplug_testing import conformance as suite  # not for `ggplug --help`, which imports this module

    try:
        return suite.main([*arguments], "ggplug conformance")
    except SystemExit as ending:  # of the parser: help was shown, or the arguments are wrong
        return ending.code if isinstance(ending.code, int) else 0
