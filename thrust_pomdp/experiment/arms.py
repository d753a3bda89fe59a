"""Arms: the contestants of a comparison, and what each can take.

Nothing here loads torch: the table is read by the process that only hands out work.

**An arm of your own** is any factory of an SB3 algorithm, named ``module:factory`` where an arm's
name is expected::

    def make(env: VecEnv, seed: int, **hyperparameters) -> BaseAlgorithm:
        return A2C("MlpPolicy", env, seed=seed, device="cpu", **hyperparameters)

``env`` is wrapped as the recipe says (normaliser, previous action, stack, reward scale), ``seed``
is the run's, and ``hyperparameters`` are the recipe's keys that are not about the environments; a
factory that takes none may leave them out of its signature. The module must be importable in the
processes that train.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import gymnasium as gym
from gymnasium import spaces

from thrust_pomdp.errors import with_near_names

#: Keys of a recipe that are about environments and budget, in rl-zoo's words where it has one.
RUNNER_KEYS = frozenset(
    {"n_timesteps", "n_envs", "normalize", "reward_scale", "frame_stack", "previous_action",
     "policy", "average_last"}
)  # fmt: skip

#: Arguments of SB3's PPO that a recipe may give.
PPO_KEYS = frozenset(
    {"learning_rate", "n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "clip_range",
     "clip_range_vf", "normalize_advantage", "ent_coef", "vf_coef", "max_grad_norm", "use_sde",
     "sde_sample_freq", "target_kl", "policy_kwargs"}
)  # fmt: skip

#: Arguments of SB3's algorithms that are the runner's to give, so no recipe may.
RUNNERS_ARGUMENTS = frozenset(
    {"env", "seed", "device", "verbose", "tensorboard_log", "stats_window_size",
     "_init_setup_model", "rollout_buffer_class", "rollout_buffer_kwargs"}
)  # fmt: skip


_ACTIONS: tuple[type[spaces.Space[Any]], ...] = (
    spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary,
)  # fmt: skip


#: What an arm can remember; one that sees the state has nothing to.
Memory: TypeAlias = Literal["none", "previous action", "frames", "recurrent", "state", "unknown"]


@dataclass(frozen=True)
class Arm:
    """A contestant.

    :param name: what it is called on the command line and in files
    :param label: what it is called in tables and plots
    :param algorithm: ``module:class`` of the algorithm, or the user's ``module:factory``
    :param recurrent: whether its policies are the LSTM ones
    :param previous_action: whether it sees its last action; then it is not memoryless
    :param stacks_frames: whether it sees several frames at once
    :param privileged: whether its critic sees the true state, in training only
    :param sees_state: whether it sees the true state in place of the observations, always
    :param rnn_class: what remembers in place of an LSTM, a name such as ``nn.GRU`` or
        ``recurrent.GTrXL``
    :param recipes_of: the arm whose packaged recipes are its too
    :param keys: hyperparameters it takes; None if only its factory knows
    :param needs: a package beyond the dependencies
    :param actions: action spaces that its algorithm is right for
    """

    name: str
    label: str
    algorithm: str
    recurrent: bool = False
    previous_action: bool = False
    stacks_frames: bool = False
    privileged: bool = False
    sees_state: bool = False
    rnn_class: str | None = None
    recipes_of: str | None = None
    keys: frozenset[str] | None = PPO_KEYS
    needs: str | None = None
    actions: tuple[type[spaces.Space[Any]], ...] = _ACTIONS

    @property
    def trains_in_ranks(self) -> bool:
        """Whether several processes can train it together."""
        return self.algorithm == _OURS

    @property
    def is_users(self) -> bool:
        """Whether the user brought it."""
        return self.keys is None

    @property
    def memory(self) -> Memory:
        """What it can remember; of a user's own that is not known."""
        if self.is_users:
            return "unknown"
        if self.sees_state:
            return "state"
        if self.recurrent:
            return "recurrent"
        if self.stacks_frames:
            return "frames"
        return "previous action" if self.previous_action else "none"

    @property
    def recipe_keys(self) -> frozenset[str]:
        """Keys that a recipe of this arm may have; for a user's arm those of the runner.

        What an arm sees is what it is: a memoryless arm stays one whatever a recipe says.
        """
        if self.is_users:
            return RUNNER_KEYS
        fixed = {"previous_action"} if self.stacks_frames else {"previous_action", "frame_stack"}
        return (RUNNER_KEYS - fixed) | (self.keys or frozenset())


