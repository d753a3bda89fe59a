"""A minibatch of recurrent PPO in one call, compiled by Numba: forward, loss, backward, Adam.

What it computes is what :func:`thrust_pomdp.ppo.losses.ppo_losses`, torch's automatic gradients,
``clip_grad_norm_`` and ``Adam`` compute, on the parameters in place. Additions happen in the order
in which they are written, so the digits do not depend on the processor.

Networks differ in how many layers they have, compiled code must not: everything is told by tables
of addresses and sizes, which :mod:`thrust_pomdp.ppo.compiled_minibatch` makes. Rows of all arrays
are steps, sequence after sequence; units are padded to multiples of 16. Import this file through
that module, since Numba is optional.
"""

from __future__ import annotations

import numpy as np

from thrust_pomdp.ppo.kernels_adam import adam, gradient_norm
from thrust_pomdp.ppo.kernels_loss import (
    categorical_gradient,
    categorical_rows,
    gaussian_gradient,
    gaussian_rows,
    step_losses,
)
from thrust_pomdp.recurrent.functions import tanh
from thrust_pomdp.recurrent.jit import compile_apart
from thrust_pomdp.recurrent.jit import compile_exactly as _compile
from thrust_pomdp.recurrent.kernels_memory import (
    gru_backward,
    gru_forward,
    lstm_backward,
    lstm_forward,
)
from thrust_pomdp.recurrent.products import (
    add_outer,
    add_product,
    add_sums,
    pack,
    pack_back,
    padded,
    unpack_gradient,
)
from thrust_pomdp.recurrent.vectors import (
    PANEL,
    address,
    carray,
    flags_at,
    integers_at,
    load,
    numbers_at,
    spread,
    store,
    where_greater,
)

_f32 = np.float32

#: What follows a dense layer.
NOTHING, TANH, RELU = range(3)

#: Columns of the table of dense layers: sizes, what follows, and addresses of the parameters, their
#: gradients, packed weights, outputs, slopes of what follows, gradients of outputs, and the
#: weights' gradient as it is computed.
DENSE = (
    "inputs", "outputs", "follows", "weight", "bias", "grad_weight", "grad_bias", "panels",
    "back_panels", "out", "slopes", "grad_out", "outer",
)  # fmt: skip
(
    _INPUTS, _OUTPUTS, _FOLLOWS, _WEIGHT, _BIAS, _GRAD_WEIGHT, _GRAD_BIAS, _PANELS, _BACK, _OUT,
    _SLOPES, _GRAD_OUT, _OUTER,
) = range(len(DENSE))  # fmt: skip

LSTM, GRU = range(2)

#: Columns of the table of memories; addresses of biases are 0 where there are none. ``kept`` is an
#: LSTM's cells, a GRU's derivatives by the old state; ``shown`` is an LSTM's alone.
MEMORY = (
    "kind", "features", "size", "w_ih", "w_hh", "b_ih", "b_hh", "grad_w_ih", "grad_w_hh",
    "grad_b_ih", "grad_b_hh", "panels", "panels_h", "back_panels", "back_features", "bias",
    "inputs", "kept", "gates", "shown", "hidden", "grad_hidden", "grad_h", "grad_c", "outer",
    "state_h", "state_c",
)  # fmt: skip
(
    _KIND, _FEATURES, _SIZE, _W_IH, _W_HH, _B_IH, _B_HH, _GRAD_W_IH, _GRAD_W_HH, _GRAD_B_IH,
    _GRAD_B_HH, _M_PANELS, _PANELS_H, _M_BACK, _BACK_FEATURES, _M_BIAS, _M_INPUTS, _KEPT, _GATES,
    _SHOWN, _HIDDEN, _GRAD_HIDDEN, _GRAD_H, _GRAD_C, _M_OUTER, _STATE_H, _STATE_C,
) = range(len(MEMORY))  # fmt: skip

#: What the critic reads: the actor's memory with or without a gradient, its own, or the features.
SHARED, DETACHED, OWN, LINEAR = range(4)

