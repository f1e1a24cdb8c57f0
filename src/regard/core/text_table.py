"""A table as plain text."""

from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Columns separated by three spaces: the first `left` of them aligned to the left, the others to the right.

    Widths are those of a terminal, where some characters take two columns.

    >>> print(text_table([["word", "count"], ["猫", "10"]]))
    word   count
    猫        10
    """
    from rich.cells import cell_len  # not needed to start the command line

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
            blank = " " * (width - cell_len(cell))
            cells.append(cell + blank if number < left else blank + cell)
        lines.append("   ".join(cells).rstrip())
    return "\n".join(lines)


def counted(number: int, noun: str) -> str:
    """A number with its noun in the singular or plural.

    >>> counted(1, "line"), counted(1200, "line")
    ('1 line', '1,200 lines')
    """
    ending = "" if number == 1 else "s"
    return f"{number:,} {noun}{ending}"
