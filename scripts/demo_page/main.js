// The page: buttons, sliders, keys, fingers, the address, and the clock.

import { Actor as MemoryActor } from "./models/memory.js";
import { Actor as MemorylessActor } from "./models/memoryless.js";
import { TAU } from "./cartpole.js";
import { Sheet, drawStage, drawStrip } from "./picture.js";
import { Scene, firstFalls } from "./scene.js";
import {
  BURST_MOST, RATE_MOST, RATE_STEP, SEED_MOST, SPEEDS, read, withBurst, withRate, written,
} from "./settings.js";

/** Steps that one picture may take, so that a slow machine stays usable. */
const MOST_STEPS = 8;
const BLIND_FRAMES = Math.round(1 / TAU);
const THEMES = ["auto", "light", "dark"];
const COLOURS = [
  "ink", "soft", "card", "line", "faint", "blank", "hatch", "band", "stroke", "memory", "memoryless", "you",
];
const NAMES = ["memory", "memoryless", "you"];

const find = (id) => document.getElementById(id);
const prefers = (what) => matchMedia(`(prefers-${what})`);
const calm = prefers("reduced-motion: reduce");
const coarse = matchMedia("(pointer: coarse)");
const actors = () => ({ memory: new MemoryActor(), memoryless: new MemorylessActor() });

let settings;
let scene;
let colours = {};
let isPlaying = !calm.matches;
let owed = 0;
let before = null;
/** Sides that are held, the newest last. */
const held = [];

const panels = Object.fromEntries(NAMES.map((name) => {
  const panel = find(name);
  const scores = panel.querySelector(".scores");
  const told = ["steps up now", "longest", "falls"].map((label) => {
    const row = document.createElement("div");
    const [term, value] = ["dt", "dd"].map((tag) => document.createElement(tag));
    term.textContent = label;
    row.append(term, value);
    scores.append(row);
    return value;
  });
  const [stage, strip] = [".stage", ".strip"].map((kind) => new Sheet(panel.querySelector(kind)));
  return [name, { stage, strip, told }];
}));

