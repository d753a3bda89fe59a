"""Recipes: how an arm is trained on an environment, as data in rl-zoo's words.

The tuned ones are in ``hyperparams/ARM.yml``, a recipe per environment id, since one tuned for
another contestant would be an unfair baseline. They are for this package's tasks only: other tasks
get the general one, ``default``, whatever they are called. The matched ones
(``hyperparams/matched.yml``) give every arm the same learning rate, schedule, epochs, minibatches,
network widths and normalisation.

Keys are the algorithm's arguments, and:

``n_timesteps``
    environment steps, all environments together
``n_envs``
    environments side by side
``normalize``
    arguments of ``VecNormalizeVisible``, or true for its defaults, which normalise rewards too;
    images are left as they are, unless ``norm_obs`` or ``norm_obs_keys`` say else
``reward_scale``
    factor on the rewards the learner sees; results are reported unscaled
``frame_stack``
    frames shown at once (the arm ``frame-stack`` and arms of your own)
``previous_action``
    show the last action (arms of your own; the arms here do or do not by what they are)
``policy``
    the policy's name; by default the one that fits the observations
``average_last``
    share of the steps at the end over whose updates weights are averaged, such as 0.2

``learning_rate``, ``clip_range`` and ``clip_range_vf`` may be ``lin_START``, which falls to 0, or
``lin_START_END``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from thrust_pomdp.arguments import check_finite_number, check_flag, check_positive
from thrust_pomdp.envs.known_tasks import against_known_task
from thrust_pomdp.errors import with_near_names
from thrust_pomdp.experiment.arms import (
    ARM_LABELS,
    ARMS,
    RUNNER_KEYS,
    RUNNERS_ARGUMENTS,
    Arm,
    Memory,
    check_keys_of_factory,
    find_arm,
    keys_not_taken,
)
from thrust_pomdp.experiment.recipe_checks import (
    NORMALIZE_KEYS,
    check_hyperparameters,
    check_normalizer,
    check_whole,
)
from thrust_pomdp.experiment.recipe_values import (
    SCHEDULED,
    parse_dict,
    parse_literal,
    parse_number,
    parse_schedule,
)

__all__ = [
    "ARM_LABELS",
    "Recipe",
    "matched_recipe_for",
    "read_recipes",
    "recipe_for",
    "why_general",
]

_WRAPPED = (
    "what it changes would be another environment for this arm than for the others. Register the "
    "wrapped one in a module of yours, gymnasium.register('Mine-v0', factory), and name it for all "
    "of them: --env module:Mine-v0"
)
_RUNNERS = "the runner does that alike for every arm"

#: Keys of rl-zoo's that there are none of here, and why.
_ZOO_KEYS = {
    "env_wrapper": _WRAPPED,
    "vec_env_wrapper": f"{_WRAPPED}; frames are stacked by the arm frame-stack",
    "env_kwargs": "arguments of the environment are the same for every arm: --env-kwargs",
    "callback": _RUNNERS,
    "monitor_kwargs": _RUNNERS,
    "vec_env_class": _RUNNERS,
}


@dataclass(frozen=True)
class Recipe:
    """How one arm is trained.

    :param n_timesteps: environment steps, all environments together
    :param n_envs: environments side by side
    :param normalize: arguments of ``VecNormalizeVisible``; None for no normaliser
    :param reward_scale: factor on the rewards the learner sees; results are reported unscaled
    :param frame_stack: frames shown at once
    :param previous_action: whether the last action is shown
    :param policy: the policy's name; None for the one that fits the observations
    :param average_last: share of the steps at the end over whose updates weights are averaged
        (:class:`~thrust_pomdp.ppo.averaging.AverageWeights`); None for the last update's
    :param hyperparameters: arguments of the algorithm, schedules as text
    """

    n_timesteps: int
    n_envs: int = 1
    normalize: Mapping[str, Any] | None = None
    reward_scale: float = 1.0
    frame_stack: int = 1
    previous_action: bool = False
    policy: str | None = None
    average_last: float | None = None
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_mapping(cls, arm: Arm, mapping: Mapping[str, Any]) -> Recipe:
        """Read a recipe.

        :param arm: whose it is
        :param mapping: keys and values as in the files
        :raises ValueError: for keys the arm does not take, values that cannot be, or no budget
        """
        _check_keys(arm, mapping)
        if "n_timesteps" not in mapping:
            raise ValueError(f"a recipe needs n_timesteps, that of {arm.name} has none")
        others = {key: value for key, value in mapping.items() if key not in RUNNER_KEYS}
        return cls(
            n_timesteps=check_whole("n_timesteps", mapping["n_timesteps"]),
            n_envs=check_whole("n_envs", mapping.get("n_envs", 1)),
            normalize=_normalize(mapping.get("normalize")),
            reward_scale=_reward_scale(mapping.get("reward_scale", 1.0)),
            frame_stack=check_whole("frame_stack", mapping.get("frame_stack", 1)),
            previous_action=arm.previous_action
            or check_flag("previous_action", mapping.get("previous_action", False)),
            policy=_policy(mapping.get("policy")),
            average_last=_average_last(mapping.get("average_last")),
            hyperparameters=_hyperparameters(arm, others),
        )

    @classmethod
    def from_data(cls, arm: Arm, data: Mapping[str, Any]) -> Recipe:
        """Read what :meth:`as_mapping` returned.

        :raises ValueError: as :meth:`from_mapping`
        """
        fixed = RUNNER_KEYS - arm.recipe_keys
        return cls.from_mapping(arm, {key: data[key] for key in data if key not in fixed})

    def as_mapping(self) -> dict[str, Any]:
        """Return the recipe as data: what the files contain, with all defaults said."""
        mapping = asdict(self)
        hyperparameters = mapping.pop("hyperparameters")
        return {**mapping, **hyperparameters}

    def as_entry(self, arm: Arm) -> dict[str, Any]:
        """Return the recipe as an entry of a file: without what the arm decides."""
        fixed = RUNNER_KEYS - arm.recipe_keys
        mapping = self.as_mapping()
        absent = {k for k in ("normalize", "policy", "average_last") if mapping[k] is None}
        return {key: value for key, value in mapping.items() if key not in fixed | absent}

    def with_changes(self, arm: Arm, changes: Mapping[str, Any]) -> Recipe:
        """Return the recipe with some keys changed.

        :raises ValueError: as :meth:`from_mapping`
        """
        _check_keys(arm, changes)
        return Recipe.from_data(arm, {**self.as_mapping(), **changes})


def _check_keys(arm: Arm, mapping: Mapping[str, Any]) -> None:
    unknown = frozenset(mapping) - arm.recipe_keys
    for key in sorted(unknown):
        if key in RUNNERS_ARGUMENTS:
            raise ValueError(f"{key!r} is no key of a recipe: the runner gives it to every arm")
        if key in _ZOO_KEYS:
            raise ValueError(f"{key!r} is no key of a recipe: {_ZOO_KEYS[key]}")
        if arm.is_users:
            continue
        if key in ("previous_action", "frame_stack"):
            raise ValueError(f"{key!r} is no key of arm {arm.name}'s recipes: what an arm sees is "
                             "what it is; there are arms that see more")  # fmt: skip
        raise _unknown_key(arm, key)
    if arm.is_users and unknown:
        check_keys_of_factory(arm, unknown)


def _unknown_key(arm: Arm, key: str) -> ValueError:
    message = f"arm {arm.name} takes no {key!r} in a recipe"
    takers = [name for name, other in ARMS.items() if key in other.recipe_keys]
    if takers:
        return ValueError(f"{message}; {takers[0]}.{key} changes it for {takers[0]} alone")
    return ValueError(with_near_names(message, key, arm.recipe_keys))


def _reward_scale(value: Any) -> float:
    return check_positive("reward_scale", check_finite_number("reward_scale", parse_number(value)))


def _policy(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value.isidentifier()):
        return value
    raise ValueError(f"policy must be the name of one, got {value!r}")


def _average_last(value: Any) -> float | None:
    if value is None:
        return None
    share = check_finite_number("average_last", parse_number(value))
    if not 0 < share <= 1:
        raise ValueError(f"average_last must be above 0 and at most 1, got {value!r}")
    return share


def _normalize(value: Any) -> dict[str, Any] | None:
    if isinstance(value, str):
        value = parse_literal(value)
    if value is None or value is False:
        return None
    options = {} if value is True else parse_dict("normalize", value)
    for key in options:
        if key not in NORMALIZE_KEYS:
            message = f"normalize takes no {key!r}"
            raise ValueError(with_near_names(message, str(key), NORMALIZE_KEYS))
    options = {key: parse_number(given) for key, given in options.items()}
    check_normalizer(options)
    return options


def _hyperparameters(arm: Arm, mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Check values and read what is written as ``dict(...)``; a user's arm checks its own.

    What remembers is what the arm is, whatever its recipe says.
    """
    values = dict(mapping)
    for key in SCHEDULED:
        if key in values:
            parsed = parse_schedule(key, values[key])
            values[key] = parsed if isinstance(parsed, float) else values[key]
    if values.get("policy_kwargs") is not None:
        values["policy_kwargs"] = parse_dict("policy_kwargs", values["policy_kwargs"])
    if arm.rnn_class is not None:
        kwargs = dict(values.get("policy_kwargs") or {}, rnn_class=arm.rnn_class)
        kwargs.pop("forget_bias", None)  # of an LSTM's recipe: nothing else has such a gate
        values["policy_kwargs"] = kwargs
    values = {key: parse_number(value) for key, value in values.items()}
    return values if arm.is_users else check_hyperparameters(values)


