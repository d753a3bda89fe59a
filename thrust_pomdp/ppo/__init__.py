"""Recurrent PPO: policies, buffers, losses, the algorithm, its maskable and privileged forms.

It imports the ground floor, ``vec_env`` and ``recurrent``, torch and SB3. Start reading in
``recurrent_ppo.py``, then ``collecting.py`` and ``training.py``; ``policies.py`` is where a
log-probability is computed twice (``forward`` while collecting, ``evaluate_sequences`` in
training), and ``buffers.py`` keeps the windows in between.
"""

from __future__ import annotations

from typing import Any

from thrust_pomdp import moved


def __getattr__(name: str) -> Any:
    # ``thrust_pomdp.ppo`` was the module of the algorithm.
    return moved.attribute_of(__name__, name)
