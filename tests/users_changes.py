"""What users change about policies, layers, heads, distributions, optimisers and callbacks.

A change is a function of the model, called before training begins or, with ``moment="mid"``, by a
callback in the middle of a rollout. Each must give what the plain torch path gives
(``unit/test_gate.py``); every later fast path joins the comparison.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
)
from stable_baselines3.common.torch_layers import FlattenExtractor, MlpExtractor
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils._python_dispatch import TorchDispatchMode

from thrust_pomdp import MlpLstmPolicy
from thrust_pomdp.ppo.distributions import (
    PlainCategoricalDistribution,
    PlainDiagGaussianDistribution,
)
from thrust_pomdp.recurrent import LRU, GTrXL, MinGRU


@dataclass(frozen=True)
class Change:
    """One change, and the model that it is made to."""

    apply: Callable[[Any], None] = lambda model: None
    moment: str = "before"
    actions: str = "Discrete"
    policy: type[MlpLstmPolicy] = MlpLstmPolicy
    kwargs: dict[str, Any] = field(default_factory=dict)
    #: Of what training computes.
    rounding: float = 1e-5


CHANGES: dict[str, Change] = {}


def change(name: str, **options: Any) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    def add(function: Callable[[Any], None]) -> Callable[[Any], None]:
        assert name not in CHANGES
        CHANGES[name] = Change(function, **options)
        return function

    return add


def both_moments(name: str, **options: Any) -> Any:
    """Make the change before training, and in the middle of a rollout."""

    def add(function: Callable[[Any], None]) -> Callable[[Any], None]:
        change(name, **options)(function)
        return change(f"{name}, in mid-rollout", moment="mid", **options)(function)

    return add


def policy_class(name: str, **options: Any) -> Callable[[type], type]:
    def add(cls: type) -> type:
        CHANGES[name] = Change(policy=cls, **options)
        return cls

    return add


def remake_optimizer(model: Any) -> None:
    policy = model.policy
    policy.optimizer = type(policy.optimizer)(policy.parameters(), lr=1e-3)


# ------------------------------------------------------------------------- recurrent layers


class Scale(nn.Module):
    def forward(self, weight: th.Tensor) -> th.Tensor:
        return 1.7 * weight


@both_moments("weight_norm on the recurrent weights")
def _(model):
    parametrizations.weight_norm(model.policy.lstm_actor, "weight_hh_l0")
    remake_optimizer(model)


@change("weight_norm on the critic's input weights")
def _(model):
    parametrizations.weight_norm(model.policy.lstm_critic, "weight_ih_l0")
    remake_optimizer(model)


@change("a registered scale on a bias")
def _(model):
    parametrize.register_parametrization(model.policy.lstm_actor, "bias_ih_l0", Scale())


@both_moments("a registered scale on a GRU", kwargs={"rnn_class": nn.GRU})
def _(model):
    parametrize.register_parametrization(model.policy.lstm_actor, "weight_hh_l0", Scale())


@change("orthogonal recurrent weights of an RNN", kwargs={"rnn_class": nn.RNN})
def _(model):
    parametrizations.orthogonal(model.policy.lstm_actor, "weight_hh_l0")
    remake_optimizer(model)


@change("a scale on the second of two layers", kwargs={"n_lstm_layers": 2})
def _(model):
    parametrize.register_parametrization(model.policy.lstm_actor, "weight_ih_l1", Scale())


@change("old-style weight_norm")
def _(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.weight_norm(model.policy.lstm_actor, "weight_hh_l0")
    remake_optimizer(model)


@both_moments("pruned recurrent weights")
def _(model):
    prune.l1_unstructured(model.policy.lstm_actor, "weight_hh_l0", amount=0.5)


@change("pruned for good")
def _(model):
    prune.l1_unstructured(model.policy.lstm_actor, "weight_hh_l0", amount=0.5)
    prune.remove(model.policy.lstm_actor, "weight_hh_l0")
    remake_optimizer(model)


class DoubledLSTM(nn.LSTM):
    def forward(self, features, states=None):
        output, states = super().forward(2 * features, states)
        return 0.5 * output, states


class DoubledGRU(nn.GRU):
    def forward(self, features, state=None):
        return super().forward(2 * features, state)


class DoubledRNN(nn.RNN):
    def forward(self, features, state=None):
        return super().forward(2 * features, state)


def put_in_place(module: Callable[[], nn.Module]) -> Callable[[Any], None]:
    def apply(model: Any) -> None:
        th.manual_seed(3)
        model.policy.lstm_actor = module()
        remake_optimizer(model)

    return apply


for _kind, _name in ((DoubledLSTM, "LSTM"), (DoubledGRU, "GRU"), (DoubledRNN, "RNN")):
    both_moments(
        f"a subclass of nn.{_name} with a forward of its own",
        kwargs={"rnn_class": getattr(nn, _name)},
    )(put_in_place(lambda kind=_kind: kind(4, 8)))


# ------------------------------------------------------------- memories in parallel over time

_MIN_GRU = {"kwargs": {"rnn_class": MinGRU, "n_lstm_layers": 2}}
_LRU = {"kwargs": {"rnn_class": LRU}}


@change("a minGRU as it is", **_MIN_GRU)
def _(model):
    pass


@change("an LRU as it is", **_LRU)
def _(model):
    pass


@both_moments("weight_norm on a minGRU's gates", **_MIN_GRU)
def _(model):
    parametrizations.weight_norm(model.policy.lstm_actor.layers[0].gates)
    remake_optimizer(model)


@both_moments("a registered scale on what an LRU's state is multiplied by", **_LRU)
def _(model):
    parametrize.register_parametrization(model.policy.lstm_actor.layers[0], "nu_log", Scale())


@both_moments("pruned weights into an LRU's state", **_LRU)
def _(model):
    prune.l1_unstructured(model.policy.lstm_actor.layers[0], "enter", amount=0.5)


@both_moments("a hook on a layer of a minGRU", **_MIN_GRU)
def _(model):
    layer = model.policy.lstm_actor.layers[1]
    layer.register_forward_hook(lambda layer, given, told: (2 * told[0], told[1]))


@both_moments("a hook on what an LRU tells", **_LRU)
def _(model):
    model.policy.lstm_actor.layers[0].tell.register_forward_hook(lambda *args: 2 * args[2])


@both_moments("a minGRU's step replaced on the object", **_MIN_GRU)
def _(model):
    memory = model.policy.lstm_actor
    step = memory.step
    memory.step = lambda features, states: step(2 * features, states)


@both_moments("an LRU's recurrence replaced on its layer", **_LRU)
def _(model):
    layer = model.policy.lstm_actor.layers[0]
    recall = layer.recall
    layer.recall = lambda read, state: recall(read, 0.5 * state)


@both_moments("another normalisation in a minGRU", **_MIN_GRU)
def _(model):
    model.policy.lstm_actor.layers[1].norm = nn.Tanh()


@both_moments("gates of a minGRU that are no single layer", **_MIN_GRU)
def _(model):
    th.manual_seed(3)
    gates = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 16))
    model.policy.lstm_actor.layers[0].gates = gates
    remake_optimizer(model)


_ONE_MIN_GRU = {"kwargs": {"rnn_class": MinGRU}}


@change("a minGRU of one layer as it is", **_ONE_MIN_GRU)
def _(model):
    pass


@both_moments("a minGRU that normalises features", **_ONE_MIN_GRU)
def _(model):
    model.policy.lstm_actor.layers[0].norm = nn.LayerNorm(4)
    remake_optimizer(model)


@both_moments("gates of a minGRU without a bias", **_ONE_MIN_GRU)
def _(model):
    th.manual_seed(3)
    model.policy.lstm_actor.layers[0].gates = nn.Linear(4, 16, bias=False)
    remake_optimizer(model)


@both_moments("a bias on what an LRU tells", **_LRU)
def _(model):
    th.manual_seed(3)
    model.policy.lstm_actor.layers[0].tell = nn.Linear(16, 8)
    remake_optimizer(model)


@both_moments("an LRU's half-lives moved through .data", **_LRU)
def _(model):
    model.policy.lstm_actor.layers[0].nu_log.data.sub_(1.0)


class LeakyLRU(LRU):
    def step(self, features, states):
        output, (hidden,) = super().step(features, states)
        return output, (0.9 * hidden,)


@change("a subclass of LRU with a step of its own", kwargs={"rnn_class": LeakyLRU})
def _(model):
    pass


class DoubledMinGRU(MinGRU):
    def forward(self, features, states, episode_starts):
        output, states = super().forward(2 * features, states, episode_starts)
        return 0.5 * output, states


@change("a subclass of MinGRU with a forward of its own", kwargs={"rnn_class": DoubledMinGRU})
def _(model):
    pass


# ---------------------------------------------------------------------------------- attention

_GTRXL = {"kwargs": {"rnn_class": GTrXL, "n_lstm_layers": 2, "lstm_kwargs": {"context": 6}}}


@change("a gated transformer as it is", **_GTRXL)
def _(model):
    pass


@both_moments("a hook on attention", **_GTRXL)
def _(model):
    model.policy.lstm_actor.layers[1].attention.register_forward_hook(lambda *args: 2 * args[2])


@both_moments("pruned keys", **_GTRXL)
def _(model):
    prune.l1_unstructured(model.policy.lstm_actor.layers[0].attention, "key", amount=0.5)


@both_moments("a registered scale on values", **_GTRXL)
def _(model):
    attention = model.policy.lstm_actor.layers[0].attention
    parametrize.register_parametrization(attention, "value", Scale())


# The slowest cosine is 1 at all distances, which softmax does not see: its weights have a gradient
# of nothing but rounding, and Adam makes whole steps of it.
@both_moments("another gate in a gated transformer", rounding=1e-4, **_GTRXL)
def _(model):
    class Sum(nn.Module):
        def forward(self, stream, update):
            return stream + update

    model.policy.lstm_actor.layers[1].mlp_gate = Sum()
    remake_optimizer(model)


@both_moments("a gated transformer's step replaced on the object", **_GTRXL)
def _(model):
    memory = model.policy.lstm_actor
    step = memory.step
    memory.step = lambda features, states: step(2 * features, states)


class LeakyGTrXL(GTrXL):
    def step(self, features, states):
        output, (inputs, count) = super().step(features, states)
        return output, (0.9 * inputs, count)


@change("a subclass of GTrXL with a step of its own", kwargs={"rnn_class": LeakyGTrXL})
def _(model):
    pass


class OwnMemory(nn.Module):
    """A recurrent module that is no layer of torch's; called time first, as sb3-contrib does."""

    def __init__(self, input_size: int = 4, hidden_size: int = 8) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        self.inner = nn.Linear(input_size + hidden_size, hidden_size)
        self.gate = nn.Linear(input_size + hidden_size, hidden_size)

    def forward(self, features, states):
        hidden, cell = states[0][0], states[1][0]
        outputs = []
        for step in features:
            both = th.cat((step, hidden), dim=1)
            cell = 0.9 * cell + th.sigmoid(self.gate(both)) * th.tanh(self.inner(both))
            hidden = th.tanh(cell)
            outputs.append(hidden)
        return th.stack(outputs), (hidden[None], cell[None])


