"""HTML from Python: everything that is not markup already is escaped."""

from __future__ import annotations

import base64
import html
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

_STYLE = Path(__file__).with_name("page.css")


class Html(str):
    """Text that is markup already."""


def element(tag: str, *children: str, **attributes: str) -> Html:
    """Return an element.

    >>> element("p", "5 < 6, ", element("b", "surely"), class_="note")
    '<p class="note">5 &lt; 6, <b>surely</b></p>'

    :param tag: its name
    :param children: text, which is escaped, and markup
    :param attributes: a trailing underscore is dropped
    """
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for name, value in attributes.items()
    )
    return Html(f"<{tag}{named}>{joined(*children)}</{tag}>")


def joined(*children: str) -> Html:
    """Return children one after another, text escaped."""
    return Html("".join(c if isinstance(c, Html) else html.escape(c) for c in children))


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], words: Collection[int] = (0,)
) -> Html:
    """Return a table that scrolls sideways within its box where it is too wide.

    :param head: the columns' names
    :param rows: cells
    :param words: columns that hold words; the others hold numbers
    """

    def row(tag: str, cells: Sequence[str]) -> Html:
        return element(
            "tr",
            *(
                element(tag, cell, class_="words" if column in words else "number")
                for column, cell in enumerate(cells)
            ),
        )

    body = [row("td", cells) for cells in rows]
    inner = element("table", element("thead", row("th", head)), element("tbody", *body))
    # Whoever has no mouse scrolls with the keyboard, which needs the focus.
    return element("div", inner, class_="scroll", tabindex="0")


def listed(items: Iterable[str], tag: str = "ul") -> Html:
    """Return a list."""
    return element(tag, *(element("li", item) for item in items))


def picture(about: str, wide: bytes, narrow: bytes) -> Html:
    """Return a figure that comes in two widths.

    :param about: what it shows
    :param wide: SVG for a desk
    :param narrow: SVG for a phone
    """
    source = Html(f'<source media="(max-width: 640px)" srcset="{_data(narrow)}">')
    image = Html(f'<img src="{_data(wide)}" alt="{html.escape(about)}">')
    return element("figure", element("picture", source, image), element("figcaption", f"{about}."))


def _data(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


def document(title: str, *body: str) -> Html:
    """Return a page that needs nothing beside itself."""
    head = joined(
        Html('<meta charset="utf-8">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", title),
        element("style", Html(_STYLE.read_text())),
    )
    page = joined(element("head", head), element("body", element("main", *body)))
    return Html(f'<!DOCTYPE html>\n<html lang="en">{page}</html>\n')
