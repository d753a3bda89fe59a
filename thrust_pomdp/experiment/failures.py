"""What a failed run tells in a line."""

from __future__ import annotations


def headline(reason: str) -> str:
    r"""Return the line of a traceback that says what happened.

    That is the first one after the last frame: a message may have more lines, of an array say.

    >>> headline("Traceback ...\n  File 'x', line 1\n    step()\nValueError: one of\n  [1]\n")
    'ValueError: one of'
    >>> headline("The process ended with signal SIGSEGV.\n")
    'The process ended with signal SIGSEGV.'

    :param reason: a traceback, or a sentence
    """
    lines = [line for line in reason.splitlines() if line.strip()]
    frames = [place for place, line in enumerate(lines) if line.startswith("  File ")]
    after = lines[frames[-1] + 1 :] if frames else lines[-1:]
    said = [line for line in after if not line.startswith(" ")] or lines[-1:]
    return said[0].strip() if said else "no reason was left"