class WithoutWeights(nn.Module):
    def forward(self, features, states):
        outputs = []
        hidden, cell = states
        for step in features:
            hidden = th.tanh(0.5 * hidden + step.repeat(1, 2)[None])
            outputs.append(hidden[0])
        return th.stack(outputs), (hidden, cell)


both_moments("a recurrent module of one's own")(put_in_place(OwnMemory))
change("a recurrent module without weights")(put_in_place(WithoutWeights))
change("a layer with batch_first")(put_in_place(lambda: nn.LSTM(4, 8, batch_first=True)))
change("a subclass with batch_first")(put_in_place(lambda: DoubledLSTM(4, 8, batch_first=True)))
change("a layer without bias")(put_in_place(lambda: nn.LSTM(4, 8, bias=False)))
both_moments("another layer of torch's")(put_in_place(lambda: nn.LSTM(4, 8)))


@both_moments("forward replaced on the layer")
def _(model):
    lstm = model.policy.lstm_actor
    plain = lstm.forward
    lstm.forward = lambda features, states: plain(-features, states)


@both_moments("a hook that changes the layer's output")
def _(model):
    model.policy.lstm_actor.register_forward_hook(
        lambda module, args, output: (2 * output[0], output[1])
    )


@change("a hook that changes the layer's input")
def _(model):
    model.policy.lstm_actor.register_forward_pre_hook(lambda module, args: (3 * args[0], *args[1:]))


