const KINDS = {
  float32: Float32Array, float64: Float64Array, bool: Uint8Array, uint8: Uint8Array,
  int8: Int8Array, int16: Int16Array, uint16: Uint16Array, int32: Int32Array, uint32: Uint32Array,
  int64: Float64Array, uint64: Float64Array,
};

function decoded([kind, text]) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new KINDS[kind](bytes.buffer);
}

const size = (shape) => shape.reduce((product, length) => product * length, 1);
const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const clipped = (x, low, high) => Math.min(Math.max(x, low), high);

function product(x, weight, bias, length) {
  const y = new Float32Array(length);
  for (let i = 0; i < length; i++) {
    let sum = bias ? bias[i] : 0;
    for (let k = 0, at = i * x.length; k < x.length; k++, at++) sum += x[k] * weight[at];
    y[i] = sum;
  }
  return y;
}

/** The most likely value, or where a number from [0, 1) falls on the cumulated probabilities. */
function choice(logits, mask, noise) {
  let best = -1;
  logits.forEach((x, i) => {
    if ((!mask || mask[i]) && (best < 0 || x > logits[best])) best = i;
  });
  if (best < 0 || noise === undefined) return Math.max(best, 0);
  const weights = Array.from(logits, (x, i) => (!mask || mask[i] ? Math.exp(x - logits[best]) : 0));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  let running = 0;
  for (let i = 0; i < weights.length; i++) {
    running += weights[i];
    if (running > noise * total || running >= total) return i;
  }
  return best;
}

const ACTIVATIONS = {
  gelu: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  tanh: (x) => Math.tanh(x),
  relu: (x) => Math.max(x, 0),
  sigmoid,
  silu: (x) => x * sigmoid(x),
  softsign: (x) => x / (1 + Math.abs(x)),
  elu: (x, slope) => (x > 0 ? x : slope * Math.expm1(x)),
  leaky_relu: (x, slope) => (x > 0 ? x : slope * x),
};

// Inputs, weights, options, shape of the first output -> output, or outputs.

function normalize([x, flags], w, o) {
  const rounded = o.precision === "float32" ? Math.fround : (number) => number;
  return Float32Array.from(x, (reading, i) => {
    if (flags && flags[i]) return 0;
    const centred = rounded(rounded(reading) - w.mean[i]);
    return clipped(rounded(centred / w.std[i]), -o.clip, o.clip);
  });
}

function oneHot([x], w, o) {
  return Float32Array.from(
    o.sizes.flatMap((length, place) =>
      Array.from({ length }, (_, i) => (x[place] - o.starts[place] === i ? 1 : 0))),
  );
}

function concat(x, w, o, shape) {
  const outer = size(shape.slice(0, o.axis));
  const y = new x[0].constructor(size(shape));
  let at = 0;
  for (let row = 0; row < outer; row++) {
    for (const part of x) {
      const inner = part.length / outer;
      for (let i = 0; i < inner; i++) y[at++] = part[row * inner + i];
    }
  }
  return y;
}

function slice([x], w, o, shape) {
  const outer = size(shape.slice(0, o.axis));
  const first = o.begin * size(shape.slice(o.axis + 1));
  const inner = size(shape) / outer, width = x.length / outer;
  const y = new x.constructor(size(shape));
  for (let row = 0; row < outer; row++)
    for (let i = 0; i < inner; i++) y[row * inner + i] = x[row * width + first + i];
  return y;
}

function layerNorm([x], w, o) {
  const mean = x.reduce((sum, number) => sum + number, 0) / x.length;
  const spread = x.reduce((sum, number) => sum + (number - mean) ** 2, 0) / x.length;
  const scale = Math.sqrt(spread + o.epsilon);
  return x.map((number, i) =>
    ((number - mean) / scale) * (w.weight ? w.weight[i] : 1) + (w.bias ? w.bias[i] : 0));
}

function gates([x, h], w, count) {
  const length = count * h.length;
  return [product(x, w.weight_ih, w.bias_ih, length), product(h, w.weight_hh, w.bias_hh, length)];
}