#: Places in the list of numbers that a network and a minibatch are described by.
NETWORK = (
    "n_seq", "n_steps", "n_features", "critic", "n_encoder", "n_pi", "n_vf", "gaussian",
    "obs", "actions", "starts", "old_log_prob", "old_values", "advantages", "returns",
    "log_std", "grad_log_std", "scratch", "grad_features",
)  # fmt: skip
(
    _N_SEQ, _N_STEPS, _N_FEATURES, _CRITIC, _N_ENCODER, _N_PI, _N_VF, _GAUSSIAN, _OBS, _ACTIONS,
    _STARTS, _OLD_LOG_PROB, _OLD_VALUES, _ADVANTAGES, _RETURNS, _LOG_STD, _GRAD_LOG_STD, _SCRATCH,
    _GRAD_FEATURES,
) = range(len(NETWORK))  # fmt: skip

#: How a call ended.
STEPPED, STOPPED, NO_SUCH_ACTION = range(3)


@_compile
def _rows(place, n, m):  # type: ignore[no-untyped-def]
    return carray(numbers_at(place), (n, m))


@_compile
def _windows(place, n, t, m):  # type: ignore[no-untyped-def]
    return carray(numbers_at(place), (n, t, m))


@_compile
def _row_of(table, number):  # type: ignore[no-untyped-def]
    """Return the address of a table's row."""
    return address(table) + 8 * number * table.shape[1]


@_compile
def _put_zeros(place, n):  # type: ignore[no-untyped-def]
    carray(numbers_at(place), n)[:] = _f32(0)