def recipe_for(arm: str, env_id: str) -> Recipe:
    """Return the tuned recipe of an arm on an environment, or its general one.

    Where it is the general one :func:`why_general` says why.

    :param arm: its name, or ``module:factory``
    :param env_id: an environment id, with or without its ``module:`` prefix
    :raises ValueError: for an unknown arm
    """
    found = find_arm(arm)
    recipes = _packaged((found.recipes_of or found.name) if found.name in ARMS else "own")
    return Recipe.from_mapping(found, _packaged_of_env(recipes, env_id) or {})


def matched_recipe_for(arm: str, env_id: str, memory: Memory = "unknown") -> Recipe:
    """Return the recipe in which all arms agree.

    Learning rate, schedule, epochs, steps per minibatch, discounting, normalisation, budget and the
    widths of the networks are the same; a recurrent arm has an LSTM where a memoryless one has its
    first dense layer, of the same width. An arm of the user's own gets what its factory takes of
    that (:func:`unmatched_keys`), and a network where it is known of which kind.

    :param arm: its name, or ``module:factory``
    :param env_id: an environment id, with or without its ``module:`` prefix
    :param memory: what an arm of the user's own can remember
    :raises ValueError: for an unknown arm
    """
    found, shared = _matched(arm, env_id, memory)
    left_out = unmatched_keys(arm, env_id, memory)
    return Recipe.from_mapping(
        found, {key: value for key, value in shared.items() if key not in left_out}
    )


