"""Plain-text layout that never goes sideways: wrapped paragraphs and tables."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

GAP = 2
NARROWEST_COLUMN = 7


def paragraph(text: str, width: int, *, indent: int = 0, hanging: int | None = None) -> list[str]:
    """``text`` wrapped to ``width``, later lines indented by ``hanging`` (default: as the first)."""
    later = indent if hanging is None else hanging
    return textwrap.wrap(
        text,
        width,
        initial_indent=" " * indent,
        subsequent_indent=" " * later,
        break_long_words=True,
        break_on_hyphens=False,
    ) or [""]


def item(text: str, width: int) -> list[str]:
    """One entry of a list."""
    return paragraph(f"- {text}", width, indent=2, hanging=4)


def counted(title: str, reasons: Sequence[tuple[str, int]], width: int, *, most: int, rest: str) -> list[str]:
    """Reasons by how often they hold, the first ``most`` of them; ``rest``: where the others are found."""
    if not reasons:
        return []
    lines = ["", title]
    for why, count in reasons[:most]:
        lines += item(f"{count:,} × {why}", width)
    if len(reasons) > most:
        others = sum(count for _, count in reasons[most:])
        lines += item(f"{others:,} for other reasons: {rest}", width)
    return lines


def joined(parts: Sequence[str], width: int, *, gap: str = "  ", hanging: int = 2) -> list[str]:
    """Parts side by side, broken between parts only where the line is full (inside one that is longer alone)."""
    lines: list[str] = []
    for part in (p for p in parts if p):
        if lines and len(lines[-1]) + len(gap) + len(part) <= width:
            lines[-1] += gap + part
        elif lines:
            lines.extend(paragraph(part, width, indent=hanging))
        else:
            lines.extend(paragraph(part, width, hanging=hanging))
    return lines


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    right: Sequence[int] = (),
    flexible: int | Sequence[int] | None = None,
    indent: int = 2,
) -> list[str]:
    """Columns aligned (those in ``right`` to the right). Where they are too wide, the flexible ones wrap, in order.

    ``flexible`` is the last column unless said otherwise.
    """
    count = len(header)
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(count)]
    excess = indent + sum(widths) + GAP * (count - 1) - width
    chosen = count - 1 if flexible is None else flexible
    for column in (chosen,) if isinstance(chosen, int) else chosen:
        cut = max(0, min(excess, widths[column] - NARROWEST_COLUMN))
        widths[column] -= cut
        excess -= cut
    lines: list[str] = []
    for row in (header, *rows):
        cells = [_wrap_cell(text, size) for text, size in zip(row, widths, strict=True)]
        for number in range(max(len(pieces) for pieces in cells)):
            line = [pieces[number] if number < len(pieces) else "" for pieces in cells]
            lines.append(_line(line, widths, right, indent))
    return lines


def _wrap_cell(text: str, width: int) -> list[str]:
    if len(text) <= width:
        return [text]
    return textwrap.wrap(text, width, break_long_words=True, break_on_hyphens=True)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[int], indent: int) -> str:
    padded = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
    return (" " * indent + (" " * GAP).join(padded)).rstrip()
