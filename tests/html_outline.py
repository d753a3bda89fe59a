"""What a page of HTML says and asks for."""

from __future__ import annotations

import html.parser
from pathlib import Path


class Outline(html.parser.HTMLParser):
    """Checks that tags are balanced and collects what a page asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "img", "source", "br"):
            self.open.append(tag)
        self.sources += [v for k, v in attributes if k in ("src", "srcset", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def outline(path: Path) -> Outline:
    return outline_of(path.read_text())


def outline_of(markup: str) -> Outline:
    found = Outline()
    found.feed(markup)
    assert not found.open
    return found
