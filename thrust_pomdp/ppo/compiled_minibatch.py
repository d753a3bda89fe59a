"""A minibatch in one compiled call, for policies and optimisers whose parts are all known.

:func:`against_minibatch` says whether it may stand in for torch's operations; then
:class:`CompiledMinibatch` lays out tables of addresses for
:mod:`thrust_pomdp.ppo.kernels_minibatch`, which computes the same to rounding. Parameters, their
gradients and the optimiser's state stay torch's own.
"""

from __future__ import annotations

import importlib
import math
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from torch import nn
from torch.optim import optimizer as torch_optimizer

from thrust_pomdp import gate
from thrust_pomdp.ppo.buffers import RecurrentRolloutBuffer
from thrust_pomdp.ppo.losses import Losses
from thrust_pomdp.ppo.policies import RecurrentActorCriticPolicy
from thrust_pomdp.ppo.prepared_step import against_step
from thrust_pomdp.ppo.sequence_batch import SequenceBatch
from thrust_pomdp.recurrent.compiled import against_loops
from thrust_pomdp.recurrent.encoder import Encoder

#: Methods of the policy that say what evaluating windows is.
_METHODS = (
    "evaluate_sequences", "evaluate_actions", "_evaluated", "window_heads", "_window_heads",
    "_window_memories", "_both_features", "_critic_memory", "_heads", "extract_features",
    "_get_action_dist_from_latent", "_distribution_actions", "_process_sequence", "_recur",
    "auxiliary_loss", "parameters",
)  # fmt: skip

#: Methods of training that are called by what is never stood in for.
_CALLED = (
    "_sequences_per_minibatch", "_log_training", "_explained_variance", "train",
    "_update",
)  # fmt: skip

#: Numbers of a vector: everything in the arena begins at a multiple of so many.
_PANEL = 16

_FOLLOWS: dict[type[nn.Module], int] = {nn.Tanh: 1, nn.ReLU: 2}

#: What Adam of torch keeps of each parameter.
_STATE = ("exp_avg", "exp_avg_sq", "step")

#: Code of the function that torch puts around a class's ``step`` once there is an object of it.
_TORCHS_OWN = th.optim.Optimizer.profile_hook_step(lambda optimizer: None).__code__

_METHODS_OF_ADAM = ("step", "zero_grad", "_init_group")


def _written(cls: type) -> list[Any]:
    """Return an optimiser's methods that say what a step is, without what torch puts around."""
    methods: list[Any] = [getattr(cls, name) for name in _METHODS_OF_ADAM]
    if getattr(methods[0], "__code__", None) is _TORCHS_OWN:
        methods[0] = methods[0].__wrapped__
    # torch.compile marks methods that it is to leave alone.
    return [getattr(method, "_torchdynamo_orig_callable", method) for method in methods]


_ADAM = _written(th.optim.Adam)


def against_minibatch(model: Any, trains: type, written: type | None = None) -> str | None:
    """Say why a minibatch is not one compiled call.

    :param model: that trains
    :param trains: the class whose methods say what a minibatch is
    :param written: a class derived from it whose methods do the same
    """
    policy: RecurrentActorCriticPolicy = model.policy
    names = [name for name, part in vars(trains).items() if callable(part) and name not in _CALLED]
    names = [name for name in names if not name.startswith("__")]
    if type(model.rollout_buffer) is not RecurrentRolloutBuffer:
        return f"the buffer is a {type(model.rollout_buffer).__name__}"
    if not th.is_grad_enabled() or th.is_anomaly_enabled():
        return "torch records no gradients, or looks for anomalies"
    return (
        gate.against_methods(model, names, written or trains)
        or against_step(policy)
        or _against_policy(policy)
        or _against_optimizer(policy)
    )