/** Tell in the status line, which screen readers read aloud, what was done. */
function tell(text) {
  find("status").textContent = text;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// ------------------------------------------------------------------ the picture

function draw() {
  for (const name of NAMES) {
    const cart = scene.carts[name];
    const { stage, strip, told } = panels[name];
    const look = {
      blanked: scene.blanked, trueView: settings.trueView, isCalm: calm.matches, colours,
      colour: colours[name], call: coarse.matches ? "hold an arrow to start" : "hold \u2190 or \u2192 to start",
    };
    drawStage(stage, cart, look);
    drawStrip(strip, cart, look);
    [cart.steps, cart.longest, cart.falls].forEach((x, i) => setText(told[i], String(x)));
  }
}

function step() {
  if (scene.step().includes("you"))
    tell(`You fell after ${scene.carts.you.steps} steps; the agent with memory is at ${scene.carts.memory.steps}.`);
}

function tick(now) {
  requestAnimationFrame(tick);
  const passed = before === null ? 0 : now - before;
  before = now;
  if (!isPlaying) return;
  owed = Math.min(owed + (passed / 1000 / TAU) * settings.speed, MOST_STEPS);
  if (owed < 1) return;
  for (; owed >= 1; owed--) step();
  draw();
}

function setTheme(theme) {
  const isDark = theme === "auto" ? prefers("color-scheme: dark").matches : theme === "dark";
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  const button = find("theme");
  button.dataset.choice = theme;
  button.textContent = `Colours: ${theme}`;
  const style = getComputedStyle(document.documentElement);
  colours = Object.fromEntries(COLOURS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

// ------------------------------------------------------------------ the scene

function begin() {
  scene = new Scene(settings, actors());
  owed = 0;
  drive();
  show();
}

/** Bring controls, address and picture in line with the settings. */
function show() {
  const { seed, rate, burst, speed, trueView } = settings;
  const percent = Math.round(100 * rate);
  const place = SPEEDS.indexOf(speed);
  find("seed").value = seed;
  setSlider("rate", percent, `${percent} %`);
  setSlider("burst", burst, burst === 1 ? "1 frame" : `${burst} frames`);
  setSlider("speed", place, speed === 1 ? "real time" : `${speed} \u00d7 real time`);
  find("view").setAttribute("aria-pressed", String(trueView));
  find("play").textContent = isPlaying ? "Pause" : "Play";
  history.replaceState(null, "", written(settings));
  draw();
}

function setSlider(id, value, text) {
  const slider = find(id);
  slider.value = value;
  slider.setAttribute("aria-valuetext", text);
  setText(find(`${id}-told`), text);
}

function change(changed) {
  settings = changed;
  scene.set(settings.rate, settings.burst);
  show();
}

function load() {
  const { settings: found, complaint } = read(location.hash);
  settings = found;
  begin();
  tell(complaint || (isPlaying ? "" : "It stands still, since your device asks for less motion: Play, or Step."));
}

function play(isOn) {
  isPlaying = isOn;
  show();
}

// ------------------------------------------------------------------ your hands

function drive() {
  scene.drive(held.at(-1) ?? null);
  for (const pad of document.querySelectorAll(".pads button"))
    pad.classList.toggle("held", held.at(-1) === Number(pad.dataset.side));
}

function hold(side) {
  if (!held.includes(side)) held.push(side);
  drive();
  if (!isPlaying) draw();
}

function release(side) {
  const place = held.indexOf(side);
  if (place >= 0) held.splice(place, 1);
  drive();
}

/** Hold a side while a pointer presses. */
function press(element, sideOf) {
  element.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const side = sideOf(event);
    const done = () => {
      for (const kind of ["pointerup", "pointercancel"]) removeEventListener(kind, ends);
      release(side);
    };
    const ends = (other) => other.pointerId === event.pointerId && done();
    for (const kind of ["pointerup", "pointercancel"]) addEventListener(kind, ends);
    hold(side);
  });
  element.addEventListener("contextmenu", (event) => event.preventDefault());
}

function listenToHands() {
  const sides = { ArrowLeft: 0, ArrowRight: 1 };
  const isField = (target) => target.matches?.("input");
  addEventListener("keydown", (event) => {
    if (isField(event.target) || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key in sides) {
      event.preventDefault();
      if (!event.repeat) hold(sides[event.key]);
    } else if (event.key === " " && !event.target.matches?.("button, a")) {
      event.preventDefault();
      play(!isPlaying);
    }
  });
  addEventListener("keyup", (event) => event.key in sides && release(sides[event.key]));
  addEventListener("blur", () => [0, 1].forEach(release));
  for (const pad of document.querySelectorAll(".pads button")) {
    const side = Number(pad.dataset.side);
    press(pad, () => side);
    pad.addEventListener("keydown", ({ key, repeat }) => [" ", "Enter"].includes(key) && !repeat && hold(side));
    pad.addEventListener("keyup", ({ key }) => [" ", "Enter"].includes(key) && release(side));
    pad.addEventListener("blur", () => release(side));
  }
  const stage = panels.you.stage.canvas;
  press(stage, ({ clientX }) => {
    const { left, width } = stage.getBoundingClientRect();
    return clientX < left + width / 2 ? 0 : 1;
  });
}

// ------------------------------------------------------------------ buttons and sliders

const ACTIONS = {
  push() {
    tell(`All poles were pushed to the ${scene.push()}.`);
    draw();
  },
  blind() {
    scene.blind(BLIND_FRAMES);
    tell(`The sensor shows nothing for ${BLIND_FRAMES} frames, one second of the cart's time.`);
  },
  view() {
    settings = { ...settings, trueView: !settings.trueView };
    show();
    tell(settings.trueView ? "Carts are shown, pale, while the sensor is blank." : "Only what the sensor shows.");
  },
  play() {
    play(!isPlaying);
  },
  step() {
    isPlaying = false;
    step();
    show();
  },
  again() {
    begin();
    tell(`Scene ${settings.seed} from its start.`);
  },
  other() {
    settings = { ...settings, seed: Math.floor(Math.random() * 10000) };
    begin();
    tell(`Scene ${settings.seed}.`);
  },
  async copy() {
    try {
      await navigator.clipboard.writeText(location.href);
      tell("The link to this scene is copied.");
    } catch {
      tell("This browser lets no page copy; the link stands in the address.");
    }
  },
  theme() {
    setTheme(THEMES[(THEMES.indexOf(find("theme").dataset.choice) + 1) % THEMES.length]);
    draw();
  },
};

const SLIDERS = {
  rate(value) {
    const { burst } = settings;
    change(withRate(settings, value / 100));
    tell(settings.burst === burst ? "" : `So many blank frames need runs of at least ${settings.burst}: these are longer now.`);
  },
  burst(value) {
    const { rate } = settings;
    change(withBurst(settings, value));
    tell(settings.rate === rate ? "" : "Runs so short allow no more blank frames: these are fewer now.");
  },
  speed(value) {
    change({ ...settings, speed: SPEEDS[value] });
  },
};

function listenToControls() {
  for (const [id, act] of Object.entries(ACTIONS)) find(id).addEventListener("click", act);
  Object.assign(find("rate"), { max: RATE_MOST, step: RATE_STEP });
  find("burst").max = BURST_MOST;
  find("speed").max = SPEEDS.length - 1;
  for (const [id, act] of Object.entries(SLIDERS)) {
    const slider = find(id);
    slider.addEventListener("input", () => act(Number(slider.value)));
    // Whoever drags a slider wants the arrows back for the cart.
    slider.addEventListener("pointerup", () => slider.blur());
  }
  find("seed").addEventListener("change", ({ target }) => {
    const { settings: found, complaint } = read(written({ ...settings, seed: target.value.trim() }));
    if (complaint) return tell(complaint.replace("In the address seed", "A scene"));
    settings = found;
    begin();
    tell(`Scene ${settings.seed}.`);
  });
  addEventListener("hashchange", load);
  prefers("color-scheme: dark").addEventListener("change", () => {
    setTheme(find("theme").dataset.choice);
    draw();
  });
  const observer = new ResizeObserver(() => {
    for (const { stage, strip } of Object.values(panels)) [stage, strip].forEach((sheet) => sheet.fit());
    draw();
  });
  for (const { stage, strip } of Object.values(panels)) {
    observer.observe(stage.canvas);
    observer.observe(strip.canvas);
  }
}

listenToControls();
listenToHands();
setTheme("auto");
load();
requestAnimationFrame(tick);

/** For the console, and for the tests in a browser. */
globalThis.demo = {
  get scene() {
    return scene;
  },
  firstFalls: (changed, most) => firstFalls({ ...settings, ...changed }, actors(), most),
};