@_compile
def _dense_panels(layer, back):  # type: ignore[no-untyped-def]
    """Pack a dense layer's weight.

    :param back: also for the way back
    """
    n_in, n_out = layer[_INPUTS], layer[_OUTPUTS]
    weight, width = _rows(layer[_WEIGHT], n_out, n_in), padded(n_out)
    pack(weight, 1, 0, _windows(layer[_PANELS], width // PANEL, n_in, PANEL))
    if back:
        panels = _windows(layer[_BACK], padded(n_in) // PANEL, width, PANEL)
        pack_back(weight, 1, panels)


@compile_apart("thrust_pomdp_dense_forward", 5)
def _dense_forward(layer_at, place, row, n_rows, back):  # type: ignore[no-untyped-def]
    """Run a dense layer.

    :param layer_at: address of its row
    :param place: address of its inputs
    :param row: numbers of a row there
    :param back: whether its inputs want a gradient later
    """
    layer = carray(integers_at(layer_at), len(DENSE))
    n_in, n_out = layer[_INPUTS], layer[_OUTPUTS]
    width = padded(n_out)
    _dense_panels(layer, back)
    out = _rows(layer[_OUT], n_rows, width)
    bias = carray(numbers_at(layer[_BIAS]), n_out)
    for r in range(n_rows):
        out[r, :n_out] = bias
        out[r, n_out:] = _f32(0)
    panels = _windows(layer[_PANELS], width // PANEL, n_in, PANEL)
    add_product(_rows(place, n_rows, row)[:, :n_in], panels, 0, out)
    if layer[_FOLLOWS] == NOTHING:
        return
    zero, one = spread(_f32(0)), spread(_f32(1))
    for at in range(0, 4 * n_rows * width, 4 * PANEL):
        given = load(layer[_OUT] + at)
        if layer[_FOLLOWS] == TANH:
            shown, slope = tanh(given)
        else:
            shown = where_greater(zero, given, zero, given)  # keeps a NaN
            slope = where_greater(given, zero, one, zero)
        store(layer[_OUT] + at, shown)
        store(layer[_SLOPES] + at, slope)


@compile_apart("thrust_pomdp_dense_backward", 6)
def _dense_backward(layer_at, place, row, n_rows, grad_place, grad_row):  # type: ignore[no-untyped-def]
    """Go back through a dense layer, whose outputs' gradient is known.

    :param place: as in :func:`_dense_forward`, and so is ``row``
    :param grad_place: address of the inputs' gradient, which is added to; 0 if nobody wants it
    :param grad_row: numbers of a row there
    """
    layer = carray(integers_at(layer_at), len(DENSE))
    n_in, n_out = layer[_INPUTS], layer[_OUTPUTS]
    width = padded(n_out)
    if layer[_FOLLOWS] != NOTHING:
        for at in range(0, 4 * n_rows * width, 4 * PANEL):
            store(layer[_GRAD_OUT] + at, load(layer[_GRAD_OUT] + at) * load(layer[_SLOPES] + at))
    grad, outer = _rows(layer[_GRAD_OUT], n_rows, width), _rows(layer[_OUTER], n_in + 1, width)
    outer[:] = _f32(0)
    add_outer(_rows(place, n_rows, row)[:, :n_in], grad, outer)
    unpack_gradient(outer, 1, 0, _rows(layer[_GRAD_WEIGHT], n_out, n_in))
    add_sums(grad, outer[n_in])
    carray(numbers_at(layer[_GRAD_BIAS]), n_out)[:] = outer[n_in, :n_out]
    if grad_place != 0:
        panels = _windows(layer[_BACK], padded(n_in) // PANEL, width, PANEL)
        add_product(grad, panels, 0, _rows(grad_place, n_rows, grad_row))


@_compile
def _stack_forward(layers, place, row, n_rows, back):  # type: ignore[no-untyped-def]
    """Run dense layers, one on top of the other; ``back`` is of the first one."""
    for number in range(len(layers)):
        _dense_forward(_row_of(layers, number), place, row, n_rows, 1 if number > 0 else back)
        place, row = layers[number, _OUT], padded(layers[number, _OUTPUTS])


@_compile
def _stack_backward(layers, place, row, n_rows, grad_place, grad_row):  # type: ignore[no-untyped-def]
    """Go back through them; the gradient of the last one's outputs is known."""
    for number in range(len(layers) - 1, 0, -1):
        below = layers[number - 1]
        width = padded(below[_OUTPUTS])
        _put_zeros(below[_GRAD_OUT], n_rows * width)
        at = _row_of(layers, number)
        _dense_backward(at, below[_OUT], width, n_rows, below[_GRAD_OUT], width)
    _dense_backward(_row_of(layers, 0), place, row, n_rows, grad_place, grad_row)


@_compile
def _memory_bias(memory, width):  # type: ignore[no-untyped-def]
    """Add a layer's two biases into padded blocks.

    A GRU's blocks are new, reset, update, recurrent part of new, torch's gates reset, update, new.
    """
    size, bias = memory[_SIZE], carray(numbers_at(memory[_M_BIAS]), 4 * width)
    bias[:] = _f32(0)
    if memory[_B_IH] == 0:
        return
    first = carray(numbers_at(memory[_B_IH]), 4 * size)
    second = carray(numbers_at(memory[_B_HH]), 4 * size)
    if memory[_KIND] == LSTM:
        for block in range(4):
            for j in range(size):
                bias[block * width + j] = first[block * size + j] + second[block * size + j]
    else:
        for j in range(size):
            bias[j] = first[2 * size + j]
            bias[width + j] = first[j] + second[j]
            bias[2 * width + j] = first[size + j] + second[size + j]
            bias[3 * width + j] = second[2 * size + j]


@_compile
def _first_states(place, rows, size):  # type: ignore[no-untyped-def]
    """Put down the states that enter step 0, zeros where their address is 0."""
    rows[:] = _f32(0)
    if place != 0:
        rows[:, :size] = _rows(place, len(rows), size)


@_compile
def _memory_bias_gradients(memory, sums, width):  # type: ignore[no-untyped-def]
    """Lay out sums of gates' gradients as torch has a layer's two biases."""
    size = memory[_SIZE]
    first = carray(numbers_at(memory[_GRAD_B_IH]), 4 * size)
    second = carray(numbers_at(memory[_GRAD_B_HH]), 4 * size)
    if memory[_KIND] == LSTM:
        for block in range(4):
            for j in range(size):
                first[block * size + j] = sums[block * width + j]
                second[block * size + j] = sums[block * width + j]
    else:
        for j in range(size):
            first[j] = second[j] = sums[width + j]
            first[size + j] = second[size + j] = sums[2 * width + j]
            first[2 * size + j] = sums[j]
            second[2 * size + j] = sums[3 * width + j]


@compile_apart("thrust_pomdp_memory_forward", 6)
def _memory_forward(memory_at, n_seq, n_steps, place, row, starts_at):  # type: ignore[no-untyped-def]
    """Run a recurrent layer over whole windows.

    :param memory_at: address of its row
    :param place: address of the features
    :param row: numbers of a row there
    :param starts_at: address of the episode starts
    """
    memory = carray(integers_at(memory_at), len(MEMORY))
    starts = carray(flags_at(starts_at), (n_seq, n_steps))
    n_features, size = memory[_FEATURES], memory[_SIZE]
    width, is_lstm = padded(size), memory[_KIND] == LSTM
    n_blocks = 4 if is_lstm else 3
    w_ih = _rows(memory[_W_IH], n_blocks * size, n_features)
    w_hh = _rows(memory[_W_HH], n_blocks * size, size)
    pack_back(w_hh, n_blocks, _windows(memory[_M_BACK], width // PANEL, n_blocks * width, PANEL))
    _memory_bias(memory, width)
    bias = carray(numbers_at(memory[_M_BIAS]), 4 * width)
    features = _rows(place, n_seq * n_steps, row)
    n_panels = n_blocks * width // PANEL
    gates = _windows(memory[_GATES], n_seq, n_steps, 4 * width)
    hidden = _windows(memory[_HIDDEN], n_seq, n_steps, width)
    if is_lstm:
        panels = _windows(memory[_M_PANELS], n_panels, n_features + size, PANEL)
        pack(w_ih, 4, 0, panels)
        pack(w_hh, 4, n_features, panels)
        inputs = _windows(memory[_M_INPUTS], n_seq, n_steps, n_features + width)
        cells = _windows(memory[_KEPT], n_seq, n_steps + 1, width)
        for n in range(n_seq):
            for t in range(n_steps):
                inputs[n, t, :n_features] = features[n * n_steps + t, :n_features]
        _first_states(memory[_STATE_H], inputs[:, 0, n_features:], size)
        _first_states(memory[_STATE_C], cells[:, 0], size)
        shown = _windows(memory[_SHOWN], n_seq, n_steps, width)
        lstm_forward(panels, bias, inputs, starts, cells, gates, shown, hidden)
    else:
        w_x = _windows(memory[_M_PANELS], n_panels, n_features, PANEL)
        w_h = _windows(memory[_PANELS_H], n_panels, size, PANEL)
        pack(w_ih[2 * size :], 1, 0, w_x[: width // PANEL])
        pack(w_ih[: 2 * size], 2, 0, w_x[width // PANEL :])
        pack(w_hh, 3, 0, w_h)
        entering = _windows(memory[_M_INPUTS], n_seq, n_steps, width)
        kept = _windows(memory[_KEPT], n_seq, n_steps, width)
        _first_states(memory[_STATE_H], entering[:, 0], size)
        windows = _windows(place, n_seq, n_steps, row)[:, :, :n_features]
        gru_forward(w_x, w_h, bias, windows, starts, entering, gates, kept, hidden)


@compile_apart("thrust_pomdp_memory_backward", 8)
def _memory_backward(memory_at, n_seq, n_steps, place, row, starts_at, grad_place, grad_row):  # type: ignore[no-untyped-def]
    """Go back through a recurrent layer, whose outputs' gradient is known.

    :param place: as in :func:`_memory_forward`, and so is ``row``
    :param grad_place: address of the features' gradient, which is added to; 0 if nobody wants it
    :param grad_row: numbers of a row there
    """
    memory = carray(integers_at(memory_at), len(MEMORY))
    starts = carray(flags_at(starts_at), (n_seq, n_steps))
    n_features, size, n_rows = memory[_FEATURES], memory[_SIZE], n_seq * n_steps
    width, is_lstm = padded(size), memory[_KIND] == LSTM
    n_blocks = 4 if is_lstm else 3
    back = _windows(memory[_M_BACK], width // PANEL, n_blocks * width, PANEL)
    gates = _windows(memory[_GATES], n_seq, n_steps, 4 * width)
    grad_outputs = _windows(memory[_GRAD_HIDDEN], n_seq, n_steps, width)
    grad_h, grad_c = _rows(memory[_GRAD_H], n_seq, width), _rows(memory[_GRAD_C], n_seq, width)
    grad_h[:], grad_c[:] = _f32(0), _f32(0)
    n_inputs = n_features + size
    outer = _rows(memory[_M_OUTER], n_inputs + 1, 4 * width)
    outer[:] = _f32(0)
    grad = gates.reshape((n_rows, 4 * width))
    grad_w_ih = _rows(memory[_GRAD_W_IH], n_blocks * size, n_features)
    grad_w_hh = _rows(memory[_GRAD_W_HH], n_blocks * size, size)
    if is_lstm:
        cells = _windows(memory[_KEPT], n_seq, n_steps + 1, width)
        shown = _windows(memory[_SHOWN], n_seq, n_steps, width)
        lstm_backward(back, gates, shown, cells, starts, grad_outputs, grad_h, grad_c, gates)
        inputs = _rows(memory[_M_INPUTS], n_rows, n_features + width)
        add_outer(inputs[:, :n_inputs], grad, outer)
        unpack_gradient(outer, 4, 0, grad_w_ih)
        unpack_gradient(outer, 4, n_features, grad_w_hh)
    else:
        kept = _windows(memory[_KEPT], n_seq, n_steps, width)
        gru_backward(back, gates, kept, starts, grad_outputs, grad_h, gates)
        features, entered = _rows(place, n_rows, row), _rows(memory[_M_INPUTS], n_rows, width)
        of_x, of_h = outer[:n_features], outer[n_features:n_inputs]
        add_outer(features[:, :n_features], grad[:, : 3 * width], of_x)
        add_outer(entered[:, :size], grad[:, width:], of_h)
        unpack_gradient(of_x, 1, 0, grad_w_ih[2 * size :])
        unpack_gradient(of_x[:, width:], 2, 0, grad_w_ih[: 2 * size])
        unpack_gradient(of_h, 3, 0, grad_w_hh)
    if memory[_B_IH] != 0:
        add_sums(grad, outer[n_inputs])
        _memory_bias_gradients(memory, outer[n_inputs], width)
    if grad_place != 0:
        n_panels = padded(n_features) // PANEL
        weights = _windows(memory[_BACK_FEATURES], n_panels, n_blocks * width, PANEL)
        w_ih = _rows(memory[_W_IH], n_blocks * size, n_features)
        into = _rows(grad_place, n_rows, grad_row)
        if is_lstm:
            pack_back(w_ih, 4, weights)
            add_product(grad, weights, 0, into)
        else:
            pack_back(w_ih, 3, weights)
            add_product(grad[:, width : 3 * width], weights, 0, into)
            add_product(grad[:, :width], weights, 2 * width, into)


@_compile
def minibatch(network, encoder, memories, pi_layers, vf_layers, parameters, coefficients, terms):  # type: ignore[no-untyped-def]
    """Train on one minibatch of whole windows.

    :param network: numbers and addresses as :data:`NETWORK` says, int64
    :param encoder: dense layers before the memory, rows as :data:`DENSE` says
    :param memories: the actor's and, if it has one of its own, the critic's, rows as
        :data:`MEMORY` says
    :param pi_layers: dense layers from the actor's memory to the logits or means
    :param vf_layers: from what the critic reads to the value; the first is the layer that reads
        features where the critic has no memory
    :param parameters: rows of :func:`thrust_pomdp.ppo.kernels_adam.adam`
    :param coefficients: of the loss (:func:`thrust_pomdp.ppo.kernels_loss.step_losses`), then the
        greatest norm of the gradient, the KL estimate beyond which nothing is changed, and Adam's
        learning rate, two betas and epsilon, float64
    :param terms: output, means as of :func:`thrust_pomdp.ppo.kernels_loss.step_losses`, and the
        gradient's norm
    :return: how it ended
    """
    n_seq, n_steps, critic = network[_N_SEQ], network[_N_STEPS], network[_CRITIC]
    n_rows = n_seq * n_steps
    starts = network[_STARTS]
    obs, row = network[_OBS], network[_N_FEATURES]
    features, feature_row = obs, row
    if len(encoder) > 0:
        _stack_forward(encoder, obs, row, n_rows, 0)
        last = encoder[len(encoder) - 1]
        features, feature_row = last[_OUT], padded(last[_OUTPUTS])
    actor = memories[0]
    for number in range(len(memories)):
        at = _row_of(memories, number)
        _memory_forward(at, n_seq, n_steps, features, feature_row, starts)
    pi_row = padded(actor[_SIZE])
    read = memories[1] if critic == OWN else actor
    vf_place, vf_row = read[_HIDDEN], padded(read[_SIZE])
    if critic == LINEAR:
        vf_place, vf_row = features, feature_row
    grads_features = len(encoder) > 0
    _stack_forward(pi_layers, actor[_HIDDEN], pi_row, n_rows, 1)
    wants_back = critic != DETACHED and (critic != LINEAR or grads_features)
    _stack_forward(vf_layers, vf_place, vf_row, n_rows, 1 if wants_back else 0)

    ended = _loss(network, n_rows, pi_layers[-1], vf_layers[-1], coefficients, terms)
    if ended != STEPPED:
        return ended

    # Gradients of what several read are added up.
    grad_features, grad_row = 0, feature_row
    if grads_features:
        grad_features = encoder[-1, _GRAD_OUT]
        _put_zeros(grad_features, n_rows * grad_row)
    for number in range(len(memories)):
        _put_zeros(memories[number, _GRAD_HIDDEN], n_rows * padded(memories[number, _SIZE]))
    _stack_backward(pi_layers, actor[_HIDDEN], pi_row, n_rows, actor[_GRAD_HIDDEN], pi_row)
    vf_grad, vf_grad_row = read[_GRAD_HIDDEN], vf_row
    if critic == DETACHED:
        vf_grad = 0
    elif critic == LINEAR:
        vf_grad, vf_grad_row = grad_features, grad_row
    _stack_backward(vf_layers, vf_place, vf_row, n_rows, vf_grad, vf_grad_row)
    for number in range(len(memories)):
        _memory_backward(
            _row_of(memories, number), n_seq, n_steps, features, feature_row, starts, grad_features,
            grad_row,
        )  # fmt: skip
    if grads_features:
        _stack_backward(encoder, obs, row, n_rows, 0, 0)

    terms[5] = gradient_norm(parameters)
    scale = coefficients[5] / (terms[5] + 1e-6)
    adam(parameters, scale if not scale > 1.0 else 1.0, coefficients[7:], network[_SCRATCH])
    return STEPPED


@_compile
def _loss(network, n_rows, pi, vf, coefficients, terms):  # type: ignore[no-untyped-def]
    """Compute the loss's terms, and the gradients of the heads' outputs unless that is to stop."""
    n_actions = pi[_OUTPUTS]
    vf_width = padded(vf[_OUTPUTS])
    scratch = network[_SCRATCH]
    batch = network[_OLD_LOG_PROB : _RETURNS + 1]
    actions = carray(integers_at(network[_ACTIONS]), n_rows)
    if network[_GAUSSIAN]:
        gaussian_rows(
            n_rows, n_actions, pi[_OUT], network[_ACTIONS], network[_LOG_STD], pi[_GRAD_OUT],
            scratch,
        )  # fmt: skip
    else:
        for r in range(n_rows):
            if actions[r] < 0 or actions[r] >= n_actions:
                return NO_SUCH_ACTION
        categorical_rows(n_rows, n_actions, pi[_OUT], actions, pi[_GRAD_OUT], scratch)
    values = _rows(vf[_OUT], n_rows, vf_width)
    grad_values = _rows(vf[_GRAD_OUT], n_rows, vf_width)
    step_losses(n_rows, batch, values, grad_values, coefficients, scratch, terms)
    if _f32(terms[4]) > _f32(coefficients[6]):  # as torch compares
        return STOPPED
    if network[_GAUSSIAN]:
        gaussian_gradient(
            n_rows, n_actions, pi[_GRAD_OUT], network[_LOG_STD], network[_GRAD_LOG_STD],
            coefficients[2], scratch,
        )  # fmt: skip
    else:
        categorical_gradient(
            n_rows, n_actions, pi[_OUT], actions, pi[_GRAD_OUT], coefficients[2], scratch
        )
    return STEPPED
