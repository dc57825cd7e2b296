"""Rows as tables: for a terminal through rich, for a page as markdown, and a progress bar that is silent when piped."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


def progress() -> Progress:
    """A bar on standard error; nothing where that is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, numbers to the right; lines are not cut where the output is piped."""
    console = Console(markup=False)
    if not console.is_terminal:
        console = Console(width=220, markup=False)
    table = Table(title=title, title_justify="left")
    for k, name in enumerate(header):
        numbers = k and all(re.fullmatch(r"[-+.\dex%]*", row[k]) for row in rows)
        table.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same as a markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def number(value: object, form: str = ".3g") -> str:
    """A number, or a dash where there is none."""
    return format(value, form) if isinstance(value, int | float) else "-"
