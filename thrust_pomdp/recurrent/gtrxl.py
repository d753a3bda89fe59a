"""A gated transformer that remembers the last steps of an episode (torch only)."""

from __future__ import annotations

from typing import cast

import torch as th
from torch import nn

from thrust_pomdp import gate
from thrust_pomdp.arguments import check_count, check_number
from thrust_pomdp.recurrent.attention import BandAttention, sinusoids
from thrust_pomdp.recurrent.protocol import Memory, StatePart
from thrust_pomdp.recurrent.sequences import LSTMState


@gate.remember
class GTrXL(Memory):
    """Gated transformer memory: attention over the last ``context`` steps of the episode.

    E. Parisotto et al., "Stabilizing Transformers for Reinforcement Learning" (2019, arXiv
    1910.06764): layer norms stand at the inputs of attention and of the network after it, so that
    what a layer was given passes it unchanged, and gates of the form of a GRU's (section 3.2) stand
    where a transformer adds. With ``x`` what a layer is given,

    * ``y = gate(x, relu(attention(norm([last inputs of this layer, x]))))``,
    * its output ``gate(y, relu(mlp(norm(y))))``,
    * ``gate(x, y) = (1 - z) x + z tanh(W_g y + U_g (r x))``, ``r = sigmoid(W_r y + U_r x)``, ``z =
      sigmoid(W_z y + U_z x - bias)``.

    Positions are relative, in Transformer-XL's form (:mod:`thrust_pomdp.recurrent.attention`).

    What is remembered are each layer's inputs at the last ``context - 1`` steps, and how many of
    them are of the episode. Training runs a window at once, with gradients through all steps in it;
    what was remembered when the window began is data without a gradient, computed with the weights
    of that time, as an LSTM's stored state is. Of ``n`` layers the topmost so sees up to ``n *
    (context - 1)`` steps back.

    .. warning::
        What lies more steps back is gone: a T-maze whose corridor is longer than that cannot be
        learnt. And with ``window_state="zero"`` training sees no further back than its window's
        first step, however long the context.

    >>> from thrust_pomdp import RecurrentPPO, make_vec_env
    >>> env = make_vec_env("MaskedCartPole-v0", 4, seed=0)
    >>> policy_kwargs = dict(rnn_class=GTrXL, lstm_hidden_size=32, lstm_kwargs=dict(context=16))
    >>> model = RecurrentPPO("MlpLstmPolicy", env, n_steps=32, policy_kwargs=policy_kwargs)
    >>> [part.name for part in model.policy.lstm_actor.state_parts()]
    ['inputs', 'count']

    :param input_size: numbers in the features of a step
    :param hidden_size: numbers of a step inside and in the output, ``lstm_hidden_size``
    :param num_layers: ``n_lstm_layers``
    :param context: steps that a step sees, itself among them, >= 1
    :param n_heads: heads of the attention; must divide ``hidden_size``
    :param mlp_size: width of the network after the attention; twice ``hidden_size`` when None
    :param gate_bias: how much gates tend to let pass what a layer was given; the paper's 2 makes
        the memory begin as nearly memoryless
    :raises ValueError: for a bad argument
    """

    distances: th.Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        context: int = 64,
        n_heads: int = 4,
        mlp_size: int | None = None,
        gate_bias: float = 2.0,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers)
        self.context = check_count("context", context)
        n_heads = check_count("n_heads", n_heads)
        width = 2 * self.hidden_size if mlp_size is None else check_count("mlp_size", mlp_size)
        bias = check_number("gate_bias", gate_bias)
        # A context of one step needs nothing, but a tensor without numbers cannot be exported.
        self._n_kept = max(self.context - 1, 1)
        # Saved with the weights, so that a file that says how long it is has to hold it.
        self.register_buffer("distances", sinusoids(self.hidden_size, self.context).flip(0))
        self.embed = nn.Linear(self.input_size, self.hidden_size)
        self.layers = nn.ModuleList(
            GatedLayer(self.hidden_size, n_heads, self.context, width, bias)
            for _ in range(self.num_layers)
        )

    def state_parts(self) -> tuple[StatePart, ...]:
        """Name what each layer was given lately, and how many of these are of the episode."""
        return (
            StatePart("inputs", (self._n_kept, self.hidden_size)),
            StatePart("count", (), th.int64),
        )

    def step(self, features: th.Tensor, states: LSTMState) -> tuple[th.Tensor, LSTMState]:
        """Attend to the steps that are remembered, and remember this one."""
        inputs, counts = states
        stream, kept = self.embed(features), []
        for number, layer in enumerate(self._gated_layers()):
            steps = th.cat((inputs[number], stream[:, None]), dim=1)
            kept.append(steps[:, 1:])
            seen = steps[:, self._n_kept + 1 - self.context :]
            attended = layer.attention(layer.attention_norm(seen), counts[number], self.distances)
            stream = layer(stream, attended)
        return stream, (th.stack(kept), (counts + 1).clamp(max=self._n_kept))

    def windows(
        self, features: th.Tensor, states: LSTMState, episode_starts: th.Tensor
    ) -> tuple[th.Tensor, LSTMState]:
        """Let all steps attend at once to those before them, as far as they are of the episode."""
        if self.against_bands() is not None:
            return super().windows(features, states, episode_starts)
        inputs, counts = states
        n_steps, own = features.shape[1], self.context - 1
        episodes = episode_starts.cumsum(dim=1)
        age = th.arange(own, 0, -1, device=features.device)
        # What is before the window is of its first episode or of none.
        of_before = th.where(age <= counts[0][:, None], 0, -1)
        segments = th.cat((of_before, episodes), dim=1)
        last = episodes[:, -1:]
        is_kept = th.cat((episodes.new_zeros(len(features), self._n_kept), episodes), dim=1) == last
        stream, kept = self.embed(features), []
        for layer, before in zip(self._gated_layers(), inputs, strict=True):
            steps = th.cat((before, stream), dim=1)
            kept.append(th.where(is_kept[:, n_steps:, None], steps[:, n_steps:], 0.0))
            normed = layer.attention_norm(steps[:, self._n_kept - own :])
            attended = layer.attention(normed[:, own:], segments, self.distances, normed[:, :own])
            stream = layer(stream, attended)
        of_last = is_kept[:, self._n_kept :].sum(dim=1)
        counts = th.where(last[:, 0] == 0, counts + n_steps, of_last)
        return stream, (th.stack(kept), counts.clamp(max=self._n_kept))

    def against_bands(self) -> str | None:
        """Say why windows are run step by step: a step is no longer what it was."""
        return gate.against_methods(self, ("step", "reset", "_gated_layers"), GTrXL)

    def _gated_layers(self) -> list[GatedLayer]:
        return cast("list[GatedLayer]", list(self.layers))


