"""Playing single episodes with anyone who can act: saved models, scripted controllers, chance."""

from __future__ import annotations

import functools
import json
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.utils import check_for_correct_spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from thrust_pomdp.array_files import is_safe_file
from thrust_pomdp.deploy.observation_layers import load_normalizer
from thrust_pomdp.deploy.stateful_actor import StatefulActor
from thrust_pomdp.experiment import saved_models
from thrust_pomdp.experiment.arms import find_arm
from thrust_pomdp.experiment.folder import model_file, normalizer_file
from thrust_pomdp.experiment.runs import RunSpec, load_result
from thrust_pomdp.experiment.vec_envs import wrap_as_trained
from thrust_pomdp.ppo.maskable.evaluation import acts_by_masks
from thrust_pomdp.ppo.maskable.masks import get_action_masks
from thrust_pomdp.ppo.maskable.policies import MaskableRecurrentActorCriticPolicy
from thrust_pomdp.ppo.maskable.ppo import MaskableRecurrentPPO
from thrust_pomdp.ppo.recurrent_ppo import RecurrentPPO
from thrust_pomdp.ppo.sb3_contrib import from_sb3_contrib
from thrust_pomdp.reference import Controller, controllers
from thrust_pomdp.vec_env.make import layered

Env = gym.Env[Any, Any]
Info = dict[str, Any]


class Actor(Protocol):
    """Acts in one environment."""

    def reset(self) -> None:
        """Forget everything: an episode starts."""

    def act(self, obs: Any, reward: float | None, info: Info) -> Any:
        """Return the action for what ``reset`` (without a reward) or ``step`` returned last."""


class RandomActor:
    """Acts by chance.

    :param env: the environment
    :param seed: of the actions
    """

    def __init__(self, env: Env, seed: int) -> None:
        self._space = env.action_space
        self._space.seed(seed)

    def reset(self) -> None:
        """Do nothing: chance has no memory."""

    def act(self, obs: Any, reward: float | None, info: Info) -> Any:
        """Draw an action."""
        return self._space.sample()


class ControllerActor:
    """Acts for a scripted controller of the reference ladder.

    :param controller: the controller
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def reset(self) -> None:
        """Forget everything: an episode starts."""
        self._controller.reset(n_envs=1)

    def act(self, obs: Any, reward: float | None, info: Info) -> Any:
        """Return the controller's action."""
        return self._controller.act(obs[None], [info.get("blanked", False)])[0]


class ModelActor:
    """Acts for a saved model, with its memory, and sees what it saw in training.

    :param actor: takes raw observations
    :param masks: returns what may be done now; None for a model that takes no masks
    """

    def __init__(self, actor: StatefulActor, masks: Callable[[], Any] | None = None) -> None:
        self._actor, self._masks = actor, masks

    def seed(self, seed: int) -> None:
        """Seed what the model draws its actions from."""
        model: Any = self._actor.model
        model.set_random_seed(seed)

    def reset(self) -> None:
        """Forget everything: an episode starts."""
        self._actor.reset()

    def act(self, obs: Any, reward: float | None, info: Info) -> Any:
        """Return the model's action."""
        masks = None if self._masks is None else self._masks()
        blanked = info.get("blanked")
        return self._actor.act(obs, reward=reward, blanked=blanked, action_masks=masks)


def make_env(env_id: str, human: bool, env_kwargs: dict[str, Any]) -> Env:
    """Make an environment to be watched.

    :param env_id: environment id
    :param human: in a window, instead of by ``render()``
    :param env_kwargs: its arguments
    :raises ValueError: if it has no pictures
    """
    with closing(gym.make(env_id, **env_kwargs)) as env:
        modes = env.metadata.get("render_modes", [])
    # Gymnasium puts pictures into a window where the environment cannot do so itself.
    if "rgb_array" not in modes and not (human and "human" in modes):
        raise ValueError(f"{env_id} cannot be painted: its render modes are {modes}")
    return gym.make(env_id, render_mode="human" if human else "rgb_array", **env_kwargs)


