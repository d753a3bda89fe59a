"""Memories as users write them: right ones, and ones with the faults that recurrent code has."""

from __future__ import annotations

import math

import torch as th
from torch import nn
from torch.nn.functional import dropout

from thrust_pomdp.recurrent import Memory, StatePart


class OwnLSTM(Memory):
    """Torch's LSTM written out, with its names of weights: what it computes is known."""

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1) -> None:
        super().__init__(input_size, hidden_size, num_layers)
        for layer in range(num_layers):
            inputs = hidden_size if layer else input_size
            for name, shape in {
                "weight_ih": (4 * hidden_size, inputs),
                "weight_hh": (4 * hidden_size, hidden_size),
                "bias_ih": (4 * hidden_size,),
                "bias_hh": (4 * hidden_size,),
            }.items():
                bound = 1 / math.sqrt(hidden_size)
                weight = nn.Parameter(th.empty(shape).uniform_(-bound, bound))
                self.register_parameter(f"{name}_l{layer}", weight)

    def state_parts(self):
        return StatePart("hidden", (self.hidden_size,)), StatePart("cell", (self.hidden_size,))

    def step(self, features, states):
        hiddens, cells, output = [], [], features
        for layer in range(self.num_layers):
            w_ih, w_hh, b_ih, b_hh = (
                getattr(self, f"{name}_l{layer}")
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            gates = output @ w_ih.T + b_ih + states[0][layer] @ w_hh.T + b_hh
            i, f, g, o = gates.chunk(4, dim=1)
            cell = f.sigmoid() * states[1][layer] + i.sigmoid() * g.tanh()
            output = o.sigmoid() * cell.tanh()
            hiddens.append(output)
            cells.append(cell)
        return output, (th.stack(hiddens), th.stack(cells))


class LastFrames(Memory):
    """Attention over the last four steps: a state with other axes, and a count of steps."""

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, context: int = 4):
        super().__init__(input_size, hidden_size, num_layers)
        if num_layers != 1:
            raise ValueError(f"n_lstm_layers must be 1 for LastFrames, got {num_layers}")
        self.context = context
        self.embed = nn.Linear(input_size, hidden_size)
        self.query = nn.Linear(input_size, hidden_size)

    def state_parts(self):
        return (
            StatePart("frames", (self.context, self.hidden_size)),
            StatePart("count", (), th.int64),
        )

    def step(self, features, states):
        (frames,), (count,) = states
        frames = th.cat((frames[:, 1:], self.embed(features)[:, None]), dim=1)
        count = (count + 1).clamp(max=self.context)
        age = th.arange(self.context - 1, -1, -1, device=features.device)
        scores = (frames * self.query(features)[:, None]).sum(dim=2) / math.sqrt(self.hidden_size)
        scores = scores.masked_fill(age >= count[:, None], -th.inf)
        output = (scores.softmax(dim=1)[:, :, None] * frames).sum(dim=1)
        return output.tanh(), (frames[None], count[None])


class OwnGRU(Memory):
    """A gated unit whose windows are a loop of their own, to be spoilt below."""

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1) -> None:
        super().__init__(input_size, hidden_size, num_layers)
        sizes = [input_size, *[hidden_size] * (num_layers - 1)]
        self.gates = nn.ModuleList(nn.Linear(size + hidden_size, 2 * hidden_size) for size in sizes)

    def state_parts(self):
        return (StatePart("hidden", (self.hidden_size,)),)

    def step(self, features, states):
        output, hiddens = features, []
        for gate, hidden in zip(self.gates, states[0], strict=True):
            keep, new = gate(th.cat((output, hidden), dim=1)).chunk(2, dim=1)
            keep = keep.sigmoid()
            output = keep * hidden + (1 - keep) * new.tanh()
            hiddens.append(output)
        return output, (th.stack(hiddens),)

    def windows(self, features, states, episode_starts):
        outputs = []
        for step in range(features.shape[1]):
            states = self.forget(states, episode_starts, step)
            output, states = self.step(features[:, step], states)
            outputs.append(output)
        return th.stack(outputs, dim=1), states

    def forget(self, states, episode_starts, step):
        return self.reset(states, episode_starts[:, step])


# Faults. Each docstring says what is wrong.


