// Painting: the cart as the sensor shows it, what memory believes, and the latest frames.

import { FALLEN, TRACK_END } from "./cartpole.js";
import { KEPT } from "./scene.js";

/** Metres across the picture: the track and a cart's half on either side. */
const WORLD = 2 * (TRACK_END + 0.3);
const CART_WIDTH = 0.5;
const CART_HEIGHT = 0.24;
/** Steps in which a fallen pole comes to lie. */
const FALL_TAKES = 10;
/** Kept free above the pole: its limits, and a line of text. */
const LABEL = 46;
/** Between the lines of what is hatched, CSS pixels. */
const HATCH = 9;

/** A canvas whose pixels are the screen's; asked for its size only when that may have changed. */
export class Sheet {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.fit();
  }

  fit() {
    const { canvas } = this;
    const ratio = globalThis.devicePixelRatio || 1;
    this.width = canvas.clientWidth;
    this.height = canvas.clientHeight;
    canvas.width = Math.round(this.width * ratio);
    canvas.height = Math.round(this.height * ratio);
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.hatching = null;
  }

  /** Slanted lines on a ground, as a pattern that is drawn once. */
  hatch(colours, ground, line) {
    if (this.hatching?.colours === colours) return this.hatching.pattern;
    const ratio = globalThis.devicePixelRatio || 1;
    const tile = document.createElement("canvas");
    tile.width = tile.height = Math.round(HATCH * ratio);
    const context = tile.getContext("2d");
    context.scale(tile.width / HATCH, tile.width / HATCH);
    context.fillStyle = colours[ground];
    context.fillRect(0, 0, HATCH, HATCH);
    context.strokeStyle = colours[line];
    context.lineWidth = 1;
    context.beginPath();
    for (const x of [-HATCH, 0, HATCH]) {
      context.moveTo(x - 1, HATCH + 1);
      context.lineTo(x + HATCH + 1, -1);
    }
    context.stroke();
    const pattern = this.context.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(HATCH / tile.width));
    this.hatching = { colours, pattern };
    return pattern;
  }
}

/** What of a scene is drawn where. */
function geometry(width, height) {
  const scale = width / WORLD;
  const ground = height - 16;
  const cartHeight = Math.max(CART_HEIGHT * scale, 11);
  const pole = Math.min(ground - cartHeight - LABEL, 2.1 * scale);
  return { scale, ground, cartHeight, pole, middle: width / 2 };
}

/** Where the pole's joint and tip are. */
function joints({ scale, ground, cartHeight, pole, middle }, [x, , theta]) {
  const joint = { x: middle + x * scale, y: ground - cartHeight };
  return { joint, tip: { x: joint.x + pole * Math.sin(theta), y: joint.y - pole * Math.cos(theta) } };
}

function capsule(context, { joint, tip }, radius) {
  const angle = Math.atan2(tip.y - joint.y, tip.x - joint.x);
  context.beginPath();
  context.arc(joint.x, joint.y, radius, angle + Math.PI / 2, angle - Math.PI / 2);
  context.arc(tip.x, tip.y, radius, angle - Math.PI / 2, angle + Math.PI / 2);
  context.closePath();
}

function cartBody(context, { scale, ground, cartHeight }, joint, grown) {
  const half = (CART_WIDTH * scale) / 2 + grown;
  context.beginPath();
  context.roundRect(joint.x - half, joint.y - grown, 2 * half, cartHeight + 2 * grown, 3 + grown);
}

/** The true cart, or what the sensor shows of it, which is the same. */
function drawTruth(context, shape, state, colours, colour) {
  const places = joints(shape, state);
  cartBody(context, shape, places.joint, 0);
  context.fillStyle = colours.ink;
  context.fill();
  capsule(context, places, 3.5);
  context.fillStyle = colour;
  context.fill();
  context.beginPath();
  context.arc(places.joint.x, places.joint.y, 2, 0, 7);
  context.fillStyle = colours.card;
  context.fill();
}

/** What memory takes the state for: a hollow shape that a right belief fits around the truth. */
function drawBelief(context, shape, belief, colour) {
  const { joint, tip } = joints(shape, belief);
  const share = 13 / shape.pole; // the pole's outline begins above the cart's
  const foot = { x: joint.x + share * (tip.x - joint.x), y: joint.y + share * (tip.y - joint.y) };
  context.save();
  context.lineWidth = 1.6;
  context.strokeStyle = colour;
  context.setLineDash([5, 3.5]);
  cartBody(context, shape, joint, 4);
  context.stroke();
  capsule(context, { joint: foot, tip }, 8);
  context.globalAlpha = 0.16;
  context.fillStyle = colour;
  context.fill();
  context.globalAlpha = 1;
  context.stroke();
  context.restore();
}

/** The angles between which the pole stands. */
function drawLimits(context, shape, state, colours) {
  const { joint } = joints(shape, state);
  const radius = shape.pole + 13;
  context.strokeStyle = colours.faint;
  context.lineWidth = 1.2;
  context.beginPath();
  context.arc(joint.x, joint.y, radius, -Math.PI / 2 - FALLEN, -Math.PI / 2 + FALLEN);
  for (const side of [-FALLEN, FALLEN]) {
    const [sin, cos] = [Math.sin(side), Math.cos(side)];
    context.moveTo(joint.x + (radius - 5) * sin, joint.y - (radius - 5) * cos);
    context.lineTo(joint.x + (radius + 5) * sin, joint.y - (radius + 5) * cos);
  }
  context.stroke();
}

