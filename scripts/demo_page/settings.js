// What a scene is made of, its limits, and how it is written into the address.

import { isPossible, shortestBurst } from "./flicker.js";

/** Steps of the slider of blank frames, per cent; the longest mean run; speeds, times real time. */
export const RATE_STEP = 5;
export const RATE_MOST = 90;
export const BURST_MOST = 24;
export const SPEEDS = [0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1, 1.5, 2];
export const SEED_MOST = 2 ** 32 - 1;

/**
 * The sensor of BurstFlickeringCartPole-L8-v0, where the agents were trained, and a pace at which a
 * hand can balance the pole: a quarter of a second, in which people react, is five steps.
 */
export const DEFAULTS = { seed: 7, rate: 0.5, burst: 8, speed: 0.4, trueView: false };

/** Return settings of this share of blank frames, with longer runs where it needs them. */
export function withRate(settings, rate) {
  return { ...settings, rate, burst: Math.max(settings.burst, shortestBurst(rate)) };
}

/** Return settings of this mean length of a run, with fewer blank frames where it allows no more. */
export function withBurst(settings, burst) {
  let percent = Math.round(100 * settings.rate);
  while (!isPossible(percent / 100, burst)) percent -= RATE_STEP;
  return { ...settings, burst, rate: percent / 100 };
}

const isWhole = (x, least, most) => Number.isInteger(x) && x >= least && x <= most;

const READERS = {
  seed: (x) => (isWhole(x, 0, SEED_MOST) ? x : `a whole number from 0 to ${SEED_MOST}`),
  rate: (x) => {
    const percent = Math.round(100 * x);
    const fits = isWhole(percent / RATE_STEP, 0, RATE_MOST / RATE_STEP) && percent / 100 === x;
    return fits ? x : `0, 0.05, 0.1 and so on up to ${RATE_MOST / 100}`;
  },
  burst: (x) => (isWhole(x, 1, BURST_MOST) ? x : `a whole number from 1 to ${BURST_MOST}`),
  speed: (x) => (SPEEDS.includes(x) ? x : `one of ${SPEEDS.join(", ")}`),
};

/** Return { settings, complaint } of an address's part behind "#"; what is wrong is left out. */
export function read(hash) {
  const told = new URLSearchParams(hash.replace(/^#/, ""));
  const settings = { ...DEFAULTS, trueView: told.get("view") === "true" };
  const complaints = [];
  for (const [name, reader] of Object.entries(READERS)) {
    if (!told.has(name)) continue;
    const text = told.get(name);
    const value = text.trim() === "" ? NaN : Number(text);
    const found = reader(value);
    if (found === value) settings[name] = value;
    else complaints.push(`${name} must be ${found}, got ${text || "nothing"}`);
  }
  if (!isPossible(settings.rate, settings.burst)) {
    const least = shortestBurst(settings.rate);
    complaints.push(
      `with rate ${settings.rate} burst must be at least ${least}, got ${settings.burst}`);
    settings.burst = least;
  }
  const complaint = complaints.length ? `In the address ${complaints.join("; ")}.` : "";
  return { settings, complaint };
}

/** Return the address's part for settings. */
export function written({ seed, rate, burst, speed, trueView }) {
  const pace = speed === DEFAULTS.speed ? "" : `&speed=${speed}`;
  return `#seed=${seed}&rate=${rate}&burst=${burst}${pace}${trueView ? "&view=true" : ""}`;
}
