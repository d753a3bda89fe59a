"""PPO's loss and all its gradients against its definition in float64, on random policies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from hypothesis import assume
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import log_softmax, logsigmoid

from laws.budget import case, law
from laws.layers import N_PARTS, State, definition
from laws.numeric_paths import assert_near, numeric_path
from laws.strategies import SEEDS, starts
from thrust_pomdp.ppo.losses import ppo_losses
from thrust_pomdp.ppo.policies import RecurrentActorCriticPolicy
from thrust_pomdp.ppo.sequence_batch import SequenceBatch
from thrust_pomdp.recurrent.sequences import ResetLayout, RNNStates

ACTIONS: dict[str, spaces.Space[Any]] = {
    "two": spaces.Discrete(2),
    "five": spaces.Discrete(5),
    "from three on": spaces.Discrete(3, start=3),
    "numbers": spaces.MultiDiscrete([3, 2, 4]),
    "bits": spaces.MultiBinary(3),
    "one": spaces.Box(-1, 1, (1,)),
    "vector": spaces.Box(-1, 1, (3,)),
    "vector, gSDE": spaces.Box(-1, 1, (2,)),
    "vector, gSDE, squashed": spaces.Box(-1, 1, (2,)),
}
CRITICS: dict[str, dict[str, bool]] = {
    "own memory": {},
    "no memory": {"enable_critic_lstm": False},
    "the actor's": {"shared_lstm": True, "enable_critic_lstm": False},
    "the actor's, with gradient": {"shared_lstm_critic_gradient": True},
}
RNN_CLASSES = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}
ARCHITECTURES: dict[str, Any] = {
    "straight": {"pi": [], "vf": []},
    "heads": {"pi": [5], "vf": [4, 3]},
    "encoder": {"encoder": [4], "pi": [], "vf": [3]},
}
ACTIVATIONS = {"Tanh": nn.Tanh, "SiLU": nn.SiLU}
#: Of float32: log-probabilities are sums of some numbers below 20.
TOLERANCE = 2e-5
#: Ratios and values keep this far from where they are clipped: there the gradient jumps.
MARGIN = 1e-3


@case
class LossCase:
    actions: str
    memory: str
    n_layers: int
    critic: str
    architecture: str
    activation: str
    layer_norm: bool
    starts: tuple[str, ...]
    with_states: bool
    clip_range: float
    clip_range_vf: float | None
    ent_coef: float
    vf_coef: float
    normalize_advantage: bool
    first_pass: bool
    compiled: bool
    seed: int


CASES = st.builds(
    LossCase,
    actions=st.sampled_from(list(ACTIONS)),
    memory=st.sampled_from(list(RNN_CLASSES)),
    n_layers=st.integers(1, 2),
    critic=st.sampled_from(list(CRITICS)),
    architecture=st.sampled_from(list(ARCHITECTURES)),
    activation=st.sampled_from(list(ACTIVATIONS)),
    layer_norm=st.booleans(),
    starts=starts(max_rows=4, max_steps=7),
    with_states=st.booleans(),
    clip_range=st.sampled_from([0.2, 0.05, 0.5]),
    clip_range_vf=st.sampled_from([None, 0.2, 0.01, 2.0]),
    ent_coef=st.sampled_from([0.0, 0.01, 0.5]),
    vf_coef=st.sampled_from([0.5, 0.0, 2.0]),
    normalize_advantage=st.booleans(),
    first_pass=st.booleans(),
    compiled=st.booleans(),
    seed=SEEDS,
)


def make_policy(case: LossCase) -> RecurrentActorCriticPolicy:
    uses_sde = "gSDE" in case.actions
    th.manual_seed(case.seed)
    policy = RecurrentActorCriticPolicy(
        spaces.Box(-9, 9, (3,)),
        ACTIONS[case.actions],
        lambda _: 1e-3,
        net_arch=ARCHITECTURES[case.architecture],
        activation_fn=ACTIVATIONS[case.activation],
        layer_norm=case.layer_norm,
        use_sde=uses_sde,
        squash_output="squashed" in case.actions,
        lstm_hidden_size=6,
        n_lstm_layers=case.n_layers,
        rnn_class=RNN_CLASSES[case.memory],
        **CRITICS[case.critic],
    )
    with th.no_grad():
        for parameter in policy.parameters():
            parameter += 0.3 * th.randn_like(parameter)
    return policy


def in_float64(module: nn.Module, x: th.Tensor) -> th.Tensor:
    weights = {name: part.double() for name, part in module.named_parameters()}
    result: th.Tensor = th.func.functional_call(module, weights, (x,))
    return result


def heads(
    case: LossCase, policy: Any, obs: th.Tensor, flags: th.Tensor, states: tuple[State, State]
) -> tuple[th.Tensor, th.Tensor]:
    """Return what actor's and critic's last layers read, a row a step, float64."""

    def remember(rnn: nn.Module, features: th.Tensor, state: State) -> th.Tensor:
        return definition(case.memory, rnn, features, flags, state)[0]

    features = obs
    if case.architecture == "encoder":
        features = in_float64(policy.features_extractor, obs.flatten(end_dim=1))
        features = features.unflatten(0, obs.shape[:2])
    memory_pi = memory_vf = remember(policy.lstm_actor, features, states[0])
    if case.critic == "own memory":
        memory_vf = remember(policy.lstm_critic, features, states[1])
    elif case.critic == "no memory":
        memory_vf = in_float64(policy.critic, features)
    elif case.critic == "the actor's":
        memory_vf = memory_pi.detach()
    extractor = policy.mlp_extractor
    return (
        in_float64(extractor.policy_net, memory_pi.flatten(end_dim=1)),
        in_float64(extractor.value_net, memory_vf.flatten(end_dim=1)),
    )


def spread(case: LossCase, policy: Any, latent: th.Tensor) -> th.Tensor:
    """Return the standard deviations of Box actions, ``[rows, action_dim]``."""
    std = policy.log_std.double().exp()
    if "gSDE" in case.actions:  # Raffin et al. 2022; the features of the noise are not learnt
        return ((latent.detach() ** 2) @ std**2 + 1e-6).sqrt()
    return std.expand(len(latent), -1)


@th.no_grad()
def some_actions(
    case: LossCase, policy: Any, latent: th.Tensor, rng: np.random.Generator
) -> th.Tensor:
    """Return actions that were drawn near what the policy does now, as a rollout's are."""
    space, rows = ACTIONS[case.actions], len(latent)
    if isinstance(space, spaces.Discrete):
        return th.as_tensor(rng.integers(space.n, size=(rows, 1)))
    if not isinstance(space, spaces.Box):
        sizes = space.nvec if isinstance(space, spaces.MultiDiscrete) else [2] * space.n
        return th.as_tensor(np.stack([rng.integers(size, size=rows) for size in sizes], axis=1))
    std = spread(case, policy, latent)
    assume(std.min() > 0.02)  # of a float32 action near 1 less is known than of the spread
    drawn = in_float64(policy.action_net, latent) + std * th.as_tensor(rng.normal(size=std.shape))
    if "squashed" in case.actions:
        drawn = drawn.tanh().clamp(-0.95, 0.95)  # nearer to the end float32 has few numbers
    return drawn.float()