function lstm(inputs, w) {
  const [, h, c] = inputs, n = h.length;
  const [ih, hh] = gates(inputs, w, 4);
  const gate = (place, i) => ih[place * n + i] + hh[place * n + i];
  const cell = c.map((before, i) =>
    sigmoid(gate(1, i)) * before + sigmoid(gate(0, i)) * Math.tanh(gate(2, i)));
  return [cell.map((number, i) => sigmoid(gate(3, i)) * Math.tanh(number)), cell];
}

function gru(inputs, w) {
  const h = inputs[1], n = h.length;
  const [ih, hh] = gates(inputs, w, 3);
  return h.map((before, i) => {
    const reset = sigmoid(ih[i] + hh[i]), keeps = sigmoid(ih[n + i] + hh[n + i]);
    const fresh = Math.tanh(ih[2 * n + i] + reset * hh[2 * n + i]);
    return fresh + keeps * (before - fresh);
  });
}

function rnn(inputs, w, o) {
  const [ih, hh] = gates(inputs, w, 1);
  return ih.map((number, i) => ACTIVATIONS[o.function](number + hh[i]));
}

function glu([x]) {
  const n = x.length / 2;
  return x.slice(0, n).map((shown, i) => shown * sigmoid(x[n + i]));
}

function minGru([gates, h]) {
  const n = h.length;
  return h.map((before, i) => sigmoid(-gates[i]) * before + sigmoid(gates[i]) * gates[n + i]);
}

function lru([added, h], w) {
  const f = w.factor, n = h.length / 2;
  return h.map((before, i) => added[i] + (i < n
    ? f[i] * before - f[n + i] * h[n + i]
    : f[i - n] * before + f[i] * h[i - n]));
}

function choices([x, noise, masks], w, o) {
  let first = 0;
  return o.sizes.map((length, place) => {
    const end = first + length;
    const mask = masks && masks.slice(first, end);
    const chosen = choice(x.slice(first, end), mask, noise && noise[place]);
    first = end;
    return chosen;
  });
}

function bits([x, noise, masks]) {
  return Array.from(x, (logit, i) => {
    const [zero, one] = masks ? [masks[2 * i], masks[2 * i + 1]] : [true, true];
    if (!(zero && one)) return one ? 1 : 0;
    return (noise ? noise[i] < sigmoid(logit) : logit > 0) ? 1 : 0;
  });
}

const OPERATIONS = {
  add: ([x, y]) => x.map((number, i) => number + y[i]),
  activation: ([x], w, o) => x.map((number) => ACTIVATIONS[o.function](number, o.slope)),
  bits,
  blank: ([x, flags], w) => (flags ? x.map((number, i) => (flags[i] ? w.blank[i] : number)) : x),
  cast: ([x]) => Float32Array.from(x),
  choices,
  clip: ([x], w) => x.map((number, i) => clipped(number, w.low[i], w.high[i])),
  concat,
  constant: (x, w) => w.numbers,
  dense: ([x], w, o, shape) => product(x, w.weight, w.bias, shape[0]),
  divide: ([x], w, o) => x.map((number) => number / o.by),
  flatten: ([x]) => x,
  gaussian: ([x, noise], w) => (noise ? x.map((mean, i) => mean + noise[i] * w.std[i]) : x),
  glu,
  gru,
  layer_norm: layerNorm,
  lru,
  lstm,
  min_gru: minGru,
  normalize,
  one_hot: oneHot,
  reset: ([x, start]) => (start[0] ? new x.constructor(x.length) : x),
  reshape: ([x]) => x,
  rnn,
  scale: ([x], w) =>
    x.map((number, i) => clipped((number - w.centre[i]) / w.width[i], w.low[i], w.high[i])),
  slice,
  unscale: ([x], w) => x.map((number, i) => w.low[i] + 0.5 * (number + 1) * (w.high[i] - w.low[i])),
};

/** Acts and keeps memory, frames and the previous action itself. */
export class Actor {
  constructor() {
    this.reset();
  }

  /** Forget everything: the next observation starts an episode. */
  reset() {
    this.state = {};
    for (const { name, before, shape, dtype } of PROGRAM.states)
      this.state[name] = before.map(() => new KINDS[dtype](size(shape)));
    this.starts = true;
    this.previousAction = new Float64Array(PROGRAM.action.sizes.length);
  }

  /** Tell what was done in the end, if not what act() returned last. */
  setPreviousAction(action) {
    this.previousAction = Float64Array.from([action].flat());
  }