def play(
    env: Env,
    actor: Actor,
    n_episodes: int,
    max_steps: int,
    seed: int,
    report: Callable[[int, float], None] = lambda length, episode_return: None,
) -> None:
    """Play episodes one after the other.

    :param env: the environment; the first episode is seeded, the others continue its streams
    :param actor: who acts
    :param n_episodes: the number of episodes
    :param max_steps: steps of all episodes together after which to stop
    :param seed: of the environment
    :param report: called with length and return of each episode, of one cut short too
    """
    n_steps = 0
    for episode in range(n_episodes):
        if n_steps == max_steps:
            return
        obs, info = env.reset(seed=seed if episode == 0 else None)
        actor.reset()
        reward: Any = None
        length, total, ended = 0, 0.0, False
        while not ended and n_steps < max_steps:
            obs, reward, terminated, truncated, info = env.step(actor.act(obs, reward, info))
            length, total, ended = length + 1, total + float(reward), terminated or truncated
            n_steps += 1
        report(length, total)


def load_model(path: Path) -> BaseAlgorithm:
    """Load a model saved by our or sb3_contrib's ``RecurrentPPO``, or by SB3's ``PPO``.

    Ours may be the one with action masks too.

    .. warning::
        What ``save`` writes contains pickles, which can run any code when they are loaded: load
        only what you trust. What ``save_safe`` writes runs nothing.

    :raises FileNotFoundError: if there is no such file
    :raises ValueError: if it is something else
    """
    _check_file("model", path)
    if is_safe_file(path):
        return saved_models.load_safe_model(path)
    try:
        with zipfile.ZipFile(path) as file:
            names = json.loads(file.read("data")).keys()
    except (zipfile.BadZipFile, KeyError, ValueError):
        raise ValueError(f"model must be a zip file saved by model.save(), got {path}") from None
    if "window_state" in names:
        is_maskable = issubclass(_policy_class(path), MaskableRecurrentActorCriticPolicy)
        ours = MaskableRecurrentPPO if is_maskable else RecurrentPPO
        return ours.load(path, device="cpu")
    if "_last_lstm_states" in names:
        return from_sb3_contrib(path, device="cpu")
    if "clip_range" in names and issubclass(_policy_class(path), ActorCriticPolicy):
        return PPO.load(path, device="cpu")
    raise ValueError(
        "model must be saved by thrust_pomdp.RecurrentPPO or MaskableRecurrentPPO, "
        f"sb3_contrib.RecurrentPPO or stable_baselines3.PPO, got {path}"
    )


def _policy_class(path: Path) -> Any:
    data, _, _ = load_from_zip_file(path, device="cpu")
    return (data or {})["policy_class"]


def model_actor(
    env: Env, model_path: Path, normalizer_path: Path | None, deterministic: bool, **senses: Any
) -> ModelActor:
    """Load a model and the statistics it was trained with, to act in an environment.

    :param env: the environment
    :param model_path: the model's zip file
    :param normalizer_path: what ``VecNormalizeVisible`` or ``VecNormalize`` saved; None if the
        model was trained without
    :param deterministic: take the most likely action instead of sampling
    :param senses: what else it sees: ``previous_action``, ``previous_reward`` and ``frame_stack``
        of :func:`~thrust_pomdp.make_vec_env`
    :raises FileNotFoundError: if there is no such file
    :raises ValueError: if a file holds something else, or does not fit the environment
    """
    model = load_model(model_path)
    venv: Any = DummyVecEnv([lambda: env])
    if normalizer_path is not None:
        venv = _load_normalizer(normalizer_path, venv)
    return _actor_in(layered(venv, **senses), model, model_path, deterministic)


def run_actor(env: Env, run: SavedRun, deterministic: bool, trusted: bool = False) -> ModelActor:
    """Load the model of a finished run, to act in an environment.

    :param env: the environment
    :param run: the run
    :param deterministic: take the most likely action instead of sampling
    :param trusted: whether what is pickled may be loaded
    :raises ValueError: if a file holds something else, or does not fit the environment
    """
    model = run.load(trusted)
    normalizer = run.load_normalizer(trusted)
    venv = wrap_as_trained(DummyVecEnv([lambda: env]), run.spec.recipe, normalizer)
    return _actor_in(venv, model, run.model, deterministic)


