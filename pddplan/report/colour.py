"""Colour for a terminal: the same text with a few words lit up, drawn by rich."""

from __future__ import annotations

import sys

STATUS_STYLES = {"FEASIBLE": "bold green", "INFEASIBLE": "bold red", "UNKNOWN": "bold yellow"}


def print_coloured(text: str) -> None:
    from rich.console import Console
    from rich.text import Text

    styled = Text()
    for number, line in enumerate(text.split("\n")):
        piece = Text(line)
        word = line.split("  ", 1)[0]
        if number == 0 and word in STATUS_STYLES:
            piece.stylize(STATUS_STYLES[word], 0, len(word))
        elif line and not line.startswith(" ") and number > 1:
            piece.stylize("dim" if " · " in line else "bold")
        piece.highlight_words(["over the limit"], "bold red")
        styled.append(piece).append("\n")
    Console(file=sys.stdout, highlight=False).print(styled, end="", soft_wrap=True)