def _against_policy(policy: RecurrentActorCriticPolicy) -> str | None:
    """Say what of a policy whose step can be prepared the loops do not know."""
    reason = policy.against(*_METHODS)
    if reason is not None:
        return reason
    for name, rnn in (("lstm_actor", policy.lstm_actor), ("lstm_critic", policy.lstm_critic)):
        if not isinstance(rnn, (nn.LSTM, nn.GRU, type(None))):
            return f"{name} is a {type(rnn).__name__}"
    if not isinstance(policy.action_space, (spaces.Discrete, spaces.Box)):
        return "actions are neither Discrete nor Box"
    n_actions: Any = getattr(policy.action_dist, "action_dim", None)
    if policy.action_net.out_features != n_actions or policy.value_net.out_features != 1:
        return "a head has another number of outputs"
    if isinstance(policy.action_space, spaces.Box):
        spread = policy._parameters.get("log_std")
        if spread is None or spread.shape != (n_actions,):
            return "log_std is not one number for each action"
    for name, stack in _stacks(policy).items():
        for module in stack:
            reason = gate.against_module(module, nn.Linear, *_FOLLOWS)
            if reason is None and isinstance(module, nn.Linear) and module.bias is None:
                reason = "a layer has no bias"
            if reason is not None:
                return gate.named(name, reason)
        if any(
            not isinstance(module, nn.Linear) and not isinstance(below, nn.Linear)
            for below, module in zip([None, *stack], stack, strict=False)
        ):
            return f"{name}: an activation follows no layer"
    return _against_parameters(policy)


def _stacks(policy: RecurrentActorCriticPolicy) -> dict[str, list[nn.Module]]:
    """Return the dense layers of a policy, those of each part in order."""
    extractor: Any = policy.features_extractor
    heads = policy.mlp_extractor
    below = [] if policy.critic is None else [policy.critic]
    return {
        "encoder": list(extractor.layers) if type(extractor) is Encoder else [],
        "pi": [*heads.policy_net, policy.action_net],
        "vf": [*below, *heads.value_net, policy.value_net],
    }


def _known_parameters(policy: RecurrentActorCriticPolicy) -> Iterator[th.Tensor]:
    """Yield the parameters that the loops train."""
    for rnn in _memories(policy):
        yield from rnn.parameters()
    for stack in _stacks(policy).values():
        for module in stack:
            yield from module.parameters()
    if isinstance(policy.action_space, spaces.Box):
        yield policy.log_std


def _memories(policy: RecurrentActorCriticPolicy) -> list[nn.Module]:
    own = policy.lstm_critic
    return [policy.lstm_actor] if own is None else [policy.lstm_actor, own]


def _against_parameters(policy: RecurrentActorCriticPolicy) -> str | None:
    """Say which parameter is not just trained by its gradient."""
    known = list(_known_parameters(policy))
    places = {parameter.data_ptr() for parameter in known}
    if len(places) != len(known):
        return "parameters are shared"
    if set(map(id, known)) != set(map(id, policy.parameters())):
        return "there are parameters of other modules"
    for parameter in known:
        if not parameter.requires_grad:
            return "a parameter is frozen"
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            return "a parameter has hooks on its gradient"
        if parameter.numel() == 0:
            return "a parameter is empty"
    return against_loops(*known)


