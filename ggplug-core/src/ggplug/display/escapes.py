"""Text from anywhere, such as a file, for a terminal or a message: its control characters are shown, not obeyed."""

from __future__ import annotations


def printable(content: str) -> str:
    """The text with control characters, and halves of surrogate pairs, as escapes; line ends stay."""
    if content.isprintable():
        return content
    return "".join(
        c if c == "\n" or c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in content
    )


def on_one_line(content: str) -> str:
    """As :func:`printable`, and line ends as escapes too."""
    return printable(content).replace("\n", "\\n")