@change(
    "a hook that scales the layer's gradients", kwargs={"net_arch": {"encoder": [6], "pi": [7]}}
)
def _(model):
    model.policy.lstm_actor.register_full_backward_hook(
        lambda module, grad_in, grad_out: tuple(None if g is None else 3 * g for g in grad_in)
    )


@change("a hook on all modules")
def _(model):
    def scale(module, args, output):
        return 1.5 * output if isinstance(module, nn.Linear) else None

    model.undo = nn.modules.module.register_module_forward_hook(scale)


@change("torch.compile of the layer")
def _(model):
    th.compiler.reset()  # what other tests compiled counts against its limits
    model.policy.lstm_actor = th.compile(model.policy.lstm_actor, backend="eager")


@change("the layer compiled in place")
def _(model):
    th.compiler.reset()
    model.policy.lstm_actor.compile(backend="eager")


@change("one layer for actor and critic")
def _(model):
    model.policy.lstm_critic = model.policy.lstm_actor
    remake_optimizer(model)


@change("weights shared by actor and critic")
def _(model):
    model.policy.lstm_critic.weight_hh_l0 = model.policy.lstm_actor.weight_hh_l0
    remake_optimizer(model)


@change("frozen recurrent weights")
def _(model):
    for parameter in model.policy.lstm_actor.parameters():
        parameter.requires_grad_(False)


