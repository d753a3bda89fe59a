"""SB3's distributions of actions, drawn by an environment's own random numbers.

While a model collects or ``predict`` is asked, draws are made of the environments' streams
(:mod:`thrust_pomdp.ppo.action_noise`), elsewhere of numbers of torch's global generator, in the
same way: a choice is where a uniform number falls on the cumulated probabilities, a bit whether it
is below its probability, a Gaussian number the mean and so many standard deviations.

The ``Plain`` distributions are plain tensor operations besides. SB3 builds and validates a torch
distribution object at every call, which costs more than the network of a small policy. Their other
numbers are SB3's to rounding.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Self

import torch as th
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    Distribution,
    MultiCategoricalDistribution,
    SquashedDiagGaussianDistribution,
    StateDependentNoiseDistribution,
    sum_independent_dims,
)
from torch.distributions import Categorical, Normal

from thrust_pomdp.ppo.action_noise import ActionNoise, Conversion, Numbers, present_noise
from thrust_pomdp.unmodified_classes import against_methods, remember


def _checked(given: Any, kind: type[Any]) -> Any:
    if type(given) is not kind:
        raise ValueError(
            f"distribution must be a torch.distributions.{kind.__name__}, got {given!r}: for "
            "another kind give the policy an action_dist of its own"
        )
    return given


def _present_noise(distribution: Distribution, parameters: th.Tensor) -> ActionNoise | None:
    """Return the streams that a distribution draws its actions from; None for torch's generator.

    :param distribution: one of a user's own, or of ours and changed, draws from the latter
    :param parameters: ``[rows, ...]``, a row for each action
    """
    shape = parameters.shape
    # In a graph the numbers of the step in which it was made would be constants.
    if th.compiler.is_compiling() or len(shape) != 2:
        return None
    noise = present_noise(shape[0])
    return None if noise is None or against_ours(distribution) else noise


def _uniforms(distribution: Distribution, parameters: th.Tensor, shape: th.Size) -> th.Tensor:
    """Draw uniform numbers from [0, 1), of a shape that is ``[rows]`` or ``[rows, width]``."""
    device = parameters.device
    # Double precision, which Apple's devices do not have: small probabilities are not rounded away.
    dtype = th.float32 if device.type == "mps" else th.float64
    noise = _present_noise(distribution, parameters)
    if noise is None:
        return th.rand(shape, dtype=dtype, device=device)
    numbers: th.Tensor = noise.uniforms(shape[1] if len(shape) > 1 else 1, _on(device, dtype))
    if dtype is th.float32:  # what is just below 1 may have been rounded up to it
        numbers = numbers.clamp(max=1 - 2**-24)
    return numbers.view(shape)


def _normals(distribution: Distribution, mean: th.Tensor) -> th.Tensor:
    """Draw standard normal numbers like some means, ``[rows, action_dim]``."""
    noise = _present_noise(distribution, mean)
    if noise is None:
        return th.empty_like(mean).normal_()
    numbers: th.Tensor = noise.normals(mean.shape[1], _on(mean.device, mean.dtype))
    return numbers


@functools.cache
def _on(device: th.device, dtype: th.dtype) -> Conversion:
    """Return what makes tensors of numbers, one and the same, so that a block is made one once."""

    def convert(numbers: Numbers) -> th.Tensor:
        with th.inference_mode(False):  # the block is for later steps too, which may need gradients
            return th.from_numpy(numbers).to(device, dtype)

    return convert


def chosen(probabilities: th.Tensor, uniforms: th.Tensor) -> th.Tensor:
    """Choose by where uniform numbers fall on the cumulated probabilities.

    >>> chosen(th.tensor([[0.25, 0.5, 0.0, 0.25]] * 4), th.tensor([0.0, 0.25, 0.75, 0.99]))
    tensor([0, 1, 3, 3])

    The compiled heads choose alike (:func:`thrust_pomdp.recurrent.kernels.chosen`): sums are taken
    one after the other, in the numbers' own precision. The product of a total and a number below 1
    of the same precision is below the total, whatever the rounding.

    :param probabilities: ``[..., n]``; what has probability 0 is never chosen
    :param uniforms: ``[...]``, from [0, 1)
    :return: ``[...]``, int64
    """
    sums = probabilities.cumsum(dim=-1, dtype=uniforms.dtype)
    return (sums <= uniforms.unsqueeze(-1) * sums[..., -1:]).sum(dim=-1)


class PlainCategoricalDistribution(CategoricalDistribution):
    """What SB3's ``CategoricalDistribution`` gives, without a torch ``Categorical`` per call."""

    def proba_distribution(self, action_logits: th.Tensor) -> Self:
        """Set the logits, ``[rows, n_actions]``."""
        self.logits = action_logits
        self._log_probs: th.Tensor | None = None
        return self

    @property
    def log_probs(self) -> th.Tensor:
        """The log-probabilities of all actions, ``[rows, n_actions]``."""
        if self._log_probs is None:
            self._log_probs = th.log_softmax(self.logits, dim=-1)
        return self._log_probs

    @property
    def distribution(self) -> Categorical:
        """The torch distribution, for programs that look into it; another may be assigned."""
        return Categorical(logits=self.log_probs)

    @distribution.setter
    def distribution(self, given: Categorical) -> None:
        self.proba_distribution(_checked(given, Categorical).logits)

    def log_prob(self, actions: th.Tensor) -> th.Tensor:
        """Return the log-probabilities of ``[rows]`` actions.

        Shapes broadcast as torch's ``Categorical`` has it: one row of logits serves many actions.
        """
        index, log_probs = actions.long().unsqueeze(-1), self.log_probs
        if index.shape[:-1] != log_probs.shape[:-1]:
            index, log_probs = th.broadcast_tensors(index, log_probs)  # type: ignore[no-untyped-call]
            index = index[..., :1]
        return log_probs.gather(-1, index).squeeze(-1)

    def entropy(self) -> th.Tensor:
        """Return the entropies, ``[rows]``."""
        # An impossible action has log-probability -inf and adds nothing: 0 * -inf would be NaN.
        finite = self.log_probs.clamp(min=th.finfo(self.log_probs.dtype).min)
        return -(finite * finite.exp()).sum(dim=-1)

    def sample(self) -> th.Tensor:
        """Draw actions, ``[rows]``."""
        uniforms = _uniforms(self, self.logits, self.logits.shape[:-1])
        return chosen(self.log_probs.detach().exp(), uniforms)

    def mode(self) -> th.Tensor:
        """Return the most likely actions, ``[rows]``."""
        return self.log_probs.argmax(dim=-1)


