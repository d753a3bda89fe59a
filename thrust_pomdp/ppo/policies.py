"""Actor-critic policies with a recurrent layer between features and heads.

Arguments, module names and methods are those of ``sb3_contrib``'s recurrent policies, so that
programs and weights carry over. There are two passes: one step at a time while collecting and
acting (:meth:`RecurrentActorCriticPolicy.forward`, ``predict``), and whole windows at once while
training (:meth:`RecurrentActorCriticPolicy.evaluate_sequences`). Both compute the same numbers.
"""

from __future__ import annotations

import copy
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import (
    Distribution,
)
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import (
    CombinedExtractor,
    NatureCNN,
)
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import nn

from thrust_pomdp import gate
from thrust_pomdp.observations import map_obs
from thrust_pomdp.ppo.channels_last import in_channels_last
from thrust_pomdp.ppo.distributions import (
    is_plain_object,
)
from thrust_pomdp.ppo.prediction import PredictingPolicy
from thrust_pomdp.recurrent.memory import memory_sequences, memory_step
from thrust_pomdp.recurrent.protocol import Memory
from thrust_pomdp.recurrent.sequences import (
    LSTMState,
    ResetLayout,
    RNNStates,
    as_windows,
    check_windows,
)

#: Methods that say what evaluating windows is.
_EVALUATION = ("evaluate_actions", "_process_sequence", "_recur")