@change("a hook on a weight's gradient")
def _(model):
    model.policy.lstm_actor.weight_hh_l0.register_hook(lambda grad: 0.1 * grad)


@change("weights that do not lie in one piece")
def _(model):
    weight = model.policy.lstm_actor.weight_hh_l0
    weight.data = weight.data.t().contiguous().t()


# ------------------------------------------------------------------------------------ heads


@both_moments("an action_net that is a Sequential")
def _(model):
    th.manual_seed(4)
    width = model.policy.mlp_extractor.latent_dim_pi
    model.policy.action_net = nn.Sequential(nn.Linear(width, 5), nn.Tanh(), nn.Linear(5, 2))
    remake_optimizer(model)


@both_moments("a value_net that is a Sequential")
def _(model):
    th.manual_seed(4)
    width = model.policy.mlp_extractor.latent_dim_vf
    model.policy.value_net = nn.Sequential(nn.Linear(width, 5), nn.Tanh(), nn.Linear(5, 1))
    remake_optimizer(model)


class Doubled(nn.Linear):
    def forward(self, rows):
        return 2 * super().forward(rows)


@both_moments("an action_net of a subclass of Linear")
def _(model):
    th.manual_seed(4)
    model.policy.action_net = Doubled(model.policy.mlp_extractor.latent_dim_pi, 2)
    remake_optimizer(model)


@change("weight_norm on the action head")
def _(model):
    parametrizations.weight_norm(model.policy.action_net, "weight")
    remake_optimizer(model)


@change("a value head without bias")
def _(model):
    model.policy.value_net = nn.Linear(model.policy.mlp_extractor.latent_dim_vf, 1, bias=False)
    remake_optimizer(model)


@both_moments("a hook on the action head")
def _(model):
    model.policy.action_net.register_forward_hook(lambda module, args, output: 0.5 * output)


@both_moments("forward replaced on the value head")
def _(model):
    head = model.policy.value_net
    head.forward = lambda rows: nn.functional.linear(rows, head.weight, head.bias) + 1.0


class Residual(MlpExtractor):
    def forward_actor(self, features):
        return super().forward_actor(features) + 1.0


@both_moments("an extractor of heads of one's own")
def _(model):
    th.manual_seed(4)
    model.policy.mlp_extractor = Residual(8, {"pi": [7], "vf": [7]}, nn.Tanh)
    remake_optimizer(model)


@change("another activation, and dropout that drops nothing")
def _(model):
    net = model.policy.mlp_extractor.policy_net
    net[1] = nn.GELU()
    net.append(nn.Dropout(0.0))


@change("a scale on a layer of the heads")
def _(model):
    parametrize.register_parametrization(
        model.policy.mlp_extractor.policy_net[0], "weight", Scale()
    )


@both_moments("a pruned layer of the heads")
def _(model):
    prune.l1_unstructured(model.policy.mlp_extractor.policy_net[0], "weight", amount=0.5)


@both_moments("a layer norm's epsilon", kwargs={"layer_norm": True})
def _(model):
    model.policy.mlp_extractor.policy_net[0].eps = 0.7


@change("a hook on an activation")
def _(model):
    model.policy.mlp_extractor.value_net[1].register_forward_hook(
        lambda module, args, output: output.square()
    )