function drawTrack(context, { scale, ground, middle }, colours) {
  const end = TRACK_END * scale;
  context.strokeStyle = colours.soft;
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(middle - end, ground + 1);
  context.lineTo(middle + end, ground + 1);
  for (const x of [-end, end]) {
    context.moveTo(middle + x, ground - 6);
    context.lineTo(middle + x, ground + 7);
  }
  context.moveTo(middle, ground + 1);
  context.lineTo(middle, ground + 5);
  context.stroke();
}

function write(context, text, x, y, colour, align, weight = "600") {
  context.font = `${weight} 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif`;
  context.textAlign = align;
  context.fillStyle = colour;
  context.fillText(text, x, y);
}

/** A fallen pole goes on to the ground, for the eye; the episode ended where it left its limits. */
function fallenState(cart, isCalm) {
  const [x, xDot, theta, thetaDot] = cart.state;
  const share = isCalm ? 1 : Math.min(1, cart.fallenFor / FALL_TAKES) ** 2;
  if (Math.abs(theta) <= FALLEN) return cart.state; // the cart left its track
  return [x, xDot, theta + share * (Math.sign(theta) * (Math.PI / 2) - theta), thetaDot];
}

/**
 * Paint one cart.
 *
 * look: { blanked, trueView, isCalm, colours, colour, call }; call is said while nobody drives
 */
export function drawStage(sheet, cart, look) {
  const { context, width, height } = sheet;
  const { colours, colour } = look;
  const shape = geometry(width, height);
  const { belief } = cart.driver;
  context.clearRect(0, 0, width, height);
  const isBlind = look.blanked && !cart.isFallen;
  if (isBlind) {
    context.fillStyle = sheet.hatch(colours, "blank", "hatch");
    context.fillRect(0, 0, width, height);
  }
  drawTrack(context, shape, colours);
  if (cart.isFallen) {
    drawTruth(context, shape, fallenState(cart, look.isCalm), colours, colour);
    write(context, `fell after ${cart.steps} steps`, width / 2, 21, colours.ink, "center");
    return;
  }
  const isSeen = !look.blanked;
  if (isSeen || look.trueView || belief)
    drawLimits(context, shape, isSeen || look.trueView ? cart.state : belief, colours);
  if (isSeen || look.trueView) {
    context.globalAlpha = isSeen ? 1 : 0.4;
    drawTruth(context, shape, cart.state, colours, colour);
    context.globalAlpha = 1;
  }
  if (belief) drawBelief(context, shape, belief, colour);
  if (isBlind) write(context, "blank", width - 9, 19, colours.soft, "right");
  if (cart.isWaiting) write(context, look.call, width / 2, 21, colours.ink, "center");
}

/** Paint the pole's angle over the latest frames, those that were blank shaded. */
export function drawStrip(sheet, cart, look) {
  const { context, width, height } = sheet;
  const { colours, colour } = look;
  const cell = width / KEPT;
  const past = cart.past;
  const left = width - past.length * cell;
  const at = (i) => left + (i + 0.5) * cell;
  const level = (angle) => height / 2 + ((height / 2 - 5) * angle) / FALLEN;
  context.clearRect(0, 0, width, height);
  context.fillStyle = sheet.hatch(colours, "band", "stroke");
  for (let i = 0, run = 0; i < past.length; i += run) {
    run = 1;
    while (past[i + run]?.blanked === past[i].blanked) run++;
    if (past[i].blanked) context.fillRect(left + i * cell, 0, run * cell, height);
  }
  context.strokeStyle = colours.line;
  context.lineWidth = 1;
  context.beginPath();
  for (const angle of [-FALLEN, 0, FALLEN]) {
    context.moveTo(0, level(angle));
    context.lineTo(width, level(angle));
  }
  context.stroke();
  const trace = (value, isShown) => {
    context.beginPath();
    let isDown = false;
    past.forEach((frame, i) => {
      const drawn = frame.isOn && isShown(frame) && value(frame) !== null;
      if (drawn && isDown) context.lineTo(at(i), level(value(frame)));
      else if (drawn) {
        context.moveTo(at(i) - cell / 2, level(value(frame)));
        context.lineTo(at(i), level(value(frame)));
      }
      isDown = drawn;
    });
    context.stroke();
  };
  context.strokeStyle = colour;
  context.lineJoin = "round";
  if (look.trueView) {
    context.globalAlpha = 0.45;
    context.lineWidth = 2.5;
    trace((frame) => frame.angle, (frame) => frame.blanked);
    context.globalAlpha = 1;
  }
  context.lineWidth = 2.5;
  trace((frame) => frame.angle, (frame) => !frame.blanked);
  context.lineWidth = 1.2;
  context.strokeStyle = colours.ink;
  context.setLineDash([3, 2]);
  trace((frame) => frame.believed, (frame) => frame.blanked);
  context.setLineDash([]);
  past.forEach((frame, i) => {
    if (!frame.isOn && past[i - 1]?.isOn)
      write(context, "\u00d7", at(i), height / 2 + 5, colours.ink, "center", "700");
  });
}

