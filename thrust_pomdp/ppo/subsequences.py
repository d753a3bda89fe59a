"""Windows cut into subsequences that start from stored states (Strategy B).

A window of ``n_steps`` steps is one sequence: few environments and long windows make few and large
minibatches. Cut into subsequences of ``k`` steps it makes ``n_steps / k`` of them. Each starts from
the state met there while collecting, so only the gradient is cut, not the memory::

    k = 4            a0 a1 a2 a3 a4 a5 a6 a7    one environment's window, n_steps = 8
                     S           S              S: the states that entered here are stored
    subsequences     a0 a1 a2 a3
                                 a4 a5 a6 a7

    burn_in = 2      S     S                    two steps earlier, but at the window's own start
    subsequences     a0 a1 a2 a3
                          (a2 a3)a4 a5 a6 a7    (): run for its memory alone, with present weights

Stored states grow stale while the weights change. Burn-in steps bring them up to date (Kapturowski
et al. 2019, R2D2, https://openreview.net/forum?id=r1lyTjAqYX), and so does computing them anew.

Axes: windows ``[n_env, n_steps, ...]``, subsequences ``[n_env * n_steps / k, k, ...]``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch as th

from thrust_pomdp.arguments import check_count, check_flag
from thrust_pomdp.observations import map_obs
from thrust_pomdp.ppo.sequence_batch import BurnIn, SequenceBatch, combine_states
from thrust_pomdp.recurrent.sequences import ResetLayout, RNNStates

#: (observations ``[n_seq, n_steps, ...]``, states before, episode starts) -> states after
StatesAfter = Callable[[Any, RNNStates, th.Tensor], RNNStates]


def cut_rows(windows: th.Tensor, sequence_length: int) -> th.Tensor:
    """Cut windows into subsequences, those of an environment one after the other.

    ::

        [n_env, n_steps, ...]      [n_env * n_steps / k, k, ...]        (k = 2)
        a0 a1 a2 a3                a0 a1
        b0 b1 b2 b3                a2 a3
                                   b0 b1
                                   b2 b3

    Copies nothing where the windows lie in memory as they are drawn.

    :param windows: ``[n_env, n_steps, ...]``
    :param sequence_length: k, a divisor of n_steps
    """
    return windows.reshape(-1, sequence_length, *windows.shape[2:])


def join_rows(subsequences: th.Tensor, n_steps: int) -> th.Tensor:
    """Put windows together again: the inverse of :func:`cut_rows`.

    :param subsequences: ``[n_env * n_steps / k, k, ...]``
    :param n_steps: steps of a window
    """
    return subsequences.reshape(-1, n_steps, *subsequences.shape[2:])


class Subsequences:
    """How windows are cut, and the states that the subsequences of the present one start from.

    >>> Subsequences(n_steps=128, sequence_length=32).steps
    [0, 32, 64, 96]
    >>> Subsequences(n_steps=128, sequence_length=32, burn_in=8).steps
    [0, 24, 56, 88]

    :param n_steps: steps of a window
    :param sequence_length: steps of a subsequence
    :param burn_in: steps run before each subsequence but a window's first
    :raises ValueError: as :func:`check_subsequences`
    """

    def __init__(self, n_steps: int, sequence_length: int, burn_in: int = 0) -> None:
        check_subsequences(n_steps, sequence_length, burn_in)
        self.n_steps = n_steps
        self.sequence_length = sequence_length
        self.burn_in = burn_in
        #: For each subsequence of a window the step whose entering states it is run from.
        self.steps = [max(start - burn_in, 0) for start in range(0, n_steps, sequence_length)]
        self._states: dict[int, RNNStates] = {}

    def keep(self, step: int, states: RNNStates) -> None:
        """Store a copy of the states that entered a step, if a subsequence needs them."""
        if step in self.steps:
            self._states[step] = combine_states(lambda tensor: tensor.detach().clone(), states)

    def cut(self, windows: SequenceBatch) -> SequenceBatch:
        """Cut whole windows into subsequences, which start from the stored states.

        :param windows: whole windows, in the order of the environments
        """

        def cut(tensor: th.Tensor) -> th.Tensor:
            return cut_rows(tensor, self.sequence_length)

        # Whatever is a tensor, or a dict of tensors, has an entry for each step.
        steps = {
            name: map_obs(cut, part)
            for name, part in windows._asdict().items()
            if isinstance(part, (th.Tensor, dict))
        }
        starts = steps["episode_starts"]
        return windows._replace(
            **steps,
            initial_state=self._initial_states(starts.device),
            layout=ResetLayout.from_episode_starts(starts, starts.device),
            burn_in=self._burn_in(steps["observations"], starts) if self.burn_in > 0 else None,
        )

    def _initial_states(self, device: th.device) -> RNNStates:
        """Return each subsequence's states, ``[n_layers, n_env * n_steps / k, hidden]``."""

        def join(*tensors: th.Tensor) -> th.Tensor:
            return th.stack(tensors, dim=2).flatten(1, 2).to(device)

        return combine_states(join, *(self._states[step] for step in self.steps))

    def _burn_in(self, obs: th.Tensor | dict[str, th.Tensor], starts: th.Tensor) -> BurnIn:
        """Return the steps before each subsequence: the last ones of the subsequence before."""

        def before(tensor: th.Tensor) -> th.Tensor:
            return tensor[:, -self.burn_in :].roll(1, dims=0)

        number = th.arange(len(starts), device=starts.device)
        is_first = number % len(self.steps) == 0
        return BurnIn(map_obs(before, obs), before(starts), is_first)

    def refresh(self, subsequences: SequenceBatch, states_after: StatesAfter) -> SequenceBatch:
        """Compute the stored states anew, each from the one before.

        :param subsequences: what :meth:`cut` returned
        :param states_after: runs the policy, with its present weights, over some steps
        :return: the subsequences with the new states
        """

        def steps_of_windows(start: int, end: int) -> Callable[[th.Tensor], th.Tensor]:
            return lambda tensor: join_rows(tensor, self.n_steps)[:, start:end]

        # With burn_in == sequence_length two subsequences are run from step 0.
        for start, end in itertools.pairwise(dict.fromkeys(self.steps)):
            steps = steps_of_windows(start, end)
            self._states[end] = states_after(
                map_obs(steps, subsequences.observations),
                self._states[start],
                steps(subsequences.episode_starts),
            )
        device = subsequences.episode_starts.device
        return subsequences._replace(initial_state=self._initial_states(device))