class Skip(nn.Sequential):
    def forward(self, rows):
        return super().forward(rows) + 0.5


@both_moments("a container of one's own")
def _(model):
    extractor = model.policy.mlp_extractor
    extractor.policy_net = Skip(*extractor.policy_net)


@both_moments("a layer more in the heads")
def _(model):
    th.manual_seed(4)
    model.policy.mlp_extractor.policy_net.append(nn.Linear(7, 7))
    remake_optimizer(model)


@change("heads in torch.compile")
def _(model):
    th.compiler.reset()
    extractor = model.policy.mlp_extractor
    extractor.policy_net = th.compile(extractor.policy_net, backend="eager")


# --------------------------------------------------------------------------------- policies


@policy_class("a forward of one's own")
class OwnForward(MlpLstmPolicy):
    def forward(self, obs, *args, **kwargs):
        return super().forward(2 * obs, *args, **kwargs)

    def evaluate_actions(self, obs, *args, **kwargs):
        return super().evaluate_actions(2 * obs, *args, **kwargs)


@policy_class("heads that are a method")
class OwnHeads(MlpLstmPolicy):
    def _heads(self, memory_pi, memory_vf):
        distribution, values = super()._heads(memory_pi, memory_vf)
        return distribution, values + 3.0


@policy_class("a temperature")
class Temperature(MlpLstmPolicy):
    def _get_action_dist_from_latent(self, latent_pi):
        return self.action_dist.proba_distribution(self.action_net(latent_pi) / 3.0)


@policy_class("SB3's distribution returned")
class TheirDistribution(MlpLstmPolicy):
    def _get_action_dist_from_latent(self, latent_pi):
        distribution = CategoricalDistribution(2)
        return distribution.proba_distribution(self.action_net(latent_pi) / 2.0)


@policy_class("entropy counted double")
class OwnEvaluation(MlpLstmPolicy):
    def evaluate_actions(self, *args):
        values, log_prob, entropy = super().evaluate_actions(*args)
        return values, log_prob, 2 * entropy


@policy_class("a way of its own to run the memory")
class OwnSequences(MlpLstmPolicy):
    @staticmethod
    def _process_sequence(features, lstm_states, episode_starts, lstm):
        output, states = MlpLstmPolicy._process_sequence(
            features, lstm_states, episode_starts, lstm
        )
        return 2 * output, states


@policy_class("memory of one's own")
class OwnRecurrence(MlpLstmPolicy):
    def _recur(self, *args):
        memory_pi, memory_vf, states = super()._recur(*args)
        return memory_pi.square(), memory_vf, states


@policy_class("values of one's own at the cut")
class OwnValues(MlpLstmPolicy):
    def predict_values(self, *args):
        return super().predict_values(*args) + 5.0


@policy_class("features of one's own")
class OwnFeatures(MlpLstmPolicy):
    def extract_features(self, obs, *args):
        return 2 * super().extract_features(obs, *args)


@policy_class("a loss beside PPO's")
class OwnLoss(MlpLstmPolicy):
    def auxiliary_loss(self):
        return 0.01 * self.action_net.weight.square().sum()


@policy_class("windows evaluated in one's own way")
class OwnWindows(MlpLstmPolicy):
    def evaluate_sequences(self, *args):
        values, log_prob, entropy = super().evaluate_sequences(*args)
        return values, log_prob, 0.5 * entropy


def replaced_on_the_class(cls: type, name: str, replacement: Any) -> Callable[[Any], None]:
    def apply(model: Any) -> None:
        before = vars(cls)[name]

        class Undo:
            @staticmethod
            def remove() -> None:
                setattr(cls, name, before)

        model.undo = Undo
        setattr(cls, name, replacement(getattr(cls, name)))

    return apply


both_moments("a method replaced on the class")(
    replaced_on_the_class(
        MlpLstmPolicy,
        "_critic_memory",
        lambda plain: lambda self, *args: plain(self, *args),
    )
)
both_moments("heads replaced on the class")(
    replaced_on_the_class(
        MlpLstmPolicy,
        "_heads",
        lambda plain: lambda self, pi, vf: (plain(self, pi, vf)[0], plain(self, pi, vf)[1] - 2.0),
    )
)
change("torch's layer replaced by everybody's")(
    replaced_on_the_class(
        nn.LSTM, "forward", lambda plain: lambda self, x, states: plain(self, 2 * x, states)
    )
)