_OURS = "thrust_pomdp.ppo.recurrent_ppo:RecurrentPPO"
_PPO = "stable_baselines3:PPO"
_RECURRENT_KEYS = PPO_KEYS | {
    "envs_per_minibatch", "window_state", "sequence_length", "burn_in", "refresh_states",
}  # fmt: skip

#: name -> arm
ARMS: dict[str, Arm] = {
    arm.name: arm
    for arm in (
        Arm("lstm", "LSTM (RecurrentPPO)", _OURS, recurrent=True, keys=_RECURRENT_KEYS),
        Arm("lstm-prev-action", "LSTM and previous action", _OURS, recurrent=True,
            previous_action=True, keys=_RECURRENT_KEYS),
        Arm("lstm-privileged", "LSTM, privileged critic", _OURS, recurrent=True,
            privileged=True, recipes_of="lstm-prev-action-privileged", keys=_RECURRENT_KEYS),
        Arm("lstm-prev-action-privileged", "LSTM, previous action, privileged critic", _OURS,
            recurrent=True, previous_action=True, privileged=True, keys=_RECURRENT_KEYS),
        Arm("gru", "GRU (RecurrentPPO)", _OURS, recurrent=True, rnn_class="nn.GRU",
            recipes_of="lstm", keys=_RECURRENT_KEYS),
        Arm("gru-prev-action", "GRU and previous action", _OURS, recurrent=True,
            previous_action=True, rnn_class="nn.GRU", recipes_of="lstm-prev-action",
            keys=_RECURRENT_KEYS),
        Arm("gtrxl", "GTrXL (RecurrentPPO)", _OURS, recurrent=True, rnn_class="recurrent.GTrXL",
            keys=_RECURRENT_KEYS),
        Arm("mingru", "minGRU (RecurrentPPO)", _OURS, recurrent=True,
            rnn_class="recurrent.MinGRU", keys=_RECURRENT_KEYS),
        Arm("lru", "LRU (RecurrentPPO)", _OURS, recurrent=True, rnn_class="recurrent.LRU",
            keys=_RECURRENT_KEYS),
        Arm("mlp", "memoryless (SB3 PPO)", _PPO),
        Arm("mlp-prev-action", "previous action only (SB3 PPO)", _PPO, previous_action=True),
        Arm("state", "sees the state (SB3 PPO)", _PPO, sees_state=True, recipes_of="mlp"),
        Arm("frame-stack", "last few frames (SB3 PPO)", _PPO, stacks_frames=True),
        Arm("sb3-contrib", "LSTM (sb3-contrib)", "sb3_contrib:RecurrentPPO", recurrent=True,
            needs="sb3-contrib", actions=_ACTIONS[:3]),  # it crashes on MultiBinary
    )
}  # fmt: skip

#: Argument with which environments tell their true state, ``info["state"]``.
EXPOSE_STATE = "expose_state"

#: What the arms are called in tables and plots.
ARM_LABELS = {name: arm.label for name, arm in ARMS.items()}


def find_arm(name: str) -> Arm:
    """Return the arm of a name, or the user's own for ``module:factory``.

    :raises ValueError: for an unknown name
    """
    if name in ARMS:
        return ARMS[name]
    if ":" in name:
        return Arm(name, name, name, keys=None)
    raise ValueError(
        with_near_names(
            f"arm must be one of {', '.join(ARMS)} or module:factory, got {name!r}", name, ARMS
        )
    )


