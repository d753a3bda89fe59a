"""Files that appear whole or not at all, CSV files among them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from thrust_pomdp import whole_files

#: How the names of files end that are not there yet.
UNFINISHED = whole_files.UNFINISHED

write_atomically = whole_files.write_whole


def csv_text(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as CSV, whose lines end alike on every system."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()


def write_csv(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table as a CSV file.

    :raises OSError: if it cannot be written
    """
    write_atomically(path, csv_text(head, rows).encode())