@both_moments("a method replaced on the object")
def _(model):
    policy = model.policy
    plain = policy._get_action_dist_from_latent
    policy._get_action_dist_from_latent = lambda latent: plain(-latent)


# ---------------------------------------------------------------------------- distributions


class Sharper(PlainCategoricalDistribution):
    def log_prob(self, actions):
        return 2 * super().log_prob(actions)


class Wider(PlainDiagGaussianDistribution):
    def sample(self):
        return self.mean + 2 * super().sample()


@both_moments("a categorical distribution of one's own")
def _(model):
    model.policy.action_dist = Sharper(2)


@both_moments("a Gaussian distribution of one's own", actions="Box")
def _(model):
    model.policy.action_dist = Wider(1)


@both_moments("SB3's categorical distribution put back")
def _(model):
    model.policy.action_dist = CategoricalDistribution(2)


@both_moments("SB3's Gaussian distribution put back", actions="Box")
def _(model):
    model.policy.action_dist = DiagGaussianDistribution(1)


@both_moments("log_prob replaced on the distribution")
def _(model):
    distribution = model.policy.action_dist
    plain = type(distribution).log_prob
    distribution.log_prob = lambda actions: plain(distribution, actions) - 0.25


@change("sample replaced on the distribution")
def _(model):
    distribution = model.policy.action_dist
    distribution.sample = lambda: distribution.log_probs.argmin(dim=-1)


class OneBitAtMost(BernoulliDistribution):
    def sample(self):
        bits = super().sample()
        return bits * (bits.cumsum(dim=1) == 1)


class DrawsAgain(PlainCategoricalDistribution):
    """Draws until nobody does the same as the environment before."""

    def sample(self):
        for _ in range(3):
            actions = super().sample()
            if (actions[1:] != actions[:-1]).all():
                break
        return actions


for _actions in ("MultiDiscrete", "MultiBinary"):
    CHANGES[f"{_actions} actions"] = Change(actions=_actions)


@both_moments("a distribution of bits of one's own", actions="MultiBinary")
def _(model):
    model.policy.action_dist = OneBitAtMost(2)


@both_moments("SB3's distribution of choices put back", actions="MultiDiscrete")
def _(model):
    model.policy.action_dist = MultiCategoricalDistribution([3, 2])


@both_moments("a distribution that draws several times")
def _(model):
    model.policy.action_dist = DrawsAgain(2)


@policy_class("a second draw in each step", actions="Box")
class SecondDraw(MlpLstmPolicy):
    def forward(self, *args, **kwargs):
        *_, values, _, states = super().forward(*args, **kwargs)
        actions = self.action_dist.sample()
        return actions, values, self.action_dist.log_prob(actions), states


@both_moments("another spread", actions="Box")
def _(model):
    model.policy.log_std = nn.Parameter(th.full((1, 1), -0.5))
    remake_optimizer(model)


@policy_class("a spread that depends on the state", actions="Box")
class StateDependentSpread(MlpLstmPolicy):
    def _get_action_dist_from_latent(self, latent_pi):
        spread = self.log_std + latent_pi[:, :1].tanh()
        return self.action_dist.proba_distribution(self.action_net(latent_pi), spread)


@policy_class("a clamped and expanded spread", actions="Box")
class ClampedSpread(MlpLstmPolicy):
    def _get_action_dist_from_latent(self, latent_pi):
        mean = self.action_net(latent_pi)
        spread = self.log_std.clamp(-2, 0.5).expand_as(mean)
        return self.action_dist.proba_distribution(mean, spread)


@policy_class("a single number for the spread", actions="Box")
class OneSpread(MlpLstmPolicy):
    def _get_action_dist_from_latent(self, latent_pi):
        return self.action_dist.proba_distribution(
            self.action_net(latent_pi), self.log_std.mean() - 1.0
        )


CHANGES["state-dependent exploration"] = Change(actions="Box", kwargs={"use_sde": True})

# ------------------------------------------------------------------------------- extractors


class OwnExtractor(FlattenExtractor):
    def forward(self, observations):
        return super().forward(observations) * 3.0


CHANGES["an extractor of one's own"] = Change(kwargs={"features_extractor_class": OwnExtractor})
CHANGES["two extractors"] = Change(kwargs={"share_features_extractor": False})


