"""What cases are drawn from."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def starts(
    draw: Any, max_rows: int = 5, max_steps: int = 14, min_rows: int = 1, min_steps: int = 1
) -> tuple[str, ...]:
    """Rows of flags such as "0100": where episodes start."""
    n_rows = draw(st.integers(min_rows, max_rows))
    n_steps = draw(st.integers(min_steps, max_steps))
    row = st.text("01", min_size=n_steps, max_size=n_steps)
    return tuple(draw(row) for _ in range(n_rows))
