// Three carts behind one sensor, without any picture: what is computed in a step, and the scores.

import { advanced, isOver, started } from "./cartpole.js";
import { Flicker, flickerLaw } from "./flicker.js";
import { Stream } from "./random.js";

/** Steps for which a fallen pole is shown before it stands again. */
export const FALLEN_STEPS = 25;
/** What a push adds to the pole's angular velocity, rad/s; a step's force adds about 0.3. */
export const PUSH = 0.5;
/** Frames that are kept for the strips. */
export const KEPT = 120;

const NOISE_KEY = 1;
const BLANK = [0, 0, 0, 0];

/** Acts by a network with memory, and tells what it takes the state for. */
export class WithMemory {
  constructor(actor) {
    this.actor = actor;
    this.belief = null;
  }

  reset() {
    this.actor.reset();
    this.belief = null;
  }

  see(reading, blanked) {
    this.action = this.actor.act(reading, { blanked });
    this.belief = Array.from(this.actor.outputs.belief);
  }
}

/** Acts by a network that sees the newest frame alone, and so may have to toss a coin. */
export class WithoutMemory {
  constructor(actor, seed) {
    this.actor = actor;
    this.noise = new Stream(seed, [NOISE_KEY]);
  }

  reset() {}

  see(reading, blanked) {
    this.action = this.actor.act(reading, { blanked, noise: this.noise.next() });
  }
}

/** Acts as keys and fingers say; without any it pushes to and fro, so that the cart rolls on. */
export class ByHand {
  constructor() {
    this.held = null;
    this.action = 0;
  }

  reset() {}

  see() {
    this.next = 1 - this.action;
  }

  decide() {
    this.action = this.held ?? this.next;
  }
}

/** One cart, who drives it, and how well. */
class Cart {
  constructor(seed, driver, waits) {
    this.driver = driver;
    this.starts = new Stream(seed);
    /** Whether it stands still until somebody takes it. */
    this.waits = waits;
    Object.assign(this, { falls: 0, longest: 0, past: [] });
    this.begin();
  }

  begin() {
    this.state = started(this.starts);
    this.steps = 0;
    this.fallenFor = 0;
    this.isWaiting = this.waits;
    this.driver.reset();
  }

  get isFallen() {
    return this.fallenFor > 0;
  }

  see(blanked) {
    if (!this.isFallen && !this.isWaiting) this.driver.see(blanked ? BLANK : this.state, blanked);
    this.past.push({
      angle: this.state[2],
      believed: this.isFallen ? null : (this.driver.belief?.[2] ?? null),
      isOn: !this.isFallen && !this.isWaiting,
      blanked,
    });
    if (this.past.length > KEPT) this.past.shift();
  }

  /** Return whether the pole fell in this step. */
  advance() {
    if (this.isWaiting) return false;
    if (this.isFallen) {
      if (++this.fallenFor > FALLEN_STEPS) this.begin();
      return false;
    }
    this.driver.decide?.();
    this.state = advanced(this.state, this.driver.action);
    this.steps++;
    this.longest = Math.max(this.longest, this.steps);
    if (!isOver(this.state)) return false;
    this.fallenFor = 1;
    this.falls++;
    return true;
  }
}

/** Everything that moves; the same seed and settings give the same scene. */
export class Scene {
  /**
   * settings: { seed, rate, burst }
   * actors: { memory, memoryless }, exported by thrust_pomdp
   */
  constructor(settings, actors) {
    this.settings = { ...settings };
    const { seed, rate, burst } = settings;
    this.flicker = new Flicker(seed, flickerLaw(rate, burst));
    this.carts = {
      memory: new Cart(seed, new WithMemory(actors.memory), false),
      memoryless: new Cart(seed, new WithoutMemory(actors.memoryless, seed), false),
      you: new Cart(seed, new ByHand(), true),
    };
    /** Whether the newest frame is blank, for all three. */
    this.blanked = this.flicker.blanked;
    this.blindFor = 0;
    this.pushes = 0;
    this.see();
  }

  see() {
    for (const cart of Object.values(this.carts)) cart.see(this.blanked);
  }

  /** Go on by one step; return the names of those who fell. */
  step() {
    const fallen = Object.keys(this.carts).filter((name) => this.carts[name].advance());
    const isBlinking = this.flicker.next();
    this.blanked = isBlinking || this.blindFor > 0;
    this.blindFor = Math.max(0, this.blindFor - 1);
    this.see();
    return fallen;
  }

  /** Change the sensor from the next frame on. */
  set(rate, burst) {
    this.flicker.law = flickerLaw(rate, burst);
    Object.assign(this.settings, { rate, burst });
  }

  /** Blank the next frames, whatever the sensor would do. */
  blind(frames) {
    this.blindFor = frames;
  }

  /** Push all poles that stand, to the right and to the left in turn; return which. */
  push() {
    const side = this.pushes++ % 2 === 0 ? 1 : -1;
    for (const cart of Object.values(this.carts))
      if (!cart.isFallen && !cart.isWaiting) cart.state[3] += side * PUSH;
    return side > 0 ? "right" : "left";
  }

  /** Push your own cart to the left (0) or right (1) from now on, or to neither (null). */
  drive(side) {
    const { you } = this.carts;
    you.driver.held = side;
    if (side !== null && you.isWaiting) {
      you.isWaiting = false;
      you.driver.see();
    }
  }
}

/** Return how many steps each agent keeps its first pole up, at most so many. */
export function firstFalls(settings, actors, most) {
  const scene = new Scene(settings, actors);
  const ends = { memory: most, memoryless: most };
  for (let step = 1; step <= most; step++)
    for (const name of scene.step()) if (ends[name] === most) ends[name] = step;
  return ends;
}
