"""What a recurrent policy is made of: its modules and their first weights."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    FlattenExtractor,
    MlpExtractor,
)
from stable_baselines3.common.type_aliases import Schedule
from torch import nn

from thrust_pomdp.arguments import (
    check_count,
    check_finite_number,
    check_flag,
    check_forget_bias,
    check_lstm_arguments,
)
from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.ppo.distributions import ours_for
from thrust_pomdp.recurrent.encoder import Encoder, NetArch, split_net_arch
from thrust_pomdp.recurrent.memory import state_names
from thrust_pomdp.recurrent.protocol import (
    Memory,
    against_returned,
    is_memory_class,
    options_of,
)
from thrust_pomdp.recurrent.sequences import LSTMState, RNNStates
from thrust_pomdp.recurrent.torch_layers import TORCH_LAYERS
from thrust_pomdp.settings import check_policy_arguments


class RecurrentNetwork(ActorCriticPolicy):
    """The modules of :class:`~thrust_pomdp.ppo.policies.RecurrentActorCriticPolicy`.

    That class documents the arguments; its methods say how an observation goes through the modules.
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
        rnn_class: type[nn.RNNBase] | type[Memory] = nn.LSTM,
        forget_bias: float = 0.0,
        layer_norm: bool = False,
    ) -> None:
        if shared_lstm_critic_gradient:
            shared_lstm, enable_critic_lstm = True, False
        options = _options_of(rnn_class)
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
            options,
            is_own=is_memory_class(rnn_class),
        )
        if shared_lstm and not share_features_extractor:
            raise ArgumentError(
                "shared_lstm=True needs share_features_extractor=True: one LSTM cannot read two "
                "sets of features"
            )
        check_forget_bias(forget_bias, rnn_class is nn.LSTM, lstm_kwargs)
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
            key: value
            for key, value in (lstm_kwargs or {}).items()
            if options is None or key in options
        }
        self.rnn_class = rnn_class
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

    def _make_lstm(self, extractor: BaseFeaturesExtractor) -> nn.Module:
        n_layers, _, hidden_size = self.lstm_hidden_state_shape
        # For MultiDiscrete observations SB3's features_dim is a NumPy integer.
        n_features = int(extractor.features_dim)
        make: Any = self.rnn_class  # the base class lists other arguments
        lstm: nn.Module = make(n_features, hidden_size, num_layers=n_layers, **self.lstm_kwargs)
        if isinstance(lstm, Memory):
            _check_made(lstm, n_features, hidden_size, n_layers)
            return lstm  # its first weights are what its class made of them
        if self.ortho_init:
            for name, parameter in lstm.named_parameters():
                if name.startswith("bias"):
                    nn.init.zeros_(parameter)
                else:
                    for gate in parameter.data.chunk(TORCH_LAYERS[self.rnn_class].n_gates):
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
        with _without_compiler():
            return self.optimizer_class(self.parameters(), lr=lr_schedule(1), **kwargs)  # type: ignore[call-arg]

    def _build(self, lr_schedule: Schedule) -> None:
        """Create the heads."""
        self.action_dist = ours_for(self.action_dist)
        with _without_compiler():  # SB3 makes an optimiser here, too
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
        pi = self._zero_state(self.lstm_actor, n_envs)
        return RNNStates(
            pi, pi if self.lstm_critic is None else self._zero_state(self.lstm_critic, n_envs)
        )

    def _zero_state(self, rnn: nn.Module, n_envs: int) -> LSTMState:
        if isinstance(rnn, Memory):
            return rnn.initial_state(n_envs)
        n_layers, _, hidden_size = self.lstm_hidden_state_shape
        # A program may have changed torch's default type since the weights were made.
        dtype = next((p.dtype for p in rnn.parameters()), th.get_default_dtype())
        zeros = th.zeros(n_layers, n_envs, hidden_size, dtype=dtype, device=self.device)
        return (zeros,) * len(self._state_names(rnn))

    def state_names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the parts of the actor's state and of the critic's."""
        pi = self._state_names(self.lstm_actor)
        return pi, pi if self.lstm_critic is None else self._state_names(self.lstm_critic)

    def _state_names(self, rnn: nn.Module) -> tuple[str, ...]:
        """Return the names of what a memory remembers."""
        if isinstance(rnn, (Memory, nn.RNNBase)):
            return state_names(rnn)
        # A module that a program put in the place of a layer is called as that one would be.
        return TORCH_LAYERS.get(self.rnn_class, TORCH_LAYERS[nn.LSTM]).state


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Let optimisers be made without loading torch's compiler, a third of a program's start.

    Torch loads it in order to tell it what not to compile. While nobody has loaded it nothing is
    compiled, and nothing is left for later: the next optimiser made tells it as usual.
    """
    method: Any = getattr(th.optim.Optimizer.add_param_group, "__wrapped__", None)
    if method is None or "torch._dynamo" in sys.modules or hasattr(method, _MARK):
        yield
        return
    setattr(method, _MARK, method)
    try:
        yield
    finally:
        delattr(method, _MARK)


#: Where torch keeps the form of a function that its compiler leaves alone.
_MARK = "__dynamo_disable"


def _options_of(rnn_class: Any) -> tuple[str, ...] | None:
    """Return what ``lstm_kwargs`` may contain, None for anything.

    :raises ValueError: for what is no class of memories
    """
    if is_memory_class(rnn_class):
        if inspect.isabstract(rnn_class):
            missing = " and ".join(sorted(rnn_class.__abstractmethods__))
            raise ArgumentError(f"rnn_class must define {missing}, which {rnn_class!r} does not")
        return options_of(rnn_class)
    if rnn_class not in TORCH_LAYERS:
        raise ArgumentError(
            "rnn_class must be nn.LSTM, nn.GRU, nn.RNN or a subclass of "
            f"thrust_pomdp.recurrent.Memory, got {rnn_class!r}"
        )
    return TORCH_LAYERS[rnn_class].options


def _check_made(memory: Memory, *sizes: int) -> None:
    """Refuse a memory of other sizes than were asked for, or that returns something else.

    :raises ValueError: naming them
    """
    made = (memory.input_size, memory.hidden_size, memory.num_layers)
    if made != sizes:
        raise ArgumentError(
            f"rnn_class must make a memory with (input_size, hidden_size, num_layers) = {sizes}, "
            f"{type(memory).__name__} made one with {made}"
        )
    n_envs, n_steps = _TRIED
    states, features = memory.initial_state(n_envs), memory._like.new_zeros(*_TRIED, sizes[0])
    starts = th.zeros(_TRIED, dtype=th.bool, device=features.device)
    was_training = memory.training
    memory.eval()
    with th.no_grad(), th.random.fork_rng(devices=()):
        step = memory(features[:, 0], states, starts[:, 0])
        windows = memory(features, states, starts)
    memory.train(was_training)
    reason = against_returned(memory, "step", step, (n_envs,)) or against_returned(
        memory, "windows", windows, (n_envs, n_steps)
    )
    if reason is not None:
        raise ArgumentError(f"rnn_class: {reason}")


#: Environments and steps that a new memory is tried on: other numbers than sizes mostly are.
_TRIED = (2, 3)
