// The equations of Gymnasium's CartPole (explicit Euler), in the order in which it computes them.

export const GRAVITY = 9.8;
export const CART_MASS = 1.0;
export const POLE_MASS = 0.1;
export const TOTAL_MASS = POLE_MASS + CART_MASS;
/** Half of the pole's length, m. */
export const LENGTH = 0.5;
export const POLE_MOMENT = POLE_MASS * LENGTH;
export const FORCE = 10.0;
/** Seconds of a step. */
export const TAU = 0.02;
/** Where an episode ends: m from the middle, rad from upright. */
export const TRACK_END = 2.4;
export const FALLEN = (12 * 2 * Math.PI) / 360;

/** Return the state [x, its velocity, angle, its velocity] after a push to the left (0) or right. */
export function advanced([x, xDot, theta, thetaDot], action) {
  const force = action === 1 ? FORCE : -FORCE;
  const cos = Math.cos(theta);
  const sin = Math.sin(theta);
  const push = (force + POLE_MOMENT * (thetaDot * thetaDot) * sin) / TOTAL_MASS;
  const turn =
    (GRAVITY * sin - cos * push) /
    (LENGTH * (4.0 / 3.0 - (POLE_MASS * (cos * cos)) / TOTAL_MASS));
  const slide = push - (POLE_MOMENT * turn * cos) / TOTAL_MASS;
  return [x + TAU * xDot, xDot + TAU * slide, theta + TAU * thetaDot, thetaDot + TAU * turn];
}

/** Whether an episode is over. */
export const isOver = ([x, , theta]) => Math.abs(x) > TRACK_END || Math.abs(theta) > FALLEN;

/** Return a start state, each number uniform in +-0.05. */
export const started = (stream) => Array.from({ length: 4 }, () => -0.05 + 0.1 * stream.next());