def unmatched_keys(arm: str, env_id: str, memory: Memory = "unknown") -> list[str]:
    """Return the keys of a matched recipe that an arm of the user's own does not take.

    :param arm: its name, or ``module:factory``
    :param env_id: an environment id
    :param memory: what the arm can remember
    """
    found, shared = _matched(arm, env_id, memory)
    return keys_not_taken(found, frozenset(shared) - RUNNER_KEYS) if found.is_users else []


def _matched(arm: str, env_id: str, memory: Memory) -> tuple[Arm, dict[str, Any]]:
    """Return an arm and all that a matched recipe says of such arms."""
    found = find_arm(arm)
    shared = dict(_packaged_of_env(_packaged("matched"), env_id) or {})
    recurrent, memoryless = shared.pop("recurrent"), shared.pop("memoryless")
    if found.recurrent or memory == "recurrent":
        shared |= recurrent
    elif not found.is_users or memory == "none":
        shared |= memoryless
    if found.stacks_frames:
        shared["frame_stack"] = recipe_for(arm, env_id).frame_stack
    return found, shared


def why_general(env_id: str) -> str | None:
    """Say why an environment gets the general recipes; None where some were tuned for it.

    They were tuned for the task that is registered under an id when this package is imported. What
    somebody else registers under the same name is another task.

    :param env_id: an environment id, with or without its ``module:`` prefix
    """
    return against_known_task(env_id)


