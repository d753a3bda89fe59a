"""The site of the documentation: the pages of this folder and every public docstring, by Sphinx."""

from __future__ import annotations

import inspect
import operator
import pkgutil
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

import thrust_pomdp

project = "thrust_pomdp"
author = "The thrust_pomdp developers"
release = thrust_pomdp.__version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.viewcode", "myst_parser"]
exclude_patterns = ["results/**"]

html_theme = "furo"
html_title = f"thrust_pomdp {release}"
html_copy_source = False

myst_heading_anchors = 3

autodoc_default_options = {"members": True, "inherited-members": True, "show-inheritance": True}
autodoc_inherit_docstrings = False  # those of others' libraries have errors that are not ours
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
python_maximum_signature_line_length = 88

#: A reference to what is nowhere is an error; :func:`resolve` decides what is somewhere.
nitpicky = True


def exists(target: str) -> bool:
    """Whether a dotted name, or one of any module of the package, names something."""
    inside = [sys.modules[name] for name in sorted(sys.modules) if name.startswith("thrust_pomdp")]
    for found in [None, *inside]:
        try:
            if found is None:
                pkgutil.resolve_name(target)
            else:
                operator.attrgetter(target)(found)
        except (AttributeError, ImportError, ValueError):
            continue
        return True
    return False


def resolve(
    app: Sphinx, env: Any, node: nodes.Element, text: nodes.TextElement
) -> nodes.TextElement | None:
    """Show without a link what is no public name: of other libraries, or inside this one.

    What a docstring refers to and is nowhere is left as it is, for Sphinx to complain of.
    Annotations are not docstrings: mypy reads them.
    """
    if node.get("refdomain") != "py":
        return None
    in_docstring = "refwarn" in node
    return None if in_docstring and not exists(node["reftarget"]) else text


def skip(
    app: Sphinx, what: str, name: str, member: Any, skipped: bool, options: Any
) -> bool | None:
    """Leave out what a class inherits from other libraries, whose own sites say it."""
    function = getattr(member, "fget", member)
    theirs = not (getattr(function, "__module__", None) or "").startswith("thrust_pomdp")
    return True if inspect.isroutine(function) and theirs else None


def copy_demo(app: Sphinx, error: Exception | None) -> None:
    """Put the demo beside the pages; its link to a page is to the one that is built."""
    page = Path(app.srcdir, "demo", "index.html")
    if error is None and page.is_file():
        copy = Path(app.outdir, "demo", "index.html")
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(
            page.read_text("utf-8").replace("../tutorial.md", "../tutorial.html"), "utf-8"
        )


def setup(app: Sphinx) -> None:
    """Connect what is above."""
    app.connect("missing-reference", resolve)
    app.connect("autodoc-skip-member", skip)
    app.connect("build-finished", copy_demo)