@gate.remember
class RecurrentActorCriticPolicy(PredictingPolicy):
    """Recurrent actor-critic policy for vector observations (``"MlpLstmPolicy"``).

    Actor and critic have separate LSTMs by default. The other arrangements:

    * ``shared_lstm=True, enable_critic_lstm=False``: one LSTM, trained by the actor alone;
    * ``shared_lstm_critic_gradient=True``: one LSTM, trained by both;
    * ``enable_critic_lstm=False``: the critic has no memory.

    With ``ortho_init`` each square block of the recurrent weights is orthogonal with gain 1, the
    input blocks are orthogonal and the biases zero (``sb3_contrib`` leaves torch's default).

    :param observation_space: observation space
    :param action_space: Box, Discrete, MultiDiscrete or MultiBinary
    :param lr_schedule: learning rate schedule; ``lr_schedule(1)`` is the initial one
    :param net_arch: layers of the heads after the memory, ``dict(pi=[64, 64], vf=[64, 64])`` by
        default (none after a CNN); ``encoder=[64]`` adds layers before the memory
    :param activation_fn: activation of the encoder and the heads
    :param ortho_init: orthogonal initialisation
    :param use_sde: generalised state-dependent exploration
    :param log_std_init: initial log standard deviation
    :param full_std: see ``stable_baselines3``
    :param use_expln: see ``stable_baselines3``
    :param squash_output: see ``stable_baselines3``
    :param features_extractor_class: what comes before the memory
    :param features_extractor_kwargs: its arguments
    :param share_features_extractor: one extractor for actor and critic
    :param normalize_images: divide images by 255
    :param optimizer_class: ``th.optim.Adam`` by default; its fused form is used where none is named
    :param optimizer_kwargs: its arguments, without the learning rate
    :param lstm_hidden_size: units of each LSTM layer
    :param n_lstm_layers: number of LSTM layers
    :param shared_lstm: one LSTM for actor and critic
    :param enable_critic_lstm: a separate LSTM for the critic
    :param lstm_kwargs: ``bias`` and ``dropout`` of ``nn.LSTM``; of ``nn.RNN`` ``nonlinearity`` too;
        whatever a memory of one's own takes
    :param rnn_class: ``nn.LSTM``, ``nn.GRU``, ``nn.RNN``, or a subclass of
        :class:`thrust_pomdp.recurrent.Memory`; the names with ``lstm`` in them, which are
        ``sb3_contrib``'s, then mean that memory
    :param forget_bias: initial bias of an LSTM's forget gate (the sum of torch's two)
    :param layer_norm: layer normalisation of what the memory gives to each head
    :param shared_lstm_critic_gradient: let the value loss train the shared LSTM too; implies
        ``shared_lstm=True`` and ``enable_critic_lstm=False``
    :raises ValueError: for combinations or ``lstm_kwargs`` that cannot work, with the reason
    """

    @staticmethod
    def _process_sequence(
        features: th.Tensor,
        lstm_states: LSTMState,
        episode_starts: th.Tensor,
        lstm: nn.Module,
    ) -> tuple[th.Tensor, LSTMState]:
        """Run the memory over the features: one step, or whole sequences where there are more rows.

        :param features: ``[n_seq * n_steps, features]``, sequence by sequence
        :param lstm_states: the states that enter, each ``[n_layers, n_seq, hidden]``
        :param episode_starts: ``[n_seq * n_steps]``, non-zero where an episode starts
        :param lstm: the recurrent layer
        :return: outputs ``[n_seq * n_steps, hidden]`` and the states that leave
        """
        n_seq = lstm_states[0].shape[1]
        if len(episode_starts) != len(features) or len(features) % n_seq != 0:
            raise ValueError(
                f"episode_starts must have one entry per observation, and observations must be "
                f"whole sequences of as many environments as lstm_states, got {len(features)} "
                f"observations, {len(episode_starts)} episode starts and states of {n_seq}"
            )
        if len(features) == n_seq:
            return memory_step(lstm, features, lstm_states, episode_starts != 0)
        starts = episode_starts.reshape(n_seq, -1)
        layout = ResetLayout.from_episode_starts(starts, features.device)
        sequences = features.reshape(n_seq, -1, features.shape[-1])
        output, lstm_states = memory_sequences(lstm, sequences, layout, lstm_states)
        return output.flatten(end_dim=1), lstm_states

    def _both_features(self, obs: PyTorchObs) -> tuple[th.Tensor, th.Tensor]:
        """Return the actor's and the critic's features, ``[rows, features]``."""
        if self.against("extract_features") is None:
            obs = in_channels_last(obs, self.pi_features_extractor, self.vf_features_extractor)
        features = self.extract_features(obs)
        if isinstance(features, tuple):
            return _rows(features[0]), _rows(features[1])
        features = _rows(features)
        return features, features

    def _recur(
        self, obs: PyTorchObs, lstm_states: RNNStates, episode_starts: th.Tensor
    ) -> tuple[th.Tensor, th.Tensor, RNNStates]:
        """Return what actor and critic remember, and the states that leave."""
        pi_features, vf_features = self._both_features(obs)
        memory_pi, states_pi = self._process_sequence(
            pi_features, lstm_states.pi, episode_starts, self.lstm_actor
        )
        if self.lstm_critic is not None:
            memory_vf, states_vf = self._process_sequence(
                vf_features, lstm_states.vf, episode_starts, self.lstm_critic
            )
            return memory_pi, memory_vf, RNNStates(states_pi, states_vf)
        return (
            memory_pi,
            self._critic_memory(memory_pi, vf_features),
            RNNStates(states_pi, states_pi),
        )

    def _critic_memory(self, memory_pi: th.Tensor, vf_features: th.Tensor) -> th.Tensor:
        """Return what a critic without an LSTM of its own reads."""
        if self.critic is not None:
            memory: th.Tensor = self.critic(vf_features)
            return memory
        return memory_pi if self.shared_lstm_critic_gradient else memory_pi.detach()

    def _heads(self, memory_pi: th.Tensor, memory_vf: th.Tensor) -> tuple[Distribution, th.Tensor]:
        """Return the action distribution and the values, ``[rows, 1]``."""
        latent_pi = self.mlp_extractor.forward_actor(memory_pi)
        latent_vf = self.mlp_extractor.forward_critic(memory_vf)
        return self._get_action_dist_from_latent(latent_pi), self.value_net(latent_vf)

    def forward(  # type: ignore[override]
        self,
        obs: PyTorchObs,
        lstm_states: RNNStates | None = None,
        episode_starts: th.Tensor | None = None,
        deterministic: bool = False,
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor, RNNStates]:
        """Act: one step for every environment.

        :param obs: ``[n_envs, *obs_shape]``
        :param lstm_states: the states before the step
        :param episode_starts: ``[n_envs]``, non-zero where the observation starts an episode
        :param deterministic: take the most likely action instead of sampling
        :return: actions ``[n_envs, *action_shape]``, values ``[n_envs, 1]``, log-probabilities
            ``[n_envs]``, and the states after the step
        :raises TypeError: without states or episode starts, which programs for policies without a
            memory leave out
        """
        if lstm_states is None or episode_starts is None:
            raise TypeError(_NO_STATES)
        memory_pi, memory_vf, lstm_states = self._recur(obs, lstm_states, episode_starts)
        distribution, values = self._heads(memory_pi, memory_vf)
        actions = distribution.get_actions(deterministic=deterministic)
        log_prob = distribution.log_prob(actions)
        actions = actions.reshape((-1, *self.action_space.shape))  # type: ignore[misc]
        return actions, values, log_prob, lstm_states

    def evaluate_sequences(
        self,
        obs: PyTorchObs,
        actions: th.Tensor,
        initial_state: RNNStates | None,
        episode_starts: th.Tensor | ResetLayout,
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        """Evaluate the actions of whole windows, in one dense pass.

        With unchanged weights this returns the values and log-probabilities met while collecting.

        :param obs: ``[n_envs, n_steps, *obs_shape]``, or a dict of such
        :param actions: ``[n_envs, n_steps, action_dim]``
        :param initial_state: the states that entered step 0; zeros when None
        :param episode_starts: ``[n_envs, n_steps]``, or the layout made from them
        :return: values, log-probabilities and entropy, each ``[n_envs, n_steps]``; the entropy is
            None where it has no closed form
        """
        n_envs, n_steps = actions.shape[:2]
        check_windows(obs, n_envs, n_steps, initial_state, episode_starts)
        if isinstance(episode_starts, th.Tensor):
            episode_starts = ResetLayout.from_episode_starts(episode_starts, actions.device)
        if self._evaluates_its_own_way():
            return self._evaluate_flat(obs, actions, initial_state, episode_starts)
        distribution, values = self._window_heads(obs, initial_state, episode_starts)
        return self._evaluated(distribution, values, actions)

    def _evaluated(
        self, distribution: Distribution, values: th.Tensor, actions: th.Tensor
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        """Return values, log-probabilities and entropy of windows, each ``[n_envs, n_steps]``."""
        log_prob = distribution.log_prob(self._distribution_actions(actions.flatten(end_dim=1)))
        return as_windows(values, log_prob, distribution.entropy(), len(actions))

    def window_heads(
        self, obs: PyTorchObs, initial_state: RNNStates | None, layout: ResetLayout
    ) -> tuple[Distribution, th.Tensor] | None:
        """Return what :meth:`evaluate_sequences` evaluates actions by, for a loss that does it.

        :return: distribution and values, ``[n_envs * n_steps, 1]``; None where a subclass evaluates
            windows in its own way
        """
        if self.against_windows() is not None:
            return None
        return self._window_heads(obs, initial_state, layout)

    def against_windows(self) -> str | None:
        """Say why windows cannot be evaluated but by :meth:`evaluate_sequences`."""
        return self.against("evaluate_sequences", *_EVALUATION)

    def _window_heads(
        self, obs: PyTorchObs, initial_state: RNNStates | None, layout: ResetLayout
    ) -> tuple[Distribution, th.Tensor]:
        """Run memory and heads over whole windows: distribution and values, ``[rows, 1]``."""
        memories = self._window_memories(obs, initial_state, layout)
        # Distribution objects keep what they were last given, here a whole autograd graph. Those of
        # a user's own may be known to others by their identity.
        kept = self.action_dist
        if is_plain_object(kept):
            self.action_dist = copy.copy(kept)
        try:
            return self._heads(*memories)
        finally:
            self.action_dist = kept

    def _window_memories(
        self, obs: PyTorchObs, initial_state: RNNStates | None, layout: ResetLayout
    ) -> tuple[th.Tensor, th.Tensor]:
        """Run the memory over whole windows: what actor's and critic's heads read, a row a step."""
        pi_features, vf_features = self._both_features(
            map_obs(lambda part: part.flatten(end_dim=1), obs)
        )

        def remember(lstm: nn.Module, features: th.Tensor, states: LSTMState | None) -> th.Tensor:
            sequences = features.view(*layout.episode_starts.shape, -1)
            return memory_sequences(lstm, sequences, layout, states)[0].flatten(end_dim=1)

        if initial_state is None and not self._has_torch_layers():
            initial_state = self.zero_states(len(layout.episode_starts))
        pi_state, vf_state = initial_state or (None, None)
        memory_pi = remember(self.lstm_actor, pi_features, pi_state)
        if self.lstm_critic is not None:
            memory_vf = remember(self.lstm_critic, vf_features, vf_state)
        else:
            memory_vf = self._critic_memory(memory_pi, vf_features)
        return memory_pi, memory_vf

    def _has_torch_layers(self) -> bool:
        """Tell whether the layers themselves know what zeros to start from."""
        return all(
            isinstance(m, (nn.RNNBase, Memory, type(None)))
            for m in (self.lstm_actor, self.lstm_critic)
        )

    def auxiliary_loss(self) -> th.Tensor | None:
        """Return what a subclass adds to the loss of the windows evaluated last; here nothing."""
        return None

    def _evaluates_its_own_way(self) -> bool:
        """Tell whether a subclass changed, as for ``sb3_contrib``, what evaluating windows is."""
        return self.against(*_EVALUATION) is not None

    def against(self, *names: str) -> str | None:
        """Say which of these methods, for which faster ways stand in, is not as written here."""
        return gate.against_methods(self, names, RecurrentActorCriticPolicy)

    def _evaluate_flat(
        self,
        obs: PyTorchObs,
        actions: th.Tensor,
        initial_state: RNNStates | None,
        layout: ResetLayout,
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        """Evaluate windows through :meth:`evaluate_actions`."""
        n_envs = len(actions)
        values, log_prob, entropy = self.evaluate_actions(
            map_obs(lambda part: part.flatten(end_dim=1), obs),
            self._distribution_actions(actions.flatten(end_dim=1)),
            self.zero_states(n_envs) if initial_state is None else initial_state,
            layout.episode_starts.flatten().float(),
        )
        return as_windows(values, log_prob, entropy, n_envs)

    def _distribution_actions(self, actions: th.Tensor) -> th.Tensor:
        """Bring stored actions ``[rows, action_dim]`` into the form SB3's distributions take."""
        if isinstance(self.action_space, spaces.Discrete):
            return actions.long().flatten()
        return actions.float()

    def evaluate_actions(  # type: ignore[override]
        self,
        obs: PyTorchObs,
        actions: th.Tensor,
        lstm_states: RNNStates,
        episode_starts: th.Tensor,
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        """Evaluate actions in ``sb3_contrib``'s flat form: sequences one after the other.

        :param obs: ``[n_seq * n_steps, *obs_shape]``
        :param actions: ``[n_seq * n_steps, ...]``
        :param lstm_states: the states that entered each sequence
        :param episode_starts: ``[n_seq * n_steps]``
        :return: values ``[rows, 1]``, log-probabilities and entropy ``[rows]``
        """
        memory_pi, memory_vf, _ = self._recur(obs, lstm_states, episode_starts)
        distribution, values = self._heads(memory_pi, memory_vf)
        return values, distribution.log_prob(actions), distribution.entropy()

    def get_distribution(  # type: ignore[override]
        self, obs: PyTorchObs, lstm_states: LSTMState, episode_starts: th.Tensor
    ) -> tuple[Distribution, LSTMState]:
        """Return the action distribution and the actor's states after the observation.

        :param obs: ``[n_envs, *obs_shape]``
        :param lstm_states: the actor's state (``RNNStates.pi``)
        :param episode_starts: ``[n_envs]``
        """
        obs = in_channels_last(obs, self.pi_features_extractor)
        features = _rows(BasePolicy.extract_features(self, obs, self.pi_features_extractor))
        memory, lstm_states = self._process_sequence(
            features, lstm_states, episode_starts, self.lstm_actor
        )
        latent_pi = self.mlp_extractor.forward_actor(memory)
        return self._get_action_dist_from_latent(latent_pi), lstm_states

    def predict_values(  # type: ignore[override]
        self, obs: PyTorchObs, lstm_states: LSTMState, episode_starts: th.Tensor
    ) -> th.Tensor:
        """Return the values of the observations, ``[n_envs, 1]``.

        :param obs: ``[n_envs, *obs_shape]``
        :param lstm_states: the critic's state (``RNNStates.vf``)
        :param episode_starts: ``[n_envs]``
        """
        obs = in_channels_last(obs, self.vf_features_extractor)
        features = _rows(BasePolicy.extract_features(self, obs, self.vf_features_extractor))
        memory = features
        if self.critic is None:
            lstm = self.lstm_actor if self.lstm_critic is None else self.lstm_critic
            memory, _ = self._process_sequence(features, lstm_states, episode_starts, lstm)
        if self.lstm_critic is None:
            memory = self._critic_memory(memory, features)
        values: th.Tensor = self.value_net(self.mlp_extractor.forward_critic(memory))
        return values

    def _predict(  # type: ignore[override]
        self,
        observation: PyTorchObs,
        lstm_states: LSTMState,
        episode_starts: th.Tensor,
        deterministic: bool = False,
    ) -> tuple[th.Tensor, LSTMState]:
        """Return the actions and the actor's states after the observation."""
        distribution, lstm_states = self.get_distribution(observation, lstm_states, episode_starts)
        return distribution.get_actions(deterministic=deterministic), lstm_states


def _rows(features: th.Tensor) -> th.Tensor:
    """Return features as rows, where an extractor squeezed the axis of a single one away."""
    return features if features.ndim > 1 else features[None]


#: What who calls a policy is told that has no memory in mind.
_NO_STATES = (
    "forward() needs lstm_states and episode_starts, without which a recurrent policy forgets "
    "everything at every step: hand in policy.zero_states(n_envs) at first, then what forward() "
    "returned. To export a policy, by SB3's recipe or torch.onnx.export, use thrust_pomdp."
    "StatefulActor.like(model, env).export('model.onnx'), whose file has memory and episode starts"
)

#: Arguments after the spaces and the schedule that come before ``features_extractor_class``.
_BEFORE_EXTRACTOR = 8


class RecurrentActorCriticCnnPolicy(RecurrentActorCriticPolicy):
    """:class:`RecurrentActorCriticPolicy` for image observations (``"CnnLstmPolicy"``).

    Arguments are those of the base class; ``features_extractor_class`` is SB3's ``NatureCNN``.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if len(args) <= _BEFORE_EXTRACTOR:  # else it is one of these, as in sb3_contrib
            kwargs.setdefault("features_extractor_class", NatureCNN)
        super().__init__(observation_space, action_space, lr_schedule, *args, **kwargs)


class RecurrentMultiInputActorCriticPolicy(RecurrentActorCriticPolicy):
    """:class:`RecurrentActorCriticPolicy` for Dict observations (``"MultiInputLstmPolicy"``).

    Arguments are those of the base class; ``features_extractor_class`` is SB3's
    ``CombinedExtractor``.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if len(args) <= _BEFORE_EXTRACTOR:  # else it is one of these, as in sb3_contrib
            kwargs.setdefault("features_extractor_class", CombinedExtractor)
        super().__init__(observation_space, action_space, lr_schedule, *args, **kwargs)


MlpLstmPolicy = RecurrentActorCriticPolicy
CnnLstmPolicy = RecurrentActorCriticCnnPolicy
MultiInputLstmPolicy = RecurrentMultiInputActorCriticPolicy