def _against_optimizer(policy: RecurrentActorCriticPolicy) -> str | None:
    """Say why the optimiser's step is not Adam's as the loops know it."""
    optimizer: Any = policy.optimizer
    name = type(optimizer).__name__
    if type(optimizer) is not th.optim.Adam:
        return f"the optimizer is {name}, compiled is Adam"
    if _written(type(optimizer)) != _ADAM or vars(optimizer).keys() & {*_METHODS_OF_ADAM}:
        return f"a method of the {name} was replaced"
    hooks = (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    )
    if any(hooks):
        return f"the {name} has hooks"
    if len(optimizer.param_groups) != 1:
        return f"the {name} has groups of parameters"
    (group,) = optimizer.param_groups
    for option in ("amsgrad", "maximize", "capturable", "differentiable", "weight_decay"):
        if group.get(option):
            return f"the {name} has {option}"
    if {id(p) for p in group["params"]} != set(map(id, policy.parameters())):
        return f"the {name} does not train all parameters, or others"
    if not all(
        type(number) in (int, float) for number in (group["lr"], group["eps"], *group["betas"])
    ):
        return f"numbers of the {name} are tensors"
    for parameter in group["params"]:
        state = optimizer.state.get(parameter)
        if not state:
            continue
        if sorted(state) != sorted(_STATE):
            return f"the {name} has a state of its own"
        for key in _STATE:
            shape = () if key == "step" else parameter.shape
            if state[key].shape != shape:
                return f"the {name}'s {key} has another shape than the parameter"
        reason = gate.against_kernels(*(state[key] for key in _STATE))
        if reason is not None:
            return f"the {name}'s state: {reason}"
    return None


