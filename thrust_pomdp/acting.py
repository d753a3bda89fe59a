"""Acting with a recurrent model without handling its memory."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class _Predictor(Protocol):
    def predict(
        self, observation: Any, state: Any, episode_start: Any, deterministic: bool
    ) -> tuple[NDArray[Any], Any]: ...


class StatefulActor:
    """Acts for a model or a policy and keeps the memory itself.

    For one environment call :meth:`reset` whenever the environment is reset; for several, hand in
    what ended as ``episode_start``:

    >>> actor = StatefulActor(model, deterministic=True)  # doctest: +SKIP
    >>> obs = vec_env.reset()  # doctest: +SKIP
    >>> dones = None  # doctest: +SKIP
    >>> for _ in range(1000):  # doctest: +SKIP
    ...     obs, rewards, dones, infos = vec_env.step(actor.act(obs, episode_start=dones))

    :param model: anything with SB3's ``predict``
    :param deterministic: take the most likely action instead of sampling
    """

    def __init__(self, model: _Predictor, deterministic: bool = False) -> None:
        self.model = model
        self.deterministic = deterministic
        self._state: Any = None

    def reset(self) -> None:
        """Forget everything: the next observation starts an episode in every environment."""
        self._state = None

    def act(self, obs: Any, episode_start: Any = None, action_masks: Any = None) -> NDArray[Any]:
        """Return the actions for the observations.

        :param obs: one observation or ``[n_envs, *obs_shape]``
        :param episode_start: ``[n_envs]``, or one flag for one environment: true where the
            observation is the first of an episode; None where none is, and right after
            :meth:`reset`
        :param action_masks: what may be done, for a model that takes masks
        :raises ValueError: if the number of environments changed without a :meth:`reset`
        """
        if episode_start is not None:
            episode_start = np.atleast_1d(np.asarray(episode_start, dtype=bool))
        masks = {} if action_masks is None else {"action_masks": action_masks}
        predict: Any = self.model.predict
        actions: NDArray[Any]
        actions, self._state = predict(obs, self._state, episode_start, self.deterministic, **masks)
        return actions