def check_subsequences(
    n_steps: int,
    sequence_length: int | None,
    burn_in: int = 0,
    refresh_states: bool = False,
    envs_per_minibatch: int | None = None,
) -> None:
    """Refuse what windows cannot be cut by, and what makes no sense together with it.

    :param n_steps: steps of a window
    :param sequence_length: steps of a subsequence; None where windows stay whole
    :param burn_in: steps run before each subsequence
    :param refresh_states: whether stored states are to be computed anew
    :param envs_per_minibatch: whole windows in a minibatch
    :raises ValueError: naming the argument, the rule and the value
    """
    check_count("burn_in", burn_in, minimum=0)
    wanted = {
        "burn_in": burn_in > 0,
        "refresh_states": check_flag("refresh_states", refresh_states),
    }
    idle = [name for name, is_wanted in wanted.items() if is_wanted]
    if sequence_length is None:
        if idle:
            raise ValueError(
                f"{idle[0]} needs sequence_length, a divisor of n_steps={n_steps}: nothing comes "
                f"before a whole window. Pass one or leave {idle[0]} out"
            )
        return
    _check_divides(check_count("sequence_length", sequence_length), n_steps)
    if sequence_length == n_steps:
        if idle:
            raise ValueError(
                f"{idle[0]} needs a sequence_length below n_steps={n_steps}, got {sequence_length}:"
                f" nothing comes before a whole window. Take a shorter one or leave {idle[0]} out"
            )
        return
    if burn_in > sequence_length:
        raise ValueError(
            f"burn_in must be at most sequence_length={sequence_length}, since no more steps come "
            f"before the second subsequence of a window, got {burn_in}"
        )
    if envs_per_minibatch is not None:
        raise ValueError(
            f"envs_per_minibatch={envs_per_minibatch} counts whole windows, which "
            f"sequence_length={sequence_length} cuts: pass the same number of steps as "
            f"batch_size={envs_per_minibatch * n_steps} instead"
        )


def _check_divides(sequence_length: int, n_steps: int) -> None:
    if n_steps % sequence_length == 0:
        return
    divisors = [number for number in range(1, n_steps + 1) if n_steps % number == 0]
    below = [number for number in divisors if number < sequence_length][-1:]
    above = [number for number in divisors if number > sequence_length][:1]
    nearest = " or ".join(str(number) for number in below + above)
    raise ValueError(
        f"sequence_length must divide n_steps={n_steps}, got {sequence_length}: take {nearest}"
    )


def largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number that is not above another one.

    >>> largest_divisor(2048, most=100)
    64
    """
    return next(divisor for divisor in range(most, 0, -1) if number % divisor == 0)