class _Arena:
    """Where everything lies that is computed on the way: one array, addressed by numbers.

    Laid out twice: first to learn how many numbers there are, then for good.
    """

    def __init__(self) -> None:
        self.used = 0
        self._base = 0

    def allocate(self, kept: list[Any]) -> None:
        """Take the memory for all that was laid out, and begin anew.

        :param kept: memory of earlier arenas, which is used again where it is large enough
        """
        if not kept or len(kept[0]) < self.used + _PANEL:
            kept[:] = [np.empty(self.used + _PANEL, dtype=np.float32)]
        self._memory = kept[0]
        self._base = -(-self._memory.ctypes.data // 64) * 64
        self.used = 0

    def take(self, *shape: int) -> int:
        """Return the address of an array."""
        place = self._base + 4 * self.used
        self.used += _padded(math.prod(shape))
        return place


def _padded(n: int) -> int:
    return -(-n // _PANEL) * _PANEL


#: Of each policy, the memory of its last minibatches, since new memory is slow at first.
_MEMORY: weakref.WeakKeyDictionary[nn.Module, list[Any]] = weakref.WeakKeyDictionary()


class Numbers(NamedTuple):
    """What a loss and a step of the optimiser are told beside the minibatch."""

    clip_range: float
    clip_range_vf: float | None
    ent_coef: float
    vf_coef: float
    normalize_advantage: bool
    max_grad_norm: float
    target_kl: float | None


class CompiledMinibatch:
    """Training on minibatches, each in one compiled call, as long as nobody changes the policy.

    :param policy: a policy that :func:`against_minibatch` says nothing against
    """

    def __init__(self, policy: RecurrentActorCriticPolicy) -> None:
        self._policy = policy
        self._kernels = importlib.import_module("thrust_pomdp.ppo.kernels_minibatch")
        self._loss_rows = importlib.import_module("thrust_pomdp.ppo.kernels_loss").SCRATCH_ROWS
        self._is_gaussian = isinstance(policy.action_space, spaces.Box)
        self._tables: dict[tuple[int, int], tuple[Any, ...]] = {}
        (group,) = policy.optimizer.param_groups
        self._group = group
        for parameter in group["params"]:
            parameter.grad = th.empty_like(parameter)
            _begin(policy.optimizer.state[parameter], parameter)
        self._parameters = self._parameter_table()

    def _parameter_table(self) -> Any:
        state = self._policy.optimizer.state
        #: What lies at the addresses, so that nobody can free it.
        self._held: list[th.Tensor] = []
        rows = []
        for parameter in self._group["params"]:
            kept = (state[parameter][name] for name in _STATE)
            parts = [parameter.detach(), parameter.grad, *kept]
            rows.append([parameter.numel(), *(part.data_ptr() for part in parts)])
            self._held += parts
        return np.array(rows, dtype=np.int64)

    def train(self, batch: SequenceBatch, numbers: Numbers) -> Losses:
        """Train on a minibatch, unless its KL estimate is more than 1.5 times ``target_kl``.

        :return: the loss and its terms
        :raises ValueError: if an action does not exist
        """
        n_seq, n_steps = batch.returns.shape
        network, encoder, memories, pi_layers, vf_layers = self._tables_of(n_seq, n_steps)
        held = self._point_at(batch, network, memories)
        target = numbers.target_kl
        coefficients = np.array(
            [
                numbers.clip_range,
                math.inf if numbers.clip_range_vf is None else numbers.clip_range_vf,
                numbers.ent_coef,
                numbers.vf_coef,
                numbers.normalize_advantage,
                numbers.max_grad_norm,
                math.inf if target is None else 1.5 * target,
                self._group["lr"],
                *self._group["betas"],
                self._group["eps"],
            ],
            dtype=np.float64,
        )
        terms = np.zeros(6)
        ended = self._kernels.minibatch(
            network, encoder, memories, pi_layers, vf_layers, self._parameters, coefficients, terms
        )
        if ended == self._kernels.NO_SUCH_ACTION:
            actions = held[1]
            raise ValueError(
                f"actions must be from 0 to {pi_layers[-1, 1] - 1}, got values from "
                f"{int(actions.min())} to {int(actions.max())}"
            )
        loss = terms[0] + numbers.ent_coef * terms[2] + numbers.vf_coef * terms[1]
        all_terms = np.array([loss, *terms[:5]], dtype=np.float32)
        return Losses(*th.from_numpy(all_terms).unbind())

    def _point_at(self, batch: SequenceBatch, network: Any, memories: Any) -> list[th.Tensor]:
        """Put the minibatch's addresses into the tables.

        :return: what lies there, to be kept until the call has returned
        """
        policy = self._policy
        actions = policy._distribution_actions(batch.actions.flatten(end_dim=1))
        observations: Any = batch.observations
        held = [
            observations.float().contiguous(),
            actions.contiguous(),
            batch.episode_starts.contiguous(),
            *(
                part.float().contiguous()
                for part in (
                    batch.old_log_prob, batch.old_values, batch.advantages, batch.returns,
                )
            ),
        ]  # fmt: skip
        first = self._kernels.NETWORK.index("obs")
        network[first : first + len(held)] = [part.data_ptr() for part in held]
        states = self._kernels.MEMORY.index("state_h")
        memories[:, states:] = 0
        if batch.initial_state is not None:
            for row, parts in zip(memories, batch.initial_state, strict=False):
                floats = [part.float().contiguous() for part in parts]
                row[states : states + len(floats)] = [part.data_ptr() for part in floats]
                held += floats
        return held

    def _tables_of(self, n_seq: int, n_steps: int) -> tuple[Any, ...]:
        """Return the tables for minibatches of a size."""
        if (n_seq, n_steps) not in self._tables:
            arena = _Arena()
            self._lay_out(arena, n_seq, n_steps)
            arena.allocate(_MEMORY.setdefault(self._policy, []))
            self._tables[n_seq, n_steps] = (*self._lay_out(arena, n_seq, n_steps), arena)
        return self._tables[n_seq, n_steps][:-1]

    def _lay_out(self, arena: _Arena, n_seq: int, n_steps: int) -> tuple[Any, ...]:
        policy, n_rows = self._policy, n_seq * n_steps
        stacks = {
            name: _dense_table(arena, stack, n_rows, self._kernels.DENSE)
            for name, stack in _stacks(policy).items()
        }
        memories = [
            _memory_row(arena, rnn, n_seq, n_steps, self._kernels.MEMORY)
            for rnn in _memories(policy)
        ]
        if policy.lstm_critic is not None:
            critic = self._kernels.OWN
        elif policy.critic is not None:
            critic = self._kernels.LINEAR
        else:
            shares = policy.shared_lstm_critic_gradient
            critic = self._kernels.SHARED if shares else self._kernels.DETACHED
        log_std: Any = policy.log_std if self._is_gaussian else None
        network = {
            "n_seq": n_seq,
            "n_steps": n_steps,
            "n_features": math.prod(policy.observation_space.shape or ()),
            "critic": critic,
            "gaussian": self._is_gaussian,
            "log_std": 0 if log_std is None else log_std.data_ptr(),
            "grad_log_std": 0 if log_std is None else log_std.grad.data_ptr(),
            "scratch": arena.take(max(self._loss_rows * _padded(n_rows), 4 * _PANEL)),
        }
        row = np.array([network.get(name, 0) for name in self._kernels.NETWORK], dtype=np.int64)
        return row, stacks["encoder"], np.array(memories), stacks["pi"], stacks["vf"]


def _begin(state: dict[str, Any], parameter: th.Tensor) -> None:
    """Make what torch's Adam makes of a parameter at its first step."""
    if not state:
        state["step"] = th.zeros((), dtype=th.float32)
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = th.zeros_like(parameter, memory_format=th.preserve_format)


def _place(tensor: th.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _dense_table(
    arena: _Arena, stack: list[nn.Module], n_rows: int, columns: tuple[str, ...]
) -> Any:
    """Return a table of dense layers, each with what follows it."""
    rows: list[dict[str, int]] = []
    for module in stack:
        if not isinstance(module, nn.Linear):
            rows[-1]["follows"] = _FOLLOWS[type(module)]
            continue
        n_in, n_out = module.in_features, module.out_features
        width = _padded(n_out)
        rows.append(
            {
                "inputs": n_in,
                "outputs": n_out,
                "follows": 0,
                "weight": module.weight.data_ptr(),
                "bias": module.bias.data_ptr(),
                "grad_weight": _place(module.weight.grad),
                "grad_bias": _place(module.bias.grad),
                "panels": arena.take(n_in, width),
                "back_panels": arena.take(_padded(n_in), width),
                "out": arena.take(n_rows, width),
                "slopes": arena.take(n_rows, width),
                "grad_out": arena.take(n_rows, width),
                "outer": arena.take(n_in + 1, width),
            }
        )
    table = [[row[name] for name in columns] for row in rows]
    return np.array(table, dtype=np.int64).reshape(len(rows), len(columns))


def _memory_row(
    arena: _Arena, rnn: Any, n_seq: int, n_steps: int, columns: tuple[str, ...]
) -> list[int]:
    """Return the row of a recurrent layer."""
    n_features, size, n_rows = rnn.input_size, rnn.hidden_size, n_seq * n_steps
    width, is_lstm = _padded(size), isinstance(rnn, nn.LSTM)
    weights = [rnn._parameters.get(name) for name in gate.weight_names(0, True)]
    names = ("w_ih", "w_hh", "b_ih", "b_hh")
    row = {"kind": 0 if is_lstm else 1, "features": n_features, "size": size}
    for name, weight in zip(names, weights, strict=True):
        row[name] = _place(weight)
        row[f"grad_{name}"] = 0 if weight is None else _place(weight.grad)
    row |= {
        "panels": arena.take(n_features + size, 4 * width),
        "panels_h": arena.take(size, 4 * width),
        "back_panels": arena.take(4 * width, width),
        "back_features": arena.take(4 * width, _padded(n_features)),
        "bias": arena.take(4 * width),
        "inputs": arena.take(n_rows, n_features + width),
        "kept": arena.take(n_seq, n_steps + 1, width),
        "gates": arena.take(n_rows, 4 * width),
        "shown": arena.take(n_rows, width),
        "hidden": arena.take(n_rows, width),
        "grad_hidden": arena.take(n_rows, width),
        "grad_h": arena.take(n_seq, width),
        "grad_c": arena.take(n_seq, width),
        "outer": arena.take(n_features + size + 1, 4 * width),
        "state_h": 0,
        "state_c": 0,
    }
    return [row[name] for name in columns]
