"""What a referee found."""

from __future__ import annotations

from dataclasses import dataclass

HELD, BROKEN, NOT_OBSERVABLE = "held", "broken", "not observable"


class NotObservableError(Exception):
    """A law cannot be looked at on this algorithm; the message says why."""


@dataclass(frozen=True)
class Finding:
    """What was found about one law.

    :param law: its name
    :param verdict: ``"held"``, ``"broken"`` or ``"not observable"``
    :param detail: how a broken law shows, or why a law cannot be observed; of one that holds what
        was seen on the way, often nothing
    """

    law: str
    verdict: str
    detail: str = ""

    def __str__(self) -> str:
        detail = f": {'because ' * (self.verdict == NOT_OBSERVABLE)}{self.detail}"
        return f"{self.law}: {self.verdict}{detail if self.detail else ''}"


@dataclass(frozen=True)
class Report:
    """What was found about an algorithm; ``print`` shows a line for each law.

    :param name: of what was looked at
    :param findings: one for each law, in the order of the laws
    """

    name: str
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        counts = ", ".join(
            f"{len(self._of(verdict))} {verdict}"
            for verdict in (HELD, BROKEN, NOT_OBSERVABLE)
            if self._of(verdict)
        )
        return "\n".join((f"{self.name}: {counts}", *(f"- {row}" for row in self.findings)))

    def __getitem__(self, law: str) -> Finding:
        """Return what was found about one law.

        :raises KeyError: if it was not looked at
        """
        for finding in self.findings:
            if finding.law == law:
                return finding
        raise KeyError(f"{law!r} was not looked at: {[finding.law for finding in self.findings]}")

    @property
    def broken(self) -> tuple[str, ...]:
        """The laws that are broken."""
        return self._of(BROKEN)

    @property
    def not_observable(self) -> tuple[str, ...]:
        """The laws that could not be observed."""
        return self._of(NOT_OBSERVABLE)

    def _of(self, verdict: str) -> tuple[str, ...]:
        return tuple(finding.law for finding in self.findings if finding.verdict == verdict)

    def raise_if_broken(self) -> None:
        """Raise where a law is broken, for tests.

        :raises AssertionError: naming each broken law, and how that shows
        """
        if self.broken:
            told = "\n- ".join(str(row) for row in self.findings if row.verdict == BROKEN)
            raise AssertionError(
                f"{self.name} breaks {len(self.broken)} of {len(self.findings)} laws of a "
                f"recurrent algorithm (the first may explain the others):\n- {told}"
            )
