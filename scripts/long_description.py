"""The README as a package index shows it, made when the package is built.

An index has neither the files beside the README nor its pictures. A link to a file becomes its
text; once the project has an address, `base` in the hook's table of pyproject.toml makes it
absolute instead.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"!\[([^\]]*)\]\((?!\w+:)[^)]*\)")
LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:)([^)]*)\)")


def long_description(readme: str, base: str = "") -> str:
    """Return the README without links that lead nowhere outside of the repository.

    Of a picture its description is left.

    :param base: address of the folder of the README, ending with a slash; empty if there is none
    """
    readme = re.sub(PICTURE, r"*\1*", readme)
    return re.sub(LINK, rf"[\1]({base}\2)" if base else r"\1", readme)


class LongDescription(MetadataHookInterface):
    """Hand the long description to hatchling."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in what pyproject.toml declares dynamic."""
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = long_description(readme, self.config.get("base", ""))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