def log_prob_and_entropy(
    case: LossCase, policy: Any, latent: th.Tensor, actions: th.Tensor
) -> tuple[th.Tensor, th.Tensor | None]:
    """Return both of ``[rows, ...]`` actions by their formulas; some have no entropy in one."""
    space, out = ACTIONS[case.actions], in_float64(policy.action_net, latent)
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        sizes = [int(space.n)] if isinstance(space, spaces.Discrete) else space.nvec.tolist()
        log_probs = [log_softmax(part, dim=1) for part in out.split(sizes, dim=1)]
        columns = actions.reshape(len(out), -1).long().unbind(dim=1)
        chosen = [p.gather(1, a[:, None])[:, 0] for p, a in zip(log_probs, columns, strict=True)]
        return sum(chosen), sum(-(p * p.exp()).sum(dim=1) for p in log_probs)  # type: ignore
    if isinstance(space, spaces.MultiBinary):
        on, off = logsigmoid(out), logsigmoid(-out)
        log_prob = (actions * on + (1 - actions) * off).sum(dim=1)
        return log_prob, -(on.exp() * on + off.exp() * off).sum(dim=1)
    std = spread(case, policy, latent)
    drawn = th.atanh(actions) if "squashed" in case.actions else actions
    log_prob = (-0.5 * ((drawn - out) / std) ** 2 - std.log() - 0.5 * math.log(2 * math.pi)).sum(1)
    if "squashed" in case.actions:
        return log_prob - th.log(1 - actions**2 + 1e-6).sum(dim=1), None
    return log_prob, (0.5 + 0.5 * math.log(2 * math.pi) + std.log()).sum(dim=1)


def away_from(change: np.ndarray, low: float, high: float) -> np.ndarray:
    """Move what is clipped to the one side or the other of where it is."""
    for edge in (low, high):
        change = np.where(np.abs(change - edge) < MARGIN, edge + 2 * MARGIN, change)
    return change


