"""Actor-critic policies with a recurrent layer between features and heads.

Arguments, module names and methods are those of ``sb3_contrib``'s recurrent policies, so that
programs and weights carry over. There are two passes: one step at a time while collecting and
acting (:meth:`RecurrentActorCriticPolicy.forward`, ``predict``), and whole windows at once while
training (:meth:`RecurrentActorCriticPolicy.evaluate_sequences`). Both compute the same numbers.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.distributions import (
    CategoricalDistribution,
    DiagGaussianDistribution,
    Distribution,
)
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    MlpExtractor,
    NatureCNN,
)
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import nn

from thrust_pomdp import gate
from thrust_pomdp.arguments import (
    check_count,
    check_finite_number,
    check_flag,
    check_forget_bias,
    check_lstm_arguments,
    check_switch,
)
from thrust_pomdp.errors import MEMORY_IS_KEPT, ArgumentError, warn_user
from thrust_pomdp.observations import check_finite_obs, map_obs
from thrust_pomdp.ppo.distributions import (
    PlainCategoricalDistribution,
    PlainDiagGaussianDistribution,
    is_plain_object,
)
from thrust_pomdp.recurrent.encoder import Encoder, NetArch, split_net_arch
from thrust_pomdp.recurrent.memory import MEMORIES, memory_sequences, memory_step
from thrust_pomdp.recurrent.sequences import (
    LSTMState,
    ResetLayout,
    RNNStates,
    as_windows,
    check_windows,
)
from thrust_pomdp.settings import check_policy_arguments

#: So many calls of ``predict`` without a state are no accident.
_STATELESS_CALLS = 10


#: Methods that say what evaluating windows is.
_EVALUATION = ("evaluate_actions", "_process_sequence", "_recur")


@gate.remember
class RecurrentActorCriticPolicy(ActorCriticPolicy):
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
    :param lstm_kwargs: ``bias`` and ``dropout`` of ``nn.LSTM``; of ``nn.RNN`` ``nonlinearity`` too
    :param rnn_class: ``nn.LSTM``, ``nn.GRU`` or ``nn.RNN``; the names with ``lstm`` in them, which
        are ``sb3_contrib``'s, then mean that layer
    :param forget_bias: initial bias of an LSTM's forget gate (the sum of torch's two)
    :param layer_norm: layer normalisation of what the memory gives to each head
    :param shared_lstm_critic_gradient: let the value loss train the shared LSTM too; implies
        ``shared_lstm=True`` and ``enable_critic_lstm=False``
    :raises ValueError: for combinations or ``lstm_kwargs`` that cannot work, with the reason
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        net_arch: NetArch = None,
        activation_fn: type[nn.Module] = nn.Tanh,
        ortho_init: bool = True,
        use_sde: bool = False,
        log_std_init: float = 0.0,
        full_std: bool = True,
        use_expln: bool = False,
        squash_output: bool = False,
        features_extractor_class: type[BaseFeaturesExtractor] = FlattenExtractor,
        features_extractor_kwargs: dict[str, Any] | None = None,
        share_features_extractor: bool = True,
        normalize_images: bool = True,
        optimizer_class: type[th.optim.Optimizer] = th.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        lstm_hidden_size: int = 256,
        n_lstm_layers: int = 1,
        shared_lstm: bool = False,
        enable_critic_lstm: bool = True,
        lstm_kwargs: dict[str, Any] | None = None,
        shared_lstm_critic_gradient: bool = False,
        rnn_class: type[nn.RNNBase] = nn.LSTM,
        forget_bias: float = 0.0,
        layer_norm: bool = False,
    ) -> None:
        if shared_lstm_critic_gradient:
            shared_lstm, enable_critic_lstm = True, False
        if rnn_class not in MEMORIES:
            raise ValueError(f"rnn_class must be nn.LSTM, nn.GRU or nn.RNN, got {rnn_class!r}")
        memory = MEMORIES[rnn_class]
        check_policy_arguments(
            flags={
                "ortho_init": ortho_init,
                "use_sde": use_sde,
                "full_std": full_std,
                "use_expln": use_expln,
                "squash_output": squash_output,
                "share_features_extractor": share_features_extractor,
                "normalize_images": normalize_images,
                "shared_lstm": shared_lstm,
                "enable_critic_lstm": enable_critic_lstm,
                "shared_lstm_critic_gradient": shared_lstm_critic_gradient,
            },
            classes={
                "activation_fn": activation_fn,
                "features_extractor_class": features_extractor_class,
                "optimizer_class": optimizer_class,
            },
            dicts={
                "features_extractor_kwargs": features_extractor_kwargs,
                "optimizer_kwargs": optimizer_kwargs,
            },
        )
        check_finite_number("log_std_init", log_std_init)
        lstm_hidden_size = check_count("lstm_hidden_size", lstm_hidden_size)
        n_lstm_layers = check_count("n_lstm_layers", n_lstm_layers)
        check_lstm_arguments(
            n_lstm_layers,
            shared_lstm,
            enable_critic_lstm,
            lstm_kwargs,
            memory.options,
        )
        if shared_lstm and not share_features_extractor:
            raise ArgumentError(
                "shared_lstm=True needs share_features_extractor=True: one LSTM cannot read two "
                "sets of features"
            )
        check_forget_bias(forget_bias, memory.state, lstm_kwargs)
        self.encoder_arch, net_arch = split_net_arch(net_arch)
        self.lstm_output_dim = lstm_hidden_size
        self.layer_norm = check_flag("layer_norm", layer_norm)
        self.enable_critic_lstm = enable_critic_lstm
        self.shared_lstm = shared_lstm
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            net_arch,
            activation_fn,
            ortho_init,
            use_sde,
            log_std_init,
            full_std,
            use_expln,
            squash_output,
            features_extractor_class,
            features_extractor_kwargs,
            share_features_extractor,
            normalize_images,
            optimizer_class,
            optimizer_kwargs,
        )
        self.lstm_kwargs = {
            key: value for key, value in (lstm_kwargs or {}).items() if key in memory.options
        }
        self.rnn_class = rnn_class
        self.memory = memory
        self.forget_bias = float(forget_bias)
        self.shared_lstm_critic_gradient = shared_lstm_critic_gradient
        #: Shape of one environment's hidden state, ``(n_lstm_layers, 1, lstm_hidden_size)``.
        self.lstm_hidden_state_shape = (n_lstm_layers, 1, lstm_hidden_size)
        self.lstm_actor = self._make_lstm(self.pi_features_extractor)
        self.lstm_critic = (
            self._make_lstm(self.vf_features_extractor) if enable_critic_lstm else None
        )
        self.critic: nn.Linear | None = None
        if not (shared_lstm or enable_critic_lstm):
            self.critic = nn.Linear(int(self.vf_features_extractor.features_dim), lstm_hidden_size)
            if ortho_init:
                self.init_weights(self.critic)
        self.optimizer = self._make_optimizer(lr_schedule)
        self._stateless_calls = 0
        self._warned_of_forgotten_state = False

    def _make_lstm(self, extractor: BaseFeaturesExtractor) -> nn.RNNBase:
        n_layers, _, hidden_size = self.lstm_hidden_state_shape
        # For MultiDiscrete observations SB3's features_dim is a NumPy integer.
        n_features = int(extractor.features_dim)
        make: Any = self.rnn_class  # the base class lists other arguments
        lstm: nn.RNNBase = make(n_features, hidden_size, num_layers=n_layers, **self.lstm_kwargs)
        if self.ortho_init:
            for name, parameter in lstm.named_parameters():
                if name.startswith("bias"):
                    nn.init.zeros_(parameter)
                else:
                    for gate in parameter.data.chunk(self.memory.n_gates):
                        nn.init.orthogonal_(gate)
        if self.forget_bias:
            forget = slice(hidden_size, 2 * hidden_size)  # the second of torch's gates
            for name, parameter in lstm.named_parameters():
                if name.startswith("bias"):
                    total = self.forget_bias if name.startswith("bias_ih") else 0.0
                    parameter.data[forget] = total
        return lstm

    def make_features_extractor(self) -> BaseFeaturesExtractor:
        """Create a features extractor, with the encoder if there is one."""
        return self._encoded(super().make_features_extractor())

    def _encoded(self, extractor: BaseFeaturesExtractor) -> BaseFeaturesExtractor:
        if not self.encoder_arch:
            return extractor
        return Encoder(extractor, self.encoder_arch, self.activation_fn)

    def _make_optimizer(self, lr_schedule: Schedule) -> th.optim.Optimizer:
        kwargs = dict(self.optimizer_kwargs)
        adams = (th.optim.Adam, th.optim.AdamW)
        if self.optimizer_class in adams and not {"foreach", "fused"} & kwargs.keys():
            kwargs["fused"] = True  # the same update in one kernel: a third of the time
        return self.optimizer_class(self.parameters(), lr=lr_schedule(1), **kwargs)  # type: ignore[call-arg]

    def _build(self, lr_schedule: Schedule) -> None:
        """Create the heads."""
        if type(self.action_dist) is CategoricalDistribution:
            self.action_dist = PlainCategoricalDistribution(self.action_dist.action_dim)
        elif type(self.action_dist) is DiagGaussianDistribution:
            self.action_dist = PlainDiagGaussianDistribution(self.action_dist.action_dim)
        super()._build(lr_schedule)

    def _build_mlp_extractor(self) -> None:
        """Create the heads, which read the memory instead of the features."""
        self.mlp_extractor = MlpExtractor(
            self.lstm_output_dim,
            net_arch=self.net_arch,
            activation_fn=self.activation_fn,
            device=self.device,
        )
        if self.layer_norm:
            heads = [self.mlp_extractor.policy_net]
            if self.shared_lstm or self.enable_critic_lstm:
                heads.append(self.mlp_extractor.value_net)
            for head in heads:
                head.insert(0, nn.LayerNorm(self.lstm_output_dim))

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        n_layers, _, hidden_size = self.lstm_hidden_state_shape
        data.update(
            share_features_extractor=self.share_features_extractor,
            lstm_hidden_size=hidden_size,
            n_lstm_layers=n_layers,
            shared_lstm=self.shared_lstm,
            enable_critic_lstm=self.enable_critic_lstm,
            lstm_kwargs=self.lstm_kwargs,
            shared_lstm_critic_gradient=self.shared_lstm_critic_gradient,
            rnn_class=self.rnn_class,
            forget_bias=self.forget_bias,
            layer_norm=self.layer_norm,
        )
        if self.encoder_arch:
            data["net_arch"] = {"encoder": self.encoder_arch, **data["net_arch"]}
        return data

    def zero_states(self, n_envs: int) -> RNNStates:
        """Return the states of ``n_envs`` environments that remember nothing."""
        n_layers, _, hidden_size = self.lstm_hidden_state_shape
        # A program may have changed torch's default type since the weights were made.
        dtype = next((p.dtype for p in self.lstm_actor.parameters()), th.get_default_dtype())
        zeros = th.zeros(n_layers, n_envs, hidden_size, dtype=dtype, device=self.device)
        pi, vf = ((zeros,) * len(self.memory.state) for _ in range(2))
        return RNNStates(pi, vf if self.enable_critic_lstm else pi)

    @staticmethod
    def _process_sequence(
        features: th.Tensor,
        lstm_states: LSTMState,
        episode_starts: th.Tensor,
        lstm: nn.RNNBase,
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
        lstm_states: RNNStates,
        episode_starts: th.Tensor,
        deterministic: bool = False,
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor, RNNStates]:
        """Act: one step for every environment.

        :param obs: ``[n_envs, *obs_shape]``
        :param lstm_states: the states before the step
        :param episode_starts: ``[n_envs]``, non-zero where the observation starts an episode
        :param deterministic: take the most likely action instead of sampling
        :return: actions ``[n_envs, *action_shape]``, values ``[n_envs, 1]``, log-probabilities
            ``[n_envs]``, and the states after the step
        """
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
            isinstance(m, (nn.RNNBase, type(None))) for m in (self.lstm_actor, self.lstm_critic)
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

    def predict(
        self,
        observation: NDArray[Any] | dict[str, NDArray[Any]],
        state: NDArray[Any] | tuple[NDArray[Any], ...] | None = None,
        episode_start: NDArray[Any] | None = None,
        deterministic: bool = False,
    ) -> tuple[NDArray[Any], Any]:
        """Return actions for observations, and the memory to hand in with the next ones.

        .. warning::
            Give back the state this returned, and ``episode_start=True`` with the first observation
            of an episode. Without them the policy forgets everything at every step; nothing fails,
            it only acts badly.

        >>> action, state = model.predict(obs, state, episode_start)  # doctest: +SKIP

        :param observation: one observation or ``[n_envs, *obs_shape]``
        :param state: hidden and cell state of an LSTM, each ``[n_layers, n_envs, hidden]``, or the
            state of a GRU or plain RNN, one such array; None for zeros
        :param episode_start: ``[n_envs]``, true where memory is to be cleared first; default none
        :param deterministic: take the most likely action instead of sampling
        :return: the actions and the new state
        :raises ValueError: if ``state`` or ``episode_start`` does not fit the observations, or the
            observations do not fit their space
        """
        self.set_training_mode(False)
        check_switch("deterministic", deterministic)
        self._warn_if_state_is_forgotten(state, episode_start)
        if isinstance(observation, tuple):
            raise ValueError(
                "observation is a tuple: Gymnasium's reset() returns (obs, info), of which "
                "predict() takes the first"
            )
        observation = self._checked_keys(observation)
        check_finite_obs(observation, "observation given to predict()")
        obs, vectorized = self.obs_to_tensor(observation)
        n_envs = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        with th.no_grad():
            actions, new_states = self._predict(
                obs,
                self._states_to_tensors(state, n_envs),
                self._starts_to_tensor(episode_start, n_envs),
                deterministic,
            )
        parts = tuple(tensor.cpu().numpy() for tensor in new_states)
        new_state = parts if len(parts) > 1 else parts[0]
        array = actions.cpu().numpy().reshape((-1, *(self.action_space.shape or ())))
        if isinstance(self.action_space, spaces.Box):
            if self.squash_output:
                array = self.unscale_action(array)
            else:
                array = np.clip(array, self.action_space.low, self.action_space.high)
        return (array if vectorized else array.squeeze(axis=0)), new_state

    def _checked_keys(self, observation: Any) -> Any:
        if not isinstance(self.observation_space, spaces.Dict):
            if isinstance(observation, dict):
                raise ArgumentError(
                    f"observation must be of the space {self.observation_space}, got a dict with "
                    f"the keys {list(observation)}"
                )
            return observation
        expected = list(self.observation_space.spaces)
        keys = list(observation) if isinstance(observation, dict) else type(observation).__name__
        if not isinstance(observation, dict) or set(expected) != set(keys):
            raise ValueError(f"observation must be a dict with the keys {expected}, got {keys}")
        return observation

    def _warn_if_state_is_forgotten(self, state: Any, episode_start: Any) -> None:
        """Warn once when call after call of ``predict`` comes without any memory."""
        if MEMORY_IS_KEPT.get():
            return
        if state is not None:
            self._stateless_calls = 0
        elif episode_start is None or not np.all(episode_start):
            # Where every observation starts an episode there is nothing to remember.
            self._stateless_calls += 1
        if self._stateless_calls == _STATELESS_CALLS and not self._warned_of_forgotten_state:
            self._warned_of_forgotten_state = True
            warn_user(
                f"predict() was called {_STATELESS_CALLS} times in a row without a state, so the "
                "policy forgot everything each time: hand in the state it returned and "
                "episode_start (`action, state = model.predict(obs, state, episode_start)`), or "
                "let thrust_pomdp.StatefulActor(model) keep it"
            )

    def _states_to_tensors(
        self, state: NDArray[Any] | tuple[NDArray[Any], ...] | None, n_envs: int
    ) -> LSTMState:
        n_layers, _, hidden_size = self.lstm_hidden_state_shape
        shape = (n_layers, n_envs, hidden_size)
        if state is None:
            return self.zero_states(n_envs).pi
        # A pair in one array is a pair.
        is_pair = isinstance(state, (tuple, list)) or np.ndim(state) == 4
        parts: Any = state if is_pair else (state,)
        shapes = [np.shape(part) for part in parts]
        if shapes != [shape] * len(self.memory.state):
            pair = len(self.memory.state) > 1
            raise ValueError(
                f"state must be the {'(hidden, cell) pair' if pair else 'array'} that predict() "
                f"returned, {'each ' if pair else ''}of shape (n_layers, n_envs, hidden) = {shape} "
                f"for {n_envs} observation(s), got {shapes}"
            )
        if not all(np.isfinite(part).all() for part in parts):
            raise ValueError("state must be finite: the weights or an observation have spoilt it")
        return tuple(th.as_tensor(p, dtype=th.float32, device=self.device) for p in parts)

    def _starts_to_tensor(self, episode_start: NDArray[Any] | None, n_envs: int) -> th.Tensor:
        if episode_start is None:
            return th.zeros(n_envs, device=self.device)
        starts = np.asarray(episode_start).reshape(-1)
        if starts.dtype.kind not in "biuf" or not np.isfinite(starts).all():
            raise ArgumentError(f"episode_start must be flags, got {episode_start!r}")
        starts = starts.astype(bool)
        if len(starts) != n_envs:
            raise ValueError(
                f"episode_start must have one flag per observation, {n_envs}, got {len(starts)}"
            )
        return th.as_tensor(starts.astype(np.float32), device=self.device)


def _rows(features: th.Tensor) -> th.Tensor:
    """Return features as rows, where an extractor squeezed the axis of a single one away."""
    return features if features.ndim > 1 else features[None]


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