class ResetsLate(OwnGRU):
    """Memory is zeroed one step after an episode's first."""

    def forget(self, states, episode_starts, step):
        where = episode_starts[:, step - 1] if step else th.zeros_like(episode_starts[:, 0])
        return self.reset(states, where)


class ResetsEarly(OwnGRU):
    """Memory is zeroed before an episode's last step."""

    def forget(self, states, episode_starts, step):
        following = min(step + 1, episode_starts.shape[1] - 1)
        return self.reset(states, episode_starts[:, following])


class ResetsAtEndsSeen(OwnGRU):
    """Only ends inside the window reset: not those that the time limit put at its border."""

    def forget(self, states, episode_starts, step):
        return self.reset(states, episode_starts[:, step]) if step else states


class ScalesState(OwnGRU):
    """An episode start leaves a tenth of a per cent of the state."""

    @staticmethod
    def reset(states, where):
        scale = th.where(where, 1e-3, 1.0)[None, :, None]
        return tuple(part * scale for part in states)


class StartsFromOnes(OwnGRU):
    """An episode starts with ones, a first window with zeros."""

    @staticmethod
    def reset(states, where):
        return tuple(part.masked_fill(where[None, :, None], 1.0) for part in states)


class GradientThroughReset(OwnGRU):
    """The state becomes zero by subtracting its value, and the gradient passes."""

    @staticmethod
    def reset(states, where):
        mask = where[None, :, None]
        return tuple(th.where(mask, part - part.detach(), part) for part in states)


class TurnsAxes(OwnGRU):
    """Windows are read with batch and time swapped."""

    def windows(self, features, states, episode_starts):
        n_seq, n_steps = features.shape[:2]
        turned = features.reshape(n_steps, n_seq, -1).transpose(0, 1)
        return super().windows(turned, states, episode_starts)


class OthersState(OwnGRU):
    """Each environment is given its neighbour's state."""

    def step(self, features, states):
        return super().step(features, tuple(part.roll(1, dims=1) for part in states))


class StateOfAnotherStep(OwnGRU):
    """Windows return the state before their last step."""

    def windows(self, features, states, episode_starts):
        outputs, last = super().windows(features, states, episode_starts)
        if features.shape[1] > 1:
            _, last = super().windows(features[:, :-1], states, episode_starts[:, :-1])
        return outputs, last


class DropsWhileCollecting(OwnGRU):
    """Dropout that does not ask for the mode."""

    def step(self, features, states):
        return super().step(dropout(features, 0.1), states)


class MasksNaN(OwnGRU):
    """Numbers that are none become zeros, and nobody hears of them."""

    def step(self, features, states):
        return super().step(features.nan_to_num(), states)


class MultipliesNaN(OwnGRU):
    """An episode start multiplies by zero, which NaN survives."""

    @staticmethod
    def reset(states, where):
        return tuple(part * (~where)[None, :, None] for part in states)


class WritesIntoFeatures(OwnGRU):
    """What it was given is overwritten, though others still hold it."""

    def step(self, features, states):
        return super().step(features.add_(0.1), states)


class KeepsStateItself(OwnGRU):
    """Remembers on its own, beside the state."""

    last = 0.0

    def step(self, features, states):
        output, states = super().step(features + self.last, states)
        self.last = 0.1 * float(output.detach().mean())
        return output, states


class AlwaysSingle(OwnGRU):
    """Makes float32 of everything."""

    def step(self, features, states):
        output, (hidden,) = super().step(features, states)
        return output.float(), (hidden,)


class MadeOnCPU(OwnGRU):
    """Makes a tensor without asking where."""

    def step(self, features, states):
        return super().step(features + th.zeros(features.shape[1]), states)


class BranchesOnData(OwnGRU):
    """Asks a tensor what it holds, which no exporter can follow."""

    def step(self, features, states):
        if (states[0] != 0).any():
            features = features * 2.0
        return super().step(features, states)


