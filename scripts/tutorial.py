"""Run the code of docs/tutorial.md, put in what it prints and draws, and make the notebook of it.

python scripts/tutorial.py            # after a change of the code, or of what it reads
python scripts/tutorial.py --prose    # after a change of the prose alone: nothing is run

The page is what is written by hand. Its ``python`` blocks are cells of the notebook and share one
namespace. A ``text`` block after one of them holds what it prints; the word ``measured`` after
``text`` marks output of trainings and clocks, which another machine does not repeat to the digit.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from thrust_pomdp.experiment.commands.options import make_parser

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "tutorial.md"
NOTEBOOK = DOCS / "tutorial.ipynb"
MEDIA = "media/tutorial"

#: A block of code, what it prints and the picture it draws; the last two where there are any.
CODE = re.compile(
    r"^```python\n(?P<source>.*?)^```\n"
    r"(?:\n```text(?P<measured> measured)?\n(?P<output>.*?)^```\n)?"
    r"(?:\n!\[(?P<alt>[^]]*)\]\((?P<picture>[^)]*)\)\n)?",
    re.MULTILINE | re.DOTALL,
)


class Cell(NamedTuple):
    """A part of the page.

    :param source: prose or code
    :param is_code: whether it is code
    :param output: what the code prints; None if the page shows no output
    :param measured: whether another machine may print other numbers
    :param picture: path of the picture it draws, from the page's folder; empty if it draws none
    :param alt: what the picture shows, in words
    """

    source: str
    is_code: bool = False
    output: str | None = None
    measured: bool = False
    picture: str = ""
    alt: str = ""


def read(text: str) -> list[Cell]:
    """Take a page apart."""
    cells, done = [], 0
    for match in CODE.finditer(text):
        cells.append(Cell(text[done : match.start()]))
        found = match.groupdict(default="")
        cells.append(
            Cell(
                found["source"],
                is_code=True,
                output=match["output"],
                measured=bool(found["measured"]),
                picture=found["picture"],
                alt=found["alt"],
            )
        )
        done = match.end()
    return [*cells, Cell(text[done:])]


def write(cells: list[Cell]) -> str:
    """Put a page together: the inverse of :func:`read`."""
    return "".join(_as_markdown(cell) for cell in cells)


def _as_markdown(cell: Cell) -> str:
    if not cell.is_code:
        return cell.source
    parts = [f"```python\n{cell.source}```\n"]
    if cell.output is not None:
        parts.append(f"```text{' measured' if cell.measured else ''}\n{cell.output}```\n")
    if cell.picture:
        parts.append(f"![{cell.alt}]({cell.picture})\n")
    return "\n".join(parts)


# ------------------------------------------------------------------------------------- running


def run(sources: list[str], namespace: dict[str, Any]) -> Iterator[str]:
    """Run blocks of code one after the other and yield what each prints.

    :param sources: the blocks
    :param namespace: what they share
    """
    for source in sources:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, str(PAGE), "exec"), namespace)
        yield printed.getvalue()


@contextlib.contextmanager
def inside_temporary_folder() -> Iterator[None]:
    """Work in a folder that is deleted afterwards."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(here)


def with_outputs(cells: list[Cell], media: Path) -> list[Cell]:
    """Return the cells with what their code prints, and keep the pictures it draws.

    :param media: folder of the pictures
    :raises ValueError: if a block prints and the page has no place for it, or the other way round
    """
    import matplotlib

    matplotlib.use("Agg")
    outputs = run([cell.source for cell in cells if cell.is_code], {"__name__": "__main__"})
    done = []
    with inside_temporary_folder():
        for cell in cells:
            printed = next(outputs) if cell.is_code else ""
            if bool(printed) != (cell.output is not None):
                raise ValueError(f"a text block must follow what prints, and only that, got "
                                 f"{printed!r} from\n{cell.source}")  # fmt: skip
            if cell.picture:
                media.mkdir(parents=True, exist_ok=True)
                shutil.copy(Path("pictures", Path(cell.picture).name), media)
            done.append(cell._replace(output=printed) if printed else cell)
    return done


# ------------------------------------------------------------------------------------ notebook


def notebook(cells: list[Cell], docs: Path = DOCS) -> str:
    """Return the notebook of a page, as Jupyter's JSON.

    :param cells: the page
    :param docs: the folder that pictures are named from
    """
    shown = [cell for cell in cells if cell.source.strip()]
    content = {
        "cells": [_as_json(number, cell, docs) for number, cell in enumerate(shown)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _as_json(number: int, cell: Cell, docs: Path) -> dict[str, Any]:
    common = {"id": f"cell-{number}", "metadata": {}, "source": _lines(cell.source.strip("\n"))}
    if not cell.is_code:
        return {"cell_type": "markdown", **common}
    outputs: list[dict[str, Any]] = []
    if cell.output is not None:
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(cell.output)})
    if cell.picture:
        data = base64.b64encode((docs / cell.picture).read_bytes()).decode()
        outputs.append(
            {
                "data": {"image/png": data, "text/plain": [cell.alt]},
                "metadata": {},
                "output_type": "display_data",
            }
        )
    return {"cell_type": "code", "execution_count": None, **common, "outputs": outputs}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--prose", action="store_true", help="make the notebook, run nothing")
    args = parser.parse_args(arguments)
    cells = read(PAGE.read_text())
    if not args.prose:
        warnings.simplefilter("error")
        cells = with_outputs(cells, DOCS / MEDIA)
        PAGE.write_text(write(cells))
    NOTEBOOK.write_text(notebook(cells))
    print(f"Written: {NOTEBOOK}" + ("" if args.prose else f", {PAGE}, {DOCS / MEDIA}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
