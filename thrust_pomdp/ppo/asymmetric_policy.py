"""An actor-critic policy whose critic sees more than its actor.

The actor is what remains after training, so its critic may use whatever training knows: the true
state beside what the agent remembers. Nothing of it reaches the actor, which has a features
extractor and a memory of its own and never reads the other keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import (
    get_flattened_obs_dim,
    is_image_space,
    preprocess_obs,
)
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, MlpExtractor
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import nn

from thrust_pomdp import gate
from thrust_pomdp.arguments import check_number
from thrust_pomdp.ppo.policies import RecurrentMultiInputActorCriticPolicy
from thrust_pomdp.recurrent.sequences import LSTMState, ResetLayout, RNNStates

#: What only the critic sees, unless said otherwise: the key of ``VecPrivilegedInfo``.
CRITIC_ONLY = ("state",)


@gate.remember
class AsymmetricLstmPolicy(RecurrentMultiInputActorCriticPolicy):
    """Recurrent policy for Dict observations of which some keys are for the critic alone.

    The arrangements, in the words of the other policies:

    * default: actor and critic have separate LSTMs, the critic's reads all keys. A value of both
      history and state is unbiased (Baisero and Amato 2022, https://arxiv.org/abs/2105.11674);
    * ``shared_lstm=True, enable_critic_lstm=False``: the critic's head reads what the actor
      remembers, detached, and the critic's keys beside it;
    * ``shared_lstm_critic_gradient=True``: the same, and the value loss trains the memory too;
    * ``enable_critic_lstm=False``: the critic has no memory and reads all keys (Pinto et al. 2017,
      https://arxiv.org/abs/1710.06542). Under partial observability a value of the state alone is
      biased, since what the actor will do depends on what it remembers.

    ``predict`` takes observations with or without the critic's keys and, where the actor has a
    single key, its plain array: acting and evaluating need no privileged environment. Features
    extractors of actor and critic are separate.

    **Grounding.** With ``grounding_coef`` a linear layer on what the actor remembers learns to tell
    the critic's keys, and its error trains the memory too: a supervised signal at every step, where
    the policy's gradient is a noisy one (Nguyen et al. 2020, belief-grounded networks,
    https://proceedings.mlr.press/v155/nguyen21a.html). Acting does without it.

    >>> import thrust_pomdp
    >>> venv = thrust_pomdp.make_vec_env("FlickeringCartPole-v0", env_kwargs={"expose_state": True})
    >>> venv = thrust_pomdp.VecPrivilegedInfo(venv)
    >>> model = thrust_pomdp.RecurrentPPO("AsymmetricLstmPolicy", venv)
    >>> action, state = model.predict(thrust_pomdp.make_vec_env("FlickeringCartPole-v0").reset())

    :param observation_space: Dict of what the actor and the critic see
    :param action_space: as for the other policies
    :param lr_schedule: as for the other policies
    :param critic_only: keys that the actor never reads
    :param grounding_coef: weight of the mean squared error with which the actor's memory tells the
        critic's keys, in the loss; 0 for no such loss. ``VecPrivilegedInfo`` shows them at unit
        variance
    :param kwargs: of :class:`~thrust_pomdp.ppo.policies.RecurrentActorCriticPolicy`. With a shared
        LSTM the critic needs layers of its own to make something of the state: leave
        ``net_arch["vf"]`` as it is, or give it some.
    :raises ValueError: for observations without these keys or with no others, for
        ``share_features_extractor=True``, and for a ``grounding_coef`` below 0 or with images
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        *,
        critic_only: Sequence[str] = CRITIC_ONLY,
        grounding_coef: float = 0.0,
        **kwargs: Any,
    ) -> None:
        keys = check_critic_only(observation_space, critic_only)
        check_grounding(grounding_coef, observation_space, keys)
        if kwargs.pop("share_features_extractor", False):
            raise ValueError(
                "share_features_extractor=True is refused: an extractor that reads the critic's "
                f"keys {keys} must not feed the actor"
            )
        self.critic_only = keys
        self.grounding_coef = grounding_coef
        self._grounding_loss: th.Tensor | None = None
        #: Whether the critic's head reads what the actor remembers, beside its keys. Needed while
        #: the base class makes the heads, before it knows of LSTMs.
        self.critic_reads_memory = bool(
            kwargs.get("shared_lstm") or kwargs.get("shared_lstm_critic_gradient")
        )
        super().__init__(observation_space, action_space, lr_schedule, **kwargs)

    @property
    def actor_keys(self) -> tuple[str, ...]:
        """Keys of the observation that the actor reads."""
        assert isinstance(self.observation_space, spaces.Dict)
        return tuple(key for key in self.observation_space if key not in self.critic_only)

    @property
    def acting_space(self) -> spaces.Space[Any]:
        """What the actor reads, as an environment without anything privileged gives it."""
        assert isinstance(self.observation_space, spaces.Dict)
        shown = {key: self.observation_space[key] for key in self.actor_keys}
        return spaces.Dict(shown) if len(shown) > 1 else next(iter(shown.values()))

    def make_features_extractor(self) -> BaseFeaturesExtractor:
        """Make the actor's extractor."""
        return self._extractor_of(self.actor_keys)

    def _extractor_of(self, keys: Sequence[str]) -> BaseFeaturesExtractor:
        assert isinstance(self.observation_space, spaces.Dict)
        space = spaces.Dict([(key, self.observation_space[key]) for key in keys])
        inner = self.features_extractor_class(space, **self.features_extractor_kwargs)
        return self._encoded(KeysExtractor(space, inner))

    def _build(self, lr_schedule: Schedule) -> None:
        """Create the critic's extractor, then the heads."""
        assert isinstance(self.observation_space, spaces.Dict)
        keys = self.critic_only if self.critic_reads_memory else tuple(self.observation_space)
        self.share_features_extractor = False
        self.vf_features_extractor = self._extractor_of(keys)
        super()._build(lr_schedule)

    def _build_mlp_extractor(self) -> None:
        """Create the heads; beside the actor's memory the critic's has room for its keys."""
        super()._build_mlp_extractor()
        if self.critic_reads_memory:
            width = self.lstm_output_dim + int(self.vf_features_extractor.features_dim)
            wider = MlpExtractor(
                width,
                net_arch=self.net_arch,
                activation_fn=self.activation_fn,
                device=self.device,
            )
            if self.layer_norm:
                wider.value_net.insert(0, nn.LayerNorm(width))
            self.mlp_extractor.value_net = wider.value_net
            self.mlp_extractor.latent_dim_vf = wider.latent_dim_vf
        if self.grounding_coef:
            assert isinstance(self.observation_space, spaces.Dict)
            told = [get_flattened_obs_dim(self.observation_space[key]) for key in self.critic_only]
            self.grounding_net = nn.Linear(self.lstm_output_dim, sum(told))

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        return {**data, "critic_only": self.critic_only, "grounding_coef": self.grounding_coef}

    def _window_memories(
        self, obs: PyTorchObs, initial_state: RNNStates | None, layout: ResetLayout
    ) -> tuple[th.Tensor, th.Tensor]:
        """Run the memory over whole windows, and see how well the actor's tells the state."""
        memory_pi, memory_vf = super()._window_memories(obs, initial_state, layout)
        if self.grounding_coef:
            error = self.grounding_net(memory_pi) - self._told(obs)
            self._grounding_loss = self.grounding_coef * error.square().mean()
        return memory_pi, memory_vf

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the loss of the windows evaluated last: no copy can be made of a graph."""
        return {**vars(self), "_grounding_loss": None}

    def _told(self, obs: Any) -> th.Tensor:
        """Return the critic's keys of whole windows side by side, a row a step."""
        assert isinstance(self.observation_space, spaces.Dict)
        parts = []
        for key in self.critic_only:
            part = preprocess_obs(obs[key].flatten(end_dim=1), self.observation_space[key])
            assert isinstance(part, th.Tensor)
            parts.append(part.flatten(start_dim=1))
        return th.cat(parts, dim=1)

    def auxiliary_loss(self) -> th.Tensor | None:
        """Return the grounding loss of the windows evaluated last, None without grounding.

        :raises ValueError: if a subclass evaluates windows in a way of its own
        """
        if not self.grounding_coef:
            return None
        loss, self._grounding_loss = self._grounding_loss, None
        if loss is None:
            raise ValueError(
                f"grounding_coef must be 0 for a policy that evaluates windows in its own way, as "
                f"{type(self).__name__} does, got {self.grounding_coef}"
            )
        return loss

    def _critic_memory(self, memory_pi: th.Tensor, vf_features: th.Tensor) -> th.Tensor:
        """Return what a critic without an LSTM of its own reads."""
        memory = super()._critic_memory(memory_pi, vf_features)
        return th.cat((memory, vf_features), dim=1) if self.critic_reads_memory else memory

    def predict_values(  # type: ignore[override]
        self, obs: PyTorchObs, lstm_states: LSTMState, episode_starts: th.Tensor
    ) -> th.Tensor:
        """Return the values of the observations, all keys of them, ``[n_envs, 1]``."""
        if not self.critic_reads_memory:
            return super().predict_values(obs, lstm_states, episode_starts)
        pi_features, vf_features = self._both_features(obs)
        memory, _ = self._process_sequence(
            pi_features, lstm_states, episode_starts, self.lstm_actor
        )
        latent = self.mlp_extractor.forward_critic(self._critic_memory(memory, vf_features))
        values: th.Tensor = self.value_net(latent)
        return values

    def _checked_keys(self, observation: Any) -> Any:
        """Reduce what ``predict`` is given to what the actor reads."""
        actor_keys = self.actor_keys
        if not isinstance(observation, dict) and len(actor_keys) == 1:
            return {actor_keys[0]: observation}
        given = list(observation) if isinstance(observation, dict) else type(observation).__name__
        if not set(actor_keys) <= set(given) <= {*actor_keys, *self.critic_only}:
            raise ValueError(
                f"observation must be a dict with the keys {list(actor_keys)}, with or without the "
                f"critic's {list(self.critic_only)}, got {given}"
            )
        return {key: observation[key] for key in actor_keys}


class KeysExtractor(BaseFeaturesExtractor):
    """A features extractor that is shown some keys of the observation and no others.

    :param observation_space: Dict of these keys
    :param inner: the extractor
    """

    def __init__(self, observation_space: spaces.Dict, inner: BaseFeaturesExtractor) -> None:
        super().__init__(observation_space, inner.features_dim)
        self.keys = tuple(observation_space)
        self.inner = inner

    def forward(self, observations: dict[str, th.Tensor]) -> th.Tensor:
        """Extract features, ``[rows, features]``.

        :raises ValueError: for observations without one of the keys
        """
        missing = [key for key in self.keys if key not in observations]
        if missing:
            raise ValueError(
                f"observation must have the keys {list(self.keys)}, {missing} are missing: values "
                "need what the critic sees, only acting can do without"
            )
        features: th.Tensor = self.inner({key: observations[key] for key in self.keys})
        return features


def check_critic_only(space: spaces.Space[Any], critic_only: Any) -> tuple[str, ...]:
    """Return the keys that only the critic sees.

    :param space: the observation space
    :param critic_only: the keys
    :raises ValueError: if they are no keys of it, or all of them
    """
    is_sequence = isinstance(critic_only, (tuple, list))
    if not is_sequence or not critic_only or not all(isinstance(key, str) for key in critic_only):
        raise ValueError(f'critic_only must be keys, such as ("state",), got {critic_only!r}')
    keys = tuple(critic_only)
    shown = list(space) if isinstance(space, spaces.Dict) else None
    if shown is None or not set(keys) <= set(shown):
        raise ValueError(
            f"observation_space must be a Dict with the keys of critic_only, {list(keys)}, got "
            f"{space if shown is None else shown}: put VecPrivilegedInfo around the environment, "
            "or name keys that it has (policy_kwargs=dict(critic_only=...))"
        )
    if set(keys) == set(shown):
        raise ValueError(f"critic_only must leave the actor a key to read, got {list(keys)}")
    return keys


def check_grounding(coefficient: Any, space: Any, keys: Sequence[str]) -> None:
    """Check the weight of the grounding loss.

    :param coefficient: the weight
    :param space: the observation space
    :param keys: that only the critic sees
    :raises ValueError: if it is no number of at least 0, or there are images to tell
    """
    if not 0 <= check_number("grounding_coef", coefficient) < math.inf:
        raise ValueError(f"grounding_coef must be a number of at least 0, got {coefficient!r}")
    images = [key for key in keys if is_image_space(space[key], normalized_image=True)]
    if coefficient and images:
        raise ValueError(
            f"grounding_coef must be 0 where the critic's keys are images, as {images} are: a "
            f"linear layer would tell pixels; name vectors in critic_only, got {coefficient}"
        )


def explain_missing_keys(error: ValueError, policy_class: Any, policy_kwargs: Any) -> None:
    """Say what to do where a model with a privileged critic was to go on in another environment.

    :param error: what loading raised; anything but other observations is not looked into
    :param policy_class: of the model
    :param policy_kwargs: of the model
    :raises ValueError: naming the remedy, if it is that
    """
    if "Observation spaces do not match" not in str(error):
        return
    if isinstance(policy_class, type) and issubclass(policy_class, AsymmetricLstmPolicy):
        keys = list(policy_kwargs.get("critic_only", CRITIC_ONLY))
        raise ValueError(
            f"env must have the observations of the training, the critic's keys {keys} among them: "
            "put VecPrivilegedInfo around it to go on training. Acting and evaluating need no env: "
            f"load without one, and predict() takes what the actor sees ({error})"
        ) from error