def loss_of(
    case: LossCase, new: tuple[th.Tensor, th.Tensor, th.Tensor | None], old: dict[str, th.Tensor]
) -> dict[str, th.Tensor]:
    """Schulman et al. 2017, equation 9, with SB3's clipped values."""
    log_prob, values, entropy = new
    advantages = old["advantages"]
    if case.normalize_advantage and len(advantages) > 1:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratio = (log_prob - old["old_log_prob"]).exp()
    clipped = ratio.clamp(1 - case.clip_range, 1 + case.clip_range)
    policy_loss = -th.minimum(ratio * advantages, clipped * advantages).mean()
    if case.clip_range_vf is not None:
        change = (values - old["old_values"]).clamp(-case.clip_range_vf, case.clip_range_vf)
        values = old["old_values"] + change
    value_loss = ((old["returns"] - values) ** 2).mean()
    entropy_loss = log_prob.mean() if entropy is None else -entropy.mean()
    return {
        "loss": policy_loss + case.ent_coef * entropy_loss + case.vf_coef * value_loss,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy_loss": entropy_loss,
        "clip_fraction": ((ratio - 1).abs() > case.clip_range).double().mean(),
        "approx_kl": (ratio - 1 - ratio.log()).mean(),
    }


@law(CASES, fixed=250, long=1500)
def test_loss_and_gradients_are_those_of_the_definition(case: LossCase) -> None:
    with numeric_path(case.compiled):
        policy: Any = make_policy(case)
        rng = np.random.default_rng(case.seed)
        n_seq, n_steps = len(case.starts), len(case.starts[0])
        rows = n_seq * n_steps
        flags = th.tensor([[flag == "1" for flag in row] for row in case.starts])
        obs = th.as_tensor(rng.normal(size=(n_seq, n_steps, 3)), dtype=th.float32)

        def state() -> State:
            sizes = (case.n_layers, n_seq, 6)
            return tuple(
                th.as_tensor(rng.normal(size=sizes) * case.with_states, dtype=th.float32)
                for _ in range(N_PARTS[case.memory])
            )

        pi = state()
        vf = state() if case.critic == "own memory" else pi
        exact_states = tuple(p.double() for p in pi), tuple(p.double() for p in vf)
        latent_pi, latent_vf = heads(case, policy, obs.double(), flags, exact_states)
        taken = some_actions(case, policy, latent_pi, rng)
        log_prob, entropy = log_prob_and_entropy(case, policy, latent_pi, taken.double())
        values = in_float64(policy.value_net, latent_vf)[:, 0]

        # Old numbers from which the new ones have moved so that every side of a clip is met.
        spread = 0.0 if case.first_pass else 2.0
        low, high = math.log(1 - case.clip_range), math.log(1 + case.clip_range)
        moved = away_from(spread * case.clip_range * rng.normal(size=rows), low, high)
        vf_range = case.clip_range_vf or 1.0
        changed = away_from(spread * vf_range * rng.normal(size=rows), -vf_range, vf_range)
        # Apart from one another: the spread of two that are almost equal is all rounding.
        advantages = rng.permutation(np.linspace(-2.0, 2.0, rows) + rng.uniform(-3, 3))
        old = {
            "old_log_prob": (log_prob.detach() - th.as_tensor(moved)).float(),
            "old_values": (values.detach() - th.as_tensor(changed)).float(),
            "advantages": th.as_tensor(advantages).float(),
            "returns": values.detach().float() + th.as_tensor(rng.normal(size=rows)).float(),
        }
        batch = SequenceBatch(
            observations=obs,
            actions=taken.unflatten(0, (n_seq, n_steps)),
            **{name: part.view(n_seq, n_steps) for name, part in old.items()},
            episode_starts=flags,
            initial_state=RNNStates(pi, vf) if case.with_states else None,
            layout=ResetLayout.from_episode_starts(flags),
        )
        losses = ppo_losses(
            policy,
            batch,
            clip_range=case.clip_range,
            clip_range_vf=case.clip_range_vf,
            ent_coef=case.ent_coef,
            vf_coef=case.vf_coef,
            normalize_advantage=case.normalize_advantage,
        )
        exact = loss_of(
            case, (log_prob, values, entropy), {name: p.double() for name, p in old.items()}
        )
        for name, theirs in exact.items():
            assert_near(getattr(losses, name), theirs, TOLERANCE, name)
        names, weights = zip(*policy.named_parameters(), strict=True)
        ours, expected = (
            th.autograd.grad(total, weights, allow_unused=True)
            for total in (losses.loss, exact["loss"])
        )
        # Relative to the largest of all: of one that is a difference of large ones less is known.
        largest = max(part.abs().max().item() for part in expected if part is not None)
        for name, mine, other in zip(names, ours, expected, strict=True):
            mine, other = (
                th.zeros_like(policy.get_parameter(name)) if part is None else part
                for part in (mine, other)
            )
            error = (mine - other).abs().max().item()
            assert error <= TOLERANCE * largest + 1e-7, (
                f"{name}: off by {error:.3g} of {largest:.3g}"
            )