#: Differential entropy of a standard normal variable, and minus the log of its density at 0.
_ENTROPY = 0.5 + 0.5 * math.log(2 * math.pi)
_LOG_NORMALIZER = 0.5 * math.log(2 * math.pi)


class PlainDiagGaussianDistribution(DiagGaussianDistribution):
    """What SB3's ``DiagGaussianDistribution`` gives, without a torch ``Normal`` per call."""

    def proba_distribution(self, mean_actions: th.Tensor, log_std: th.Tensor) -> Self:
        """Set means ``[rows, action_dim]`` and log standard deviations.

        :param log_std: ``[action_dim]``, or whatever broadcasts with the means: a spread of its own
            for each row
        """
        if log_std.ndim != 1 or log_std.shape != mean_actions.shape[1:]:
            mean_actions, log_std = th.broadcast_tensors(  # type: ignore[no-untyped-call]
                mean_actions, log_std
            )
        self.mean, self.log_std = mean_actions, log_std
        return self

    @property
    def distribution(self) -> Normal:
        """The torch distribution, for programs that look into it; another may be assigned."""
        return Normal(self.mean, self.log_std.exp().expand_as(self.mean))

    @distribution.setter
    def distribution(self, given: Normal) -> None:
        normal = _checked(given, Normal)
        self.proba_distribution(normal.loc, normal.scale.log())

    def log_prob(self, actions: th.Tensor) -> th.Tensor:
        """Return the log-densities of ``[rows, action_dim]`` actions."""
        scaled = (actions - self.mean) * (-self.log_std).exp()
        if self.log_std.ndim == 1 < scaled.ndim:  # one spread for all rows: its sum is one number
            normalizer = self.log_std.sum() + len(self.log_std) * _LOG_NORMALIZER
            return scaled.square().sum(dim=1) * -0.5 - normalizer
        return sum_independent_dims(scaled.square() * -0.5 - self.log_std - _LOG_NORMALIZER)

    def entropy(self) -> th.Tensor:
        """Return the entropies, ``[rows]``."""
        if self.log_std.ndim == 1 < self.mean.ndim:  # the same number for all
            entropy = self.log_std.sum() + len(self.log_std) * _ENTROPY
            return entropy.expand(len(self.mean))
        return sum_independent_dims(self.log_std + _ENTROPY)

    def sample(self) -> th.Tensor:
        """Draw actions, ``[rows, action_dim]``."""
        return self.mean + _normals(self, self.mean) * self.log_std.exp()

    def mode(self) -> th.Tensor:
        """Return the most likely actions, ``[rows, action_dim]``."""
        return self.mean


class DrawnSquashedDiagGaussianDistribution(SquashedDiagGaussianDistribution):
    """SB3's ``SquashedDiagGaussianDistribution``, drawn by an environment's random numbers."""

    def sample(self) -> th.Tensor:
        """Draw actions, ``[rows, action_dim]``."""
        normal: Any = self.distribution
        self.gaussian_actions = normal.loc + _normals(self, normal.loc) * normal.scale
        return th.tanh(self.gaussian_actions)