class UnsavedWeights(OwnGRU):
    """Has a weight that is neither parameter nor buffer."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.scale = float(th.rand(()))

    def step(self, features, states):
        return super().step(features * self.scale, states)


class MixesEnvs(OwnGRU):
    """Normalises by the batch."""

    def step(self, features, states):
        return super().step(features - features.mean(dim=0), states)


class SharesGradient(OwnGRU):
    """The mean of the batch adds nothing, but its gradient."""

    def step(self, features, states):
        mean = features.mean(dim=0)
        return super().step(features + (mean - mean.detach()), states)


class StartsElsewhere(OwnGRU):
    """Begins with something else than zeros, of which resets know nothing."""

    def initial_state(self, n_envs):
        return tuple(part + 1.0 for part in super().initial_state(n_envs))


class Forgets(OwnGRU):
    """Remembers nothing."""

    def step(self, features, states):
        return super().step(features, (th.zeros_like(states[0]),))


class DividesByProducts(Memory):
    """A linear recurrence by cumulative products: right as long as these are not too small."""

    def __init__(self, input_size, hidden_size, num_layers=1):
        super().__init__(input_size, hidden_size, num_layers)
        if num_layers != 1:
            raise ValueError(f"n_lstm_layers must be 1 for DividesByProducts, got {num_layers}")
        self.read, self.keep = (
            nn.Linear(input_size, hidden_size),
            nn.Linear(input_size, hidden_size),
        )

    def state_parts(self):
        return (StatePart("hidden", (self.hidden_size,)),)

    def step(self, features, states):
        hidden = self.keep(features).sigmoid() * states[0][0] + self.read(features)
        return hidden, (hidden[None],)

    def windows(self, features, states, episode_starts):
        keep, read = self.keep(features).sigmoid(), self.read(features)
        group = episode_starts.cumsum(dim=1)
        outputs = []
        for row in range(len(features)):
            parts = []
            for number in group[row].unique():
                of = group[row] == number
                entering = states[0][0, row] if number == 0 else th.zeros(self.hidden_size)
                product = keep[row, of].cumprod(dim=0)
                parts.append(product * (entering + (read[row, of] / product).cumsum(dim=0)))
            outputs.append(th.cat(parts))
        hidden = th.stack(outputs)
        return hidden, (hidden[None, :, -1],)


class SqueezesEnvs(OwnGRU):
    """Takes an axis of one for the layers'."""

    def step(self, features, states):
        output, (hidden,) = super().step(features, states)
        return output, (hidden.squeeze(1)[:, None] if hidden.shape[1] == 1 else hidden,)

    def windows(self, features, states, episode_starts):
        if len(features) == 1:
            features = features - features.mean(dim=1, keepdim=True)
        return super().windows(features, states, episode_starts)


class Detaches(OwnGRU):
    """Cuts the gradient at each step."""

    def step(self, features, states):
        return super().step(features, tuple(part.detach() for part in states))


class DropsWhileTraining(OwnGRU):
    """Dropout that asks for the mode, and makes PPO's first ratio another than 1."""

    def step(self, features, states):
        return super().step(dropout(features, 0.1, self.training), states)


#: Faults, and a law that finds each.
FAULTS: dict[type[Memory], str] = {
    ResetsLate: "step equals windows",
    ResetsEarly: "step equals windows",
    ResetsAtEndsSeen: "step equals windows",
    ScalesState: "no number crosses an episode start",
    StartsFromOnes: "an episode starts from nothing",
    GradientThroughReset: "no gradient crosses an episode start",
    TurnsAxes: "step equals windows",
    OthersState: "environments are independent",
    StateOfAnotherStep: "a carried state goes on",
    DropsWhileCollecting: "collecting draws and alters nothing",
    MasksNaN: "not a number is told and forgotten",
    MultipliesNaN: "not a number is told and forgotten",
    WritesIntoFeatures: "collecting draws and alters nothing",
    KeepsStateItself: "collecting draws and alters nothing",
    AlwaysSingle: "numbers are of the weights dtype",
    MadeOnCPU: "it works on another device",
    BranchesOnData: "its step can be exported",
    UnsavedWeights: "saved weights are all there is",
    SharesGradient: "environments share no gradient",
    MixesEnvs: "environments are independent",
    DividesByProducts: "long windows are steps too",
    SqueezesEnvs: "one environment is as many",
    Detaches: "gradients reach back",
    DropsWhileTraining: "training mode computes the same",
    StartsElsewhere: "the state is what state parts says",
    Forgets: "it remembers",
}