  /**
   * Return the action for an observation: a number for one choice, else an array of numbers.
   *
   * obs: numbers, or an object of numbers by key
   * blanked: true, or flags of the numbers, or an object of these by key; undefined if nobody tells
   * reward: what came with obs, if the model sees its previous reward
   * actionMasks: flags of what may be chosen; undefined for everything
   * noise: from [0, 1) for each choice or bit, standard normal for each number of the action;
   *   undefined for the most likely action
   */
  act(obs, { blanked, reward, actionMasks, noise } = {}) {
    const given = { reward, actionMasks, noise };
    const values = {};
    for (const port of PROGRAM.inputs) values[port.value] = this.read(port, obs, blanked, given);
    for (const { name, value, key, kind } of PROGRAM.inputs) {
      if (kind !== "obs") continue;
      const told = PROGRAM.inputs.find((port) => port.kind === "blanked" && port.key === key);
      const flags = told && values[told.value];
      if (values[value].some((number, i) => !Number.isFinite(number) && !(flags && flags[i])))
        throw new Error(`${name} must be finite where it is not blanked`);
    }
    for (const { name, before } of PROGRAM.states)
      before.forEach((value, layer) => (values[value] = this.state[name][layer]));
    for (const { kind, inputs, outputs, weights, options, shape } of STEPS) {
      const made = OPERATIONS[kind](inputs.map((name) => values[name]), weights, options, shape);
      if (outputs.length === 1) values[outputs[0]] = made;
      else outputs.forEach((name, place) => (values[name] = made[place]));
    }
    for (const { name, after } of PROGRAM.states)
      this.state[name] = after.map((value) => values[value]);
    /** What else came out of the last step, by name. */
    this.outputs = {};
    for (const { name, value } of PROGRAM.outputs) this.outputs[name] = values[value];
    const action = Array.from(this.outputs.action);
    this.setPreviousAction(action);
    this.starts = false;
    return PROGRAM.action.space === "Discrete" ? action[0] : action;
  }

  read(port, obs, blanked, given) {
    const { kind, key, shape, dtype } = port;
    if (kind === "start") return [this.starts];
    if (kind === "previous_action") return rounded(this.previousAction, dtype);
    if (kind === "previous_reward") {
      if (given.reward === undefined && !this.starts)
        throw new Error("reward must be given: the model sees its previous reward");
      return Float32Array.of(given.reward ?? 0);
    }
    if (kind === "action_masks") return given.actionMasks;
    if (kind === "noise") return given.noise === undefined ? undefined : [given.noise].flat();
    const reading = [key === null ? obs : obs[key]].flat(Infinity);
    if (kind === "obs") return rounded(checked(port, flat(reading)), dtype);
    return flagsOf(key === null || typeof blanked !== "object" ? blanked : blanked[key] ?? false,
                   size(shape), flat(reading));
  }
}

/** Flags of numbers; of none where nobody tells, but of zeros where these are taken for blank. */
function flagsOf(flags, length, reading) {
  if (flags === undefined || flags === null) {
    if (!PROGRAM.obs.guess) return undefined;
    flags = Array.from(reading).every((number) => Number(number) === 0);
  }
  return typeof flags === "boolean" ? new Uint8Array(length).fill(flags ? 1 : 0)
    : Uint8Array.from(flat([flags].flat(Infinity)));
}

// A typed array inside of an array is not flattened by flat().
const flat = (parts) => parts.flatMap((part) => (ArrayBuffer.isView(part) ? Array.from(part) : [part]));
const rounded = (numbers, dtype) => KINDS[dtype].from(numbers, Number);

function checked({ name, shape }, numbers) {
  if (numbers.length !== size(shape))
    throw new Error(`${name} must be ${size(shape)} numbers, got ${numbers.length}`);
  return numbers;
}

const WEIGHTS = Object.fromEntries(
  Object.entries(ARRAYS).map(([name, array]) => [name, decoded(array)]));
const STEPS = PROGRAM.operations.map(({ kind, inputs, outputs, arrays, options }) => ({
  kind, inputs, outputs, options,
  weights: Object.fromEntries(
    Object.entries(arrays).map(([part, name]) => [part, WEIGHTS[name]])),
  shape: PROGRAM.shapes[outputs[0]],
}));