class DrawnMultiCategoricalDistribution(MultiCategoricalDistribution):
    """SB3's ``MultiCategoricalDistribution``, drawn by an environment's random numbers."""

    def sample(self) -> th.Tensor:
        """Draw actions, ``[rows, n_choices]``."""
        choices: Any = self.distribution
        first = choices[0].logits
        uniforms = _uniforms(self, first, th.Size((*first.shape[:-1], len(choices))))
        drawn = [
            chosen(choice.probs, numbers)
            for choice, numbers in zip(choices, uniforms.unbind(dim=-1), strict=True)
        ]
        return th.stack(drawn, dim=1)


class DrawnBernoulliDistribution(BernoulliDistribution):
    """SB3's ``BernoulliDistribution``, drawn by an environment's random numbers."""

    def sample(self) -> th.Tensor:
        """Draw actions, ``[rows, n_bits]``."""
        probabilities: th.Tensor = self.distribution.probs
        uniforms = _uniforms(self, probabilities, probabilities.shape)
        return (uniforms < probabilities).to(probabilities.dtype)


class DrawnStateDependentNoiseDistribution(StateDependentNoiseDistribution):
    """SB3's ``StateDependentNoiseDistribution``: each environment's matrix is of its own stream."""

    def sample_weights(self, log_std: th.Tensor, batch_size: int = 1) -> None:
        """Draw an exploration matrix for each environment.

        :param log_std: ``[latent_sde_dim, action_dim]``, or with one column
        :param batch_size: number of environments
        """
        noise = present_noise(batch_size)
        if noise is None or against_ours(self):
            super().sample_weights(log_std, batch_size)
            return
        std = self.get_std(log_std)
        self.weights_dist = Normal(th.zeros_like(std), std)
        numbers = th.from_numpy(noise.matrices(std.numel())).to(std.device, std.dtype)
        self.exploration_matrices = numbers.view(batch_size, *std.shape) * std
        self.exploration_mat = self.exploration_matrices[0]


#: What makes of a policy's numbers and of random ones an action.
_DRAWING = ("proba_distribution", "sample", "get_actions")

#: Methods of a plain distribution for which faster ways stand in, by its class.
PLAIN_METHODS: dict[type[Distribution], tuple[str, ...]] = dict.fromkeys(
    map(remember, (PlainCategoricalDistribution, PlainDiagGaussianDistribution)),
    (*_DRAWING, "log_prob", "entropy", "mode"),
)

#: Methods by which a distribution of this package draws, by its class.
DRAWING_METHODS: dict[type[Distribution], tuple[str, ...]] = {
    PlainCategoricalDistribution: _DRAWING,
    PlainDiagGaussianDistribution: _DRAWING,
    remember(DrawnSquashedDiagGaussianDistribution): _DRAWING,
    remember(DrawnMultiCategoricalDistribution): _DRAWING,
    remember(DrawnBernoulliDistribution): _DRAWING,
    remember(DrawnStateDependentNoiseDistribution): (
        *_DRAWING,
        "sample_weights",
        "get_std",
        "get_noise",
    ),
}

#: SB3's distributions, and what policies of this package have in their place.
_OURS: dict[type[Distribution], type[Distribution]] = {
    cls.__mro__[1]: cls for cls in DRAWING_METHODS
}


def ours_for(distribution: Distribution) -> Distribution:
    """Return this package's distribution in the place of one of SB3's, and of nobody else's."""
    cls = _OURS.get(type(distribution))
    if cls is None or not is_plain_object(distribution):
        return distribution
    ours: Distribution = cls.__new__(cls)
    vars(ours).update(vars(distribution))
    return ours


def is_plain_object(distribution: Distribution) -> bool:
    """Tell whether a distribution is SB3's or one of this package, its methods those of its class.

    A copy then does what the object does.
    """
    is_known = type(distribution).__module__.split(".")[0] in ("stable_baselines3", "thrust_pomdp")
    return is_known and not any(map(callable, vars(distribution).values()))


def against_plain(distribution: Distribution) -> str | None:
    """Say why a distribution is not one of this package's plain ones, as they were written."""
    return _against(distribution, PLAIN_METHODS)


def against_ours(distribution: Distribution) -> str | None:
    """Say why a distribution does not draw as this package's do."""
    return _against(distribution, DRAWING_METHODS)


def _against(
    distribution: Distribution, known: dict[type[Distribution], tuple[str, ...]]
) -> str | None:
    methods = known.get(type(distribution))
    if methods is None:
        return f"actions are drawn from a {type(distribution).__name__}"
    return against_methods(distribution, methods, type(distribution))