@gate.remember
class GatedLayer(nn.Module):
    """What a layer has beside the steps that it sees; called with what they told.

    :param size: numbers of a step
    :param n_heads: heads of the attention
    :param context: steps that a step sees
    :param mlp_size: width of the network after the attention
    :param gate_bias: of both gates
    """

    def __init__(
        self, size: int, n_heads: int, context: int, mlp_size: int, gate_bias: float
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(size)
        self.attention = BandAttention(size, n_heads, context)
        self.attention_gate = GRUGate(size, gate_bias)
        self.mlp_norm = nn.LayerNorm(size)
        self.mlp = nn.Sequential(nn.Linear(size, mlp_size), nn.ReLU(), nn.Linear(mlp_size, size))
        self.mlp_gate = GRUGate(size, gate_bias)

    def forward(self, stream: th.Tensor, attended: th.Tensor) -> th.Tensor:
        """Return the layer's output.

        :param stream: what the layer was given, ``[..., size]``
        :param attended: what attention returned
        """
        stream = self.attention_gate(stream, attended.relu())
        output: th.Tensor = self.mlp_gate(stream, self.mlp(self.mlp_norm(stream)).relu())
        return output


@gate.remember
class GRUGate(nn.Module):
    """Takes over of an update what it wants, as a GRU does of its input.

    :param size: numbers of a step
    :param bias: how much it tends to leave things as they are
    """

    def __init__(self, size: int, bias: float) -> None:
        super().__init__()
        #: ``W_r``, ``W_z`` and ``W_g``; ``U_r`` and ``U_z``; ``U_g``.
        self.of_update = nn.Linear(size, 3 * size, bias=False)
        self.of_stream = nn.Linear(size, 2 * size, bias=False)
        self.of_reset = nn.Linear(size, size, bias=False)
        self.bias = nn.Parameter(th.full((size,), bias))
        for part in (self.of_update, self.of_stream, self.of_reset):
            for first in range(0, part.out_features, size):
                nn.init.xavier_uniform_(part.weight.data[first : first + size])

    def forward(self, stream: th.Tensor, update: th.Tensor) -> th.Tensor:
        """Return the stream, changed by the update; both ``[..., size]``."""
        reset, change, new = self.of_update(update).chunk(3, dim=-1)
        reset_by_stream, change_by_stream = self.of_stream(stream).chunk(2, dim=-1)
        reset = (reset + reset_by_stream).sigmoid()
        change = (change + change_by_stream - self.bias).sigmoid()
        new = (new + self.of_reset(reset * stream)).tanh()
        output: th.Tensor = stream + change * (new - stream)
        return output