def _actor_in(
    venv: VecEnv, model: BaseAlgorithm, model_path: Path, deterministic: bool
) -> ModelActor:
    # As a model's constructor does, which turns images for SB3's networks.
    venv = BaseAlgorithm._wrap_env(venv, verbose=0, monitor_wrapper=False)
    try:
        check_for_correct_spaces(venv, model.observation_space, model.action_space)
        actor = StatefulActor.like(model, venv, deterministic)
    except ValueError as error:
        raise ValueError(f"{model_path} does not fit the environment: {error}") from None
    masks = functools.partial(get_action_masks, venv) if acts_by_masks(model, venv) else None
    return ModelActor(actor, masks)


def _load_normalizer(path: Path, venv: Any) -> VecNormalize:
    _check_file("normalizer", path)
    try:
        normalizer = load_normalizer(path)
        normalizer.set_venv(venv)
    except Exception as error:  # a pickle can fail in any way
        raise ValueError(
            f"normalizer must be a file saved by VecNormalizeVisible or VecNormalize and fit the "
            f"environment, got {path}: {error}"
        ) from None
    return normalizer


def _check_file(name: str, path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"{name} must be a file, got {path}")


def scripted_actor(
    env: Env, information: str, env_id: str, seed: int, env_kwargs: dict[str, Any]
) -> Actor:
    """Make the scripted controller of a class of information.

    :param env: the environment, for chance to act in; any environment will do for that
    :param information: ``"nothing"`` for chance, or a class of the reference ladder
    :param env_id: the environment's id
    :param seed: of what is drawn
    :param env_kwargs: the environment's arguments
    :raises ValueError: if the environment has no such controller
    """
    if information == "nothing":
        return RandomActor(env, seed)
    found = {c.information: c for c in controllers(env_id, seed, **env_kwargs)}
    controller = {str(key): value for key, value in found.items()}.get(information)
    if controller is None:
        raise ValueError(
            f"{env_id} has controllers that know {', '.join(found)}, none that knows {information}"
        )
    return ControllerActor(controller)


class SavedRun(NamedTuple):
    """What the runner of a comparison saved of one run.

    :param spec: what the run did
    :param algorithm: ``module:class`` of its model
    :param model: the model's file
    :param normalizer: the normaliser's file; None where the observations were not normalised
    """

    spec: RunSpec
    algorithm: str
    model: Path
    normalizer: Path | None

    def load(self, trusted: bool = False) -> BaseAlgorithm:
        """Load the model.

        .. warning::
            Runs of earlier versions, and of arms of your own, are kept in pickles, which can run
            any code: call only what you trust ``trusted``.

        :param trusted: whether what is pickled may be loaded
        :raises ValueError: if it cannot be loaded
        """
        saved_models.check_trusted(self.model, trusted)
        if not find_arm(self.spec.arm).is_users:
            return load_model(self.model)
        loaded: BaseAlgorithm
        loaded = saved_models.load_run_model(self.model, self.algorithm, trusted)
        return loaded

    def load_normalizer(self, trusted: bool = False) -> VecNormalize | None:
        """Load the normaliser, without an environment, if there is one."""
        if self.normalizer is None:
            return None
        return saved_models.load_run_normalizer(self.normalizer, trusted)


def find_run(path: Path) -> SavedRun:
    """Find what the runner of a comparison saved of one run.

    :param path: ``FOLDER/runs/NAME``, with or without an ending
    :raises FileNotFoundError: if a file is missing
    """
    endings = (".json", ".zip", ".safetensors")
    stem = path.with_suffix("") if path.suffix in endings else path
    result = stem.with_name(f"{stem.name}.json")
    if not result.is_file():
        known = sorted(file.stem for file in stem.parent.glob("*.json"))
        raise FileNotFoundError(
            f"run must name a finished run, FOLDER/runs/NAME, got {path}; "
            f"finished in {stem.parent}: {', '.join(known) or 'none'}"
        )
    found = load_result(result)
    spec = RunSpec(**found.spec)
    model, normalizer = model_file(stem), normalizer_file(stem)
    is_normalized = spec.recipe.normalize is not None
    for file in (model, normalizer) if is_normalized else (model,):
        if not file.is_file():
            raise FileNotFoundError(
                f"{file} is missing: {result} was made without it, train the run again"
            )
    algorithm = found.provenance.get("algorithm", "")
    return SavedRun(spec, algorithm, model, normalizer if is_normalized else None)