def check_installed(arm: Arm) -> None:
    """Check that what an arm is made of is there.

    :raises ValueError: with the command that installs it, or with what is wrong with the user's
    """
    if arm.needs is not None:
        module = arm.algorithm.partition(":")[0]
        if importlib.util.find_spec(module) is None:
            raise ValueError(f"arm {arm.name} needs {arm.needs}: pip install {arm.needs}")
    if arm.is_users:
        load_factory(arm)


def load_factory(arm: Arm) -> Callable[..., Any]:
    """Import an arm's algorithm or the user's factory.

    :raises ValueError: if there is none
    """
    module, _, name = arm.algorithm.partition(":")
    try:
        factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"arm {arm.name}: {error}") from error
    if not callable(factory):
        raise ValueError(f"arm {arm.name} must be a factory of an SB3 algorithm, got {factory!r}")
    return factory  # type: ignore[no-any-return]


def keys_not_taken(arm: Arm, keys: frozenset[str]) -> list[str]:
    """Return which of an algorithm's arguments a user's factory does not take."""
    parameters = inspect.signature(load_factory(arm)).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return []
    return sorted(keys - parameters.keys())


def check_keys_of_factory(arm: Arm, keys: frozenset[str]) -> None:
    """Check that a user's factory takes what a recipe hands it.

    :raises ValueError: naming the first key that it does not take
    """
    for key in keys_not_taken(arm, keys):
        parameters = inspect.signature(load_factory(arm)).parameters
        taken = sorted((parameters.keys() - {"env", "seed"}) | RUNNER_KEYS)
        raise ValueError(with_near_names(f"{arm.name} takes no {key!r} in a recipe", key, taken))


def check_spaces(arm: Arm, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
    """Check that an arm can be trained on an environment.

    A user's arm is not checked: what its algorithm can do is its own affair.

    :raises ValueError: with the reason
    """
    if arm.is_users:
        return
    if not isinstance(action, arm.actions):
        names = ", ".join(kind.__name__ for kind in arm.actions)
        raise _cannot_take(arm, f"its actions are {action}, and the algorithm acts in {names}")
    parts = observation.values() if isinstance(observation, spaces.Dict) else [observation]
    for part in parts:
        if not isinstance(part, _ACTIONS):
            raise _cannot_take(arm, f"SB3's networks take no observation of {part}; flatten it "
                               "with gymnasium.wrappers.FlattenObservation")  # fmt: skip
        if arm.stacks_frames and not isinstance(part, spaces.Box):
            raise _cannot_take(arm, f"only Box observations can be stacked, it has {part}")


def check_tells_state(
    arm: Arm, env_id: str, env_kwargs: Mapping[str, Any], state_env: str | None = None
) -> None:
    """Check that an environment can tell its state to an arm that sees it; others need not.

    :param state_env: what shows the state itself, for an arm that acts by it
    :raises ValueError: with the reason
    """
    if arm.privileged or (arm.sees_state and state_env is None):
        try:
            state_kwargs(env_id, env_kwargs)
        except ValueError as error:
            remedy = " (--state-env names one that shows it)" if arm.sees_state else ""
            raise _cannot_take(arm, f"{error}{remedy}") from error


def state_kwargs(env_id: str, env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with which an environment tells its state in the infos.

    :raises ValueError: if it does not
    """
    with_it = {EXPOSE_STATE: True, **env_kwargs}
    try:
        env = gym.make(env_id, **with_it)
    except TypeError:  # it takes no such argument; it may tell all the same
        env, with_it = gym.make(env_id, **env_kwargs), dict(env_kwargs)
    try:
        if "state" not in env.reset()[1]:
            raise ValueError(
                "it sees info['state'], which the environment does not tell: it takes no argument "
                f"{EXPOSE_STATE}"
            )
    finally:
        env.close()
    return with_it


def _cannot_take(arm: Arm, reason: str) -> ValueError:
    return ValueError(f"arm {arm.name} cannot take this environment: {reason}")