@both_moments("a hook on the extractor")
def _(model):
    model.policy.features_extractor.register_forward_hook(lambda module, args, out: out + 1.0)


@both_moments("forward replaced on the extractor")
def _(model):
    model.policy.features_extractor.forward = lambda obs: obs.flatten(1) * 0.5


@both_moments("a scale in the encoder", kwargs={"net_arch": {"encoder": [6], "pi": [7]}})
def _(model):
    parametrize.register_parametrization(
        model.policy.features_extractor.layers[0], "weight", Scale()
    )


# ------------------------------------------------------------------------------- optimisers


class OwnAdam(th.optim.Adam):
    def step(self, closure=None):
        super().step(closure)
        super().step(closure)


CHANGES["another optimiser"] = Change(kwargs={"optimizer_class": th.optim.SGD})
CHANGES["an optimiser of one's own"] = Change(kwargs={"optimizer_class": OwnAdam})
CHANGES["a differentiable optimiser"] = Change(
    kwargs={"optimizer_kwargs": {"differentiable": False, "foreach": True}}
)


@change("a hook on the optimiser")
def _(model):
    def halve(optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(0.5)

    model.policy.optimizer.register_step_pre_hook(halve)


@change("groups of parameters")
def _(model):
    policy = model.policy
    memory = list(policy.lstm_actor.parameters())
    rest = [p for p in policy.parameters() if all(p is not m for m in memory)]
    policy.optimizer = th.optim.Adam(
        [{"params": memory, "weight_decay": 0.1}, {"params": rest}], lr=1e-3
    )


@change("a scheduler of the learning rate")
def _(model):
    optimizer = model.policy.optimizer
    scheduler = th.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    optimizer.register_step_post_hook(lambda *args: scheduler.step())


@change("gradients cleared in one's own way")
def _(model):
    optimizer = model.policy.optimizer
    plain = optimizer.zero_grad

    def add_a_tenth(*args):
        plain(*args)
        for parameter in model.policy.parameters():
            parameter.grad = th.full_like(parameter, 1e-3)

    optimizer.zero_grad = add_a_tenth


@change("a hook once a gradient is accumulated")
def _(model):
    model.policy.action_net.weight.register_post_accumulate_grad_hook(
        lambda parameter: setattr(parameter, "grad", 0.1 * parameter.grad)
    )


@change("an optimiser of some of the parameters")
def _(model):
    policy = model.policy
    policy.optimizer = th.optim.Adam(policy.mlp_extractor.parameters(), lr=1e-2)


@change("parameters that nobody reads")
def _(model):
    model.policy.extra = nn.Parameter(th.ones(3))
    model.policy.extra.grad = th.full((3,), 2.0)  # zero_grad() leaves what is not its own
    model.policy.optimizer = th.optim.Adam(
        [p for name, p in model.policy.named_parameters() if name != "extra"], lr=1e-2
    )


@change("moments of Adam that were there before")
def _(model):
    generator = th.Generator().manual_seed(0)
    optimizer = model.policy.optimizer
    for parameter in model.policy.parameters():
        optimizer.state[parameter] = {
            "step": th.tensor(7.0),
            "exp_avg": 0.1 * th.randn(parameter.shape, generator=generator),
            "exp_avg_sq": th.rand(parameter.shape, generator=generator),
        }


class OwnLosses:
    """Changes a method of training on the model itself."""

    def __init__(self, model: Any) -> None:
        self.plain = model._losses

    def __call__(self, *args: Any) -> Any:
        losses = self.plain(*args)
        return losses._replace(loss=1.7 * losses.loss)


@change("a loss of one's own on the model")
def _(model):
    model._losses = OwnLosses(model)


for _name, _options in {
    "weight decay": {"weight_decay": 0.1},
    "AMSGrad": {"amsgrad": True},
    "maximising": {"maximize": True},
    "other betas": {"betas": (0.5, 0.9), "eps": 1e-3},
    "its plain form": {"fused": False, "foreach": False},
}.items():
    CHANGES[f"Adam with {_name}"] = Change(kwargs={"optimizer_kwargs": _options})
CHANGES["AdamW"] = Change(kwargs={"optimizer_class": th.optim.AdamW})

# What one compiled call trains on, in all its kinds.
for _name, _kwargs in {
    "a GRU": {"rnn_class": nn.GRU},
    "one shared LSTM": {"shared_lstm_critic_gradient": True},
    "one shared GRU, detached": {
        "rnn_class": nn.GRU, "shared_lstm": True, "enable_critic_lstm": False,
    },
    "a critic without memory": {
        "enable_critic_lstm": False, "net_arch": {"encoder": [6], "pi": []},
    },
    "heads of relu": {"activation_fn": nn.ReLU, "net_arch": {"pi": [9, 5], "vf": [20]}},
    "no layers": {"net_arch": []},
}.items():  # fmt: skip
    for _actions in ("Discrete", "Box"):
        CHANGES[f"{_name}, {_actions} actions"] = Change(actions=_actions, kwargs=_kwargs)


# ------------------------------------------------------------- weights changed in mid-rollout


def mid(name: str, **options: Any) -> Any:
    return change(name, moment="mid", **options)


@mid("a step of the fused optimiser")
def _(model):
    policy = model.policy
    for parameter in policy.parameters():
        parameter.grad = th.ones_like(parameter)
    for group in policy.optimizer.param_groups:
        group["lr"] = 0.05
    policy.optimizer.step()


@mid("the same, of a GRU", kwargs={"rnn_class": nn.GRU})
def _(model):
    CHANGES["a step of the fused optimiser"].apply(model)


@mid("clamped through .data")
def _(model):
    for parameter in model.policy.lstm_actor.parameters():
        parameter.data.clamp_(-0.05, 0.05)


@mid("clamped through .data, an RNN", kwargs={"rnn_class": nn.RNN})
def _(model):
    for parameter in model.policy.lstm_actor.parameters():
        parameter.data.clamp_(-0.05, 0.05)


@mid("written through NumPy")
def _(model):
    model.policy.lstm_actor.weight_hh_l0.detach().numpy()[:, 0] = 0.5


@mid("one bit written through NumPy")
def _(model):
    bits = model.policy.lstm_critic.bias_hh_l0.detach().numpy().view(np.uint32)
    bits[3] = np.float32(1.5).view(np.uint32)


@mid("other memory through .data")
def _(model):
    for parameter in model.policy.parameters():
        parameter.data = parameter.data * 0.5


@mid("weights from one vector")
def _(model):
    vector = nn.utils.parameters_to_vector(model.policy.parameters())
    nn.utils.vector_to_parameters(0.7 * vector, model.policy.parameters())


@mid("load_state_dict")
def _(model):
    state = {name: 0.6 * value for name, value in model.policy.state_dict().items()}
    model.policy.load_state_dict(state)


@mid("load_state_dict(assign=True)")
def _(model):
    state = {name: 0.6 * value for name, value in model.policy.state_dict().items()}
    model.policy.load_state_dict(state, assign=True)
    remake_optimizer(model)


@mid("a parameter exchanged")
def _(model):
    lstm = model.policy.lstm_actor
    lstm.weight_hh_l0 = nn.Parameter(0.3 * lstm.weight_hh_l0.detach())
    remake_optimizer(model)


@mid("the model's own set_parameters")
def _(model):
    parameters = copy.deepcopy(model.get_parameters())
    parameters["policy"]["lstm_actor.bias_ih_l0"] += 0.5
    model.set_parameters(parameters)


@mid("another policy")
def _(model):
    model.policy = copy.deepcopy(model.policy)
    with th.no_grad():
        for parameter in model.policy.parameters():
            parameter.mul_(0.3)


@mid("the policy's class")
def _(model):
    model.policy.__class__ = Temperature


@mid("a copy of a layer put in place")
def _(model):
    policy = model.policy
    policy.lstm_actor = copy.deepcopy(policy.lstm_actor)
    with th.no_grad():
        policy.lstm_actor.weight_hh_l0.mul_(0.1)
    remake_optimizer(model)


# ------------------------------------------------------------------------- torch's own modes


class Undo:
    def __init__(self, context: Any) -> None:
        self.context = context
        context.__enter__()

    def remove(self) -> None:
        self.context.__exit__(None, None, None)


@change("training under autocast", rounding=2e-3)
def _(model):
    train = model.train

    def under_autocast() -> None:
        with th.autocast("cpu", dtype=th.bfloat16):
            train()

    model.train = under_autocast


class Counting(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@both_moments("a dispatch mode")
def _(model):
    model.undo = Undo(Counting())