def _packaged_of_env(recipes: Mapping[str, Any], env_id: str) -> Mapping[str, Any] | None:
    return _of_env(recipes, env_id if why_general(env_id) is None else "default")


def _of_env(recipes: Mapping[str, Any], env_id: str) -> Mapping[str, Any] | None:
    """Find a recipe by the whole id, by the id without its module, or the general one."""
    names = (env_id, env_id.rpartition(":")[2], "default")
    return next((recipes[name] for name in names if name in recipes), None)


@functools.cache
def _packaged(name: str) -> dict[str, dict[str, Any]]:
    text = resources.files("thrust_pomdp.experiment").joinpath(f"hyperparams/{name}.yml")
    loaded: dict[str, dict[str, Any]] = parse_yaml(text.read_text(encoding="utf-8"), f"{name}.yml")
    return loaded


def parse_yaml(text: str, name: str) -> Any:
    """Read YAML.

    :param name: of the file, for messages
    :raises ImportError: with the command that installs PyYAML
    :raises ValueError: if it is no YAML
    """
    try:
        import yaml
    except ImportError:
        raise ImportError(
            "recipes are YAML files, which need PyYAML: pip install 'thrust-pomdp[compare]'"
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{name} is no YAML: {error}") from None


def read_yaml(path: Path) -> Any:
    """Read a YAML file of the user's.

    :raises OSError: if it cannot be read
    :raises ValueError: if it is no YAML, naming it
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be text in UTF-8, got {error}") from None
    return parse_yaml(text, str(path))


def read_recipes(path: Path, arms: Iterable[str], env_id: str) -> dict[str, Recipe]:
    """Read a user's file of recipes: by arm and environment id, or as rl-zoo's by id alone.

    :param path: the file
    :param arms: the arms to be trained
    :param env_id: the environment
    :return: by arm; arms that the file says nothing of are left out
    :raises ValueError: if it is no such file, or says nothing of the environment
    """
    loaded = read_yaml(path)
    if not isinstance(loaded, dict) or not all(isinstance(v, dict) for v in loaded.values()):
        raise ValueError(f"{path} must map an arm's name to environment ids and these to recipes")
    wanted = list(arms)
    by_arm = any(name in ARMS or name in wanted for name in loaded)
    found = {}
    for name in wanted:
        recipes = loaded.get(name) if by_arm else loaded
        mapping = None if recipes is None else _of_env(recipes, env_id)
        if mapping is not None:
            found[name] = _read(path, name, mapping)
    if not found:
        raise ValueError(
            f"{path} has no recipe of {', '.join(wanted)} for {env_id}, and none named default"
        )
    return found


def _read(path: Path, arm: str, mapping: Any) -> Recipe:
    if not isinstance(mapping, Mapping):
        raise ValueError(f"{path}: the recipe of {arm} must be a mapping, got {mapping!r}")
    try:
        return Recipe.from_mapping(find_arm(arm), mapping)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
