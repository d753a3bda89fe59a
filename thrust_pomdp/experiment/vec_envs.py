"""The environments of a run.

Order: flicker -> normaliser -> previous action -> stack -> what only the critic sees -> reward
scale.
"""

from __future__ import annotations

import warnings
from copy import deepcopy

import numpy as np
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from thrust_pomdp.deploy.observation_pipeline import layer_of
from thrust_pomdp.envs import registration
from thrust_pomdp.experiment.arms import find_arm, state_kwargs
from thrust_pomdp.experiment.recipes import Recipe
from thrust_pomdp.experiment.runs import RunSpec
from thrust_pomdp.experiment.together import envs_of
from thrust_pomdp.vec_env.layer import VecLayer
from thrust_pomdp.vec_env.make import layered, make_vec_env
from thrust_pomdp.vec_env.normalize import VecNormalizeVisible, normalizer_options
from thrust_pomdp.vec_env.privileged import VecPrivilegedInfo
from thrust_pomdp.wrappers.expose import StateObservation

#: Steps that any evaluation episode may take; more where the whole training had more.
_LONG_EPISODE = 100_000


class VecScaleReward(VecLayer):
    """Multiply the rewards the learner sees; episode statistics further in stay unscaled."""

    def __init__(self, venv: VecEnv, scale: float) -> None:
        super().__init__(venv)
        self.scale = scale

    def reset(self) -> VecEnvObs:
        """Reset the environments."""
        return self.venv.reset()

    def step_wait(self) -> VecEnvStepReturn:
        """Step the environments and scale the rewards."""
        obs, rewards, dones, infos = self.venv.step_wait()
        return obs, rewards * np.float32(self.scale), dones, infos


class VecEndingEpisodes(VecLayer):
    """Refuse to wait for ever: an evaluation is over when episodes are.

    :param venv: the environments
    :param most_steps: steps that an episode may take
    """

    def __init__(self, venv: VecEnv, most_steps: int) -> None:
        super().__init__(venv)
        self._most_steps = most_steps
        self._lengths = np.zeros(venv.num_envs, np.int64)

    def reset(self) -> VecEnvObs:
        """Reset the environments."""
        self._lengths[:] = 0
        return self.venv.reset()

    def step_wait(self) -> VecEnvStepReturn:
        """Step the environments.

        :raises ValueError: if an episode takes too long
        """
        obs, rewards, dones, infos = self.venv.step_wait()
        self._lengths += 1
        self._lengths[dones] = 0
        if self._lengths.max() > self._most_steps:
            raise ValueError(
                f"an episode must end for an evaluation, one did not in {self._most_steps} steps: "
                "give the environment a limit, such as --env-kwargs max_episode_steps:1000"
            )
        return obs, rewards, dones, infos


@layer_of.register(VecScaleReward)
@layer_of.register(VecEndingEpisodes)
def _unchanged(wrapper: VecEnvWrapper) -> None:
    """Tell that observations stay as they are."""


def make_training_env(spec: RunSpec) -> VecScaleReward:
    """Make the environments that a run trains on."""
    recipe, privileged = spec.recipe, find_arm(spec.arm).privileged
    n_envs, seed = envs_of(spec)
    update = "step" if spec.ranks == 1 else "window"
    venv = _make(spec, n_envs, seed, tells_state=privileged)
    # The normaliser sits directly around the environments, where it finds their flags at once.
    venv = _seen(_normalized(venv, recipe, update), recipe)
    venv = VecPrivilegedInfo(venv, update=update) if privileged else venv
    return VecScaleReward(venv, recipe.reward_scale)


def make_evaluation_env(
    spec: RunSpec, n_envs: int, seed: int, trained: VecNormalize | None
) -> VecEnv:
    """Make the environments that a run is evaluated on: frozen statistics, rewards as they are.

    A critic's privileges are for training: nothing of them is here.

    :param spec: the run
    :param n_envs: environments side by side
    :param seed: of the first, the others have the following ones
    :param trained: the normaliser of the training
    """
    venv = wrap_as_trained(_make(spec, n_envs, seed), spec.recipe, trained)
    return VecEndingEpisodes(venv, max(spec.total_timesteps, _LONG_EPISODE))


def wrap_as_trained(venv: VecEnv, recipe: Recipe, trained: VecNormalize | None) -> VecEnv:
    """Show environments as a recipe's training did, with frozen statistics.

    :param venv: the environments
    :param recipe: of the run
    :param trained: the normaliser of the training
    """
    if trained is not None:
        frozen = VecNormalizeVisible(
            venv,
            training=False,
            norm_obs=trained.norm_obs,
            norm_reward=False,
            clip_obs=trained.clip_obs,
            epsilon=trained.epsilon,
            norm_obs_keys=trained.norm_obs_keys,
            # A plain VecNormalize takes zeros for data.
            zero_is_blank=getattr(trained, "zero_is_blank", False),
        )
        copy_statistics(trained, frozen)
        venv = frozen
    return _seen(venv, recipe)


def copy_statistics(source: VecNormalize, target: VecNormalize) -> None:
    """Take over the statistics of observations, and whether flags were ever met."""
    if source.norm_obs:
        target.obs_rms = deepcopy(source.obs_rms)
    if isinstance(source, VecNormalizeVisible) and isinstance(target, VecNormalizeVisible):
        target.met_flags = target.met_flags or source.met_flags


def _make(spec: RunSpec, n_envs: int, seed: int, tells_state: bool = False) -> VecEnv:
    registration.register_envs()
    shows_state = find_arm(spec.arm).sees_state
    if shows_state and spec.state_env is not None:
        return make_vec_env(spec.state_env, n_envs, seed=seed)
    kwargs = spec.env_kwargs
    if tells_state or shows_state:
        kwargs = state_kwargs(spec.env_id, kwargs)
    wrapper = StateObservation if shows_state else None
    with warnings.catch_warnings():
        # SB3 asks every environment for pictures, whether it makes any or not.
        warnings.filterwarnings("ignore", ".*initialised with render_mode", UserWarning)
        return make_vec_env(
            spec.env_id, n_envs, seed=seed, wrapper_class=wrapper, env_kwargs=kwargs
        )


def _seen(venv: VecEnv, recipe: Recipe) -> VecEnv:
    """Add what tells the agent something about the past."""
    return layered(venv, previous_action=recipe.previous_action, frame_stack=recipe.frame_stack)


def _normalized(venv: VecEnv, recipe: Recipe, update: str = "step") -> VecEnv:
    """Normalise as the recipe says, as far as the observations can be.

    :param update: when statistics take in what is met
    """
    if recipe.normalize is None:
        return venv
    gamma = recipe.hyperparameters.get("gamma", 0.99)
    options = {"gamma": gamma, **recipe.normalize, "update": update}
    normalizer = VecNormalizeVisible(venv, **normalizer_options(venv.observation_space, options))
    # The replay buffer of an off-policy arm keeps frames without flags: zeros are the best guess.
    normalizer.warned_of_guess = True
    return normalizer
