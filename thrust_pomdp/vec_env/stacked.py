"""The last few observations at once, through which can be set what can be read."""

from __future__ import annotations

from stable_baselines3.common.vec_env import VecFrameStack

from thrust_pomdp.vec_env.layer import VecLayer


class VecStackedFrames(VecLayer, VecFrameStack):
    """SB3's ``VecFrameStack``, except that settings of what is inside can be set through it.

    SB3's keeps what is assigned: outermost around a normaliser, ``venv.training = False`` would
    freeze nothing and say so to nobody (:class:`~thrust_pomdp.vec_env.layer.VecLayer`).

    >>> import thrust_pomdp
    >>> venv = thrust_pomdp.make_vec_env(
    ...     "FlickeringCartPole-v0", n_envs=2, normalize=True, frame_stack=4
    ... )
    >>> venv.training = False
    >>> venv.venv.training, venv.reset().shape
    (False, (2, 16))
    """
