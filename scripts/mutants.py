"""Small changes of the core's code, one at a time, and which of them are drawn.

What is changed: comparisons, arithmetic, and/or, not, constants, conditions, calls whose value
nobody takes, keyword arguments, and functions that have an opposite (min and max). Left as they
are: messages, annotations, docstrings, assertions (they are for mypy), what is imported for types.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: What is called the core.
CORE = (
    "recurrent/*.py", "ppo/*.py", "ppo/maskable/*.py", "checkpoint/*.py", "deploy/*.py",
    "distributed/*.py", "vec_env/*.py", "envs/flicker.py", "wrappers/blanking.py",
    "wrappers/blanking_plan.py", "wrappers/visible_statistics.py", "wrappers/vector/blanking.py",
    "whole_files.py", "array_files.py", "safe_files.py", "safe_values.py", "states.py",
    "stateful.py", "gate.py",
)  # fmt: skip

_COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_COMPUTED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitXor: ast.BitAnd,
}  # fmt: skip
_OPPOSITES = {
    "min": "max", "minimum": "maximum", "amin": "amax", "any": "all", "floor": "ceil",
    "zeros": "ones", "zeros_like": "ones_like", "sin": "cos", "argmin": "argmax",
    "less": "greater", "append": "remove",
}  # fmt: skip
_OPPOSITES |= {other: one for one, other in _OPPOSITES.items()}


@dataclass(frozen=True)
class Mutant:
    """A change.

    :param file: relative to the repository
    :param function: it is in, with its class; empty for the module itself
    :param kind: of change
    :param span: first and last line from 1, columns in bytes from 0
    :param before: the code there
    :param after: what takes its place
    :param occurrence: which of several equal ones in that function
    """

    file: str
    function: str
    kind: str
    span: tuple[int, int, int, int]
    before: str
    after: str
    occurrence: int

    @property
    def key(self) -> str:
        """Twelve digits that stay while other code changes."""
        told = (self.file, self.function, self.kind, self.before, self.after, self.occurrence)
        return hashlib.sha256(repr(told).encode()).hexdigest()[:12]

    def applied(self, source: str) -> str:
        """Return the file's text with this change."""
        lines = source.splitlines(keepends=True)
        first, start, last, end = self.span
        head = lines[first - 1].encode()[:start].decode()
        tail = lines[last - 1].encode()[end:].decode()
        return "".join([*lines[: first - 1], head, self.after, tail, *lines[last:]])


def mutants_of(file: str, source: str) -> list[Mutant]:
    """Return all changes of a file."""
    seen: Counter[tuple[str, ...]] = Counter()
    found = []
    for function, kind, node, after in _Changes().of(ast.parse(source)):
        before = ast.get_source_segment(source, node) or ""
        told = (function, kind, before, after)
        span = (node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0)
        found.append(Mutant(file, function, kind, span, before, after, seen[told]))
        seen[told] += 1
    return found


def drawn(count: int, seed: int, root: Path = ROOT) -> list[Mutant]:
    """Return so many mutants of the core, drawn at random.

    Each has a number of its own, a hash of the seed and of what it changes; the least are taken.
    A mutant therefore stays drawn while other code changes.
    """
    found = []
    for pattern in CORE:
        for path in sorted((root / "thrust_pomdp").glob(pattern)):
            found += mutants_of(str(path.relative_to(root)), path.read_text())
    found.sort(key=lambda mutant: hashlib.sha256(f"{seed}:{mutant.key}".encode()).digest())
    return found[:count]


_Found = tuple[str, str, ast.AST, str]


class _Changes:
    """Walks through a module and makes the changes of each node."""

    def of(self, tree: ast.Module) -> Iterator[_Found]:
        yield from self._walk(tree, "")

    def _walk(self, node: ast.AST, function: str) -> Iterator[_Found]:
        if self._is_left(node):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}".lstrip(".")
        for kind, changed, after in self._changes(node):
            yield function, kind, changed, after
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "bases", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self._walk(child, function)

    @staticmethod
    def _is_left(node: ast.AST) -> bool:
        if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert | ast.Raise):
            return True
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return True  # a docstring
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return True
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
            return True
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in (
            "__all__",
            "__slots__",
        ):
            return True
        return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("warn_user")

    def _changes(self, node: ast.AST) -> Iterator[tuple[str, ast.AST, str]]:
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield "comparison", node, _expression(node, ops=[_COMPARED[type(node.ops[0])]()])
        elif isinstance(node, ast.BinOp):
            is_text = _is_text(node.left) or _is_text(node.right)
            if type(node.op) in _COMPUTED and not is_text:
                yield "arithmetic", node, _expression(node, op=_COMPUTED[type(node.op)]())
        elif isinstance(node, ast.AugAssign) and type(node.op) in _COMPUTED:
            changed = copy.copy(node)
            changed.op = _COMPUTED[type(node.op)]()
            yield "arithmetic", node, ast.unparse(changed)
        elif isinstance(node, ast.BoolOp):
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and/or", node, _expression(node, op=other)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            yield (
                "not" if isinstance(node.op, ast.Not) else "sign",
                node,
                f"({ast.unparse(node.operand)})",
            )
        elif isinstance(node, ast.Constant):
            yield from self._constants(node)
        elif isinstance(node, ast.Break | ast.Continue):
            yield "loop", node, "continue" if isinstance(node, ast.Break) else "break"
        elif isinstance(node, ast.Call):
            yield from self._calls(node)
        if isinstance(node, ast.If | ast.IfExp | ast.While) and not isinstance(
            node.test, ast.Compare | ast.UnaryOp
        ):
            yield "condition", node.test, f"(not ({ast.unparse(node.test)}))"
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield "statement", node, "pass"

    @staticmethod
    def _constants(node: ast.Constant) -> Iterator[tuple[str, ast.AST, str]]:
        if isinstance(node.value, bool):
            yield "constant", node, str(not node.value)
        elif isinstance(node.value, int):
            yield "constant", node, str(node.value + 1)
        elif isinstance(node.value, float):
            yield "constant", node, repr(node.value * 1.5 if node.value else 1.0)

    @staticmethod
    def _calls(node: ast.Call) -> Iterator[tuple[str, ast.AST, str]]:
        name = (
            node.func.attr
            if isinstance(node.func, ast.Attribute)
            else getattr(node.func, "id", None)
        )
        if name in _OPPOSITES:
            changed = copy.deepcopy(node)
            if isinstance(changed.func, ast.Attribute):
                changed.func.attr = _OPPOSITES[name]
            elif isinstance(changed.func, ast.Name):
                changed.func.id = _OPPOSITES[name]
            yield "opposite", node, ast.unparse(changed)
        for keyword in node.keywords:
            if keyword.arg is not None:
                others = [other for other in node.keywords if other is not keyword]
                changed = copy.copy(node)
                changed.keywords = others
                yield "keyword", node, ast.unparse(changed)


def _is_text(node: ast.AST) -> bool:
    if isinstance(node, ast.JoinedStr):
        return True
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def _expression(node: ast.expr, **changes: object) -> str:
    changed = copy.copy(node)
    for name, value in changes.items():
        setattr(changed, name, value)
    return f"({ast.unparse(changed)})"
