// Which frames are blank: thrust_pomdp/envs/flicker.py in JavaScript.

import { Stream } from "./random.js";

export const FLICKER_KEY = 0x70f11c4e;

/** Whether there is a process with this share of blank frames and this mean length of a run. */
export function isPossible(rate, burst) {
  if (!(rate >= 0 && rate < 1 && burst >= 1 && Number.isFinite(burst))) return false;
  return rate * (1 + burst) <= burst;
}

/** The shortest mean run, in whole frames, that a share of blank frames allows. */
export function shortestBurst(rate) {
  let burst = 1;
  while (!isPossible(rate, burst)) burst++;
  return burst;
}

/** The probabilities of a blank frame: at the start, after a visible frame, after a blank one. */
export function flickerLaw(rate, burst) {
  if (!isPossible(rate, burst))
    throw new Error(`no process has rate ${rate} and burst ${burst}: rate (1 + burst) <= burst`);
  return {
    first: rate,
    afterVisible: rate / (burst * (1 - rate)),
    afterBlank: rate === 0 ? 0 : 1 - 1 / burst,
  };
}

/** The frames of one sensor; the law may change as it goes. */
export class Flicker {
  constructor(seed, law) {
    this.law = law;
    this.stream = new Stream(seed, [FLICKER_KEY, 0]);
    this.blanked = this.stream.next() < law.first;
  }

  next() {
    const { afterBlank, afterVisible } = this.law;
    this.blanked = this.stream.next() < (this.blanked ? afterBlank : afterVisible);
    return this.blanked;
  }
}
