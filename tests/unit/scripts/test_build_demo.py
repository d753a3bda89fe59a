"""docs/demo/index.html: it is what its sources make, and what they compute is what Python does."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from thrust_pomdp import StatefulActor
from thrust_pomdp.deploy.players import NODE
from thrust_pomdp.envs.flicker import FlickerLaw, FlickerProcess

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))

import build_demo

needs_node = pytest.mark.skipif(NODE is None, reason="Node is not installed")
SEEDS = [0, 7, 123456789, 2**32 - 1]
DEFAULT = {"seed": 0, "rate": 0.5, "burst": 8}
SENSORS = [(0.5, 8), (0.5, 2), (0.9, 9), (0.8, 4), (0.05, 1), (0.75, 24), (0.0, 3)]


class TestPage:
    def test_is_up_to_date(self):
        """Else: python scripts/build_demo.py."""
        assert build_demo.PAGE.read_bytes() == build_demo.page().encode()

    def test_is_one_small_file_that_asks_for_no_other(self):
        text = build_demo.PAGE.read_text("utf-8")
        assert len(text.encode()) < 1_000_000
        asked = re.findall(r"<(?!a\b)\w+[^>]*\s(?:src|href)=\"([^\"]*)\"", text)
        assert asked == ["data:,"]
        assert not re.search(
            r"\b(?:fetch|XMLHttpRequest|WebSocket|sendBeacon)\b|url\(|@import", text
        )
        assert "default-src 'none'" in text

    def test_links_to_the_tutorial(self):
        (link,) = re.findall(r'<a href="([^"]*)"', build_demo.PAGE.read_text("utf-8"))
        assert (build_demo.PAGE.parent / link).is_file()


def luminance(colour: str) -> float:
    """Relative luminance by WCAG 2.2."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", [":root {", ':root[data-theme="dark"] {'])
class TestColours:
    @pytest.fixture
    def colours(self, theme):
        style = (build_demo.SOURCES / "style.css").read_text("utf-8")
        block = style.partition(f"\n{theme}" if "data" in theme else theme)[2].partition("}")[0]
        return dict(re.findall(r"--(\w+): (#\w{6})", block))

    def test_can_be_read(self, colours):
        for text in ("ink", "soft"):
            for ground in ("paper", "card", "blank"):
                assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
        for name in ("memory", "memoryless", "you"):
            assert contrast(colours[name], colours["card"]) >= 4.5, name

    def test_a_blank_frame_is_no_flash(self, colours):
        """WCAG 2.2, 2.3.1: a tenth of the most luminance, where the darker image is below .8."""
        line = 1.41 / 9  # of the hatched area: width over distance, across
        blank = (1 - line) * luminance(colours["blank"]) + line * luminance(colours["hatch"])
        seen = luminance(colours["card"])
        assert abs(blank - seen) < 0.1 or min(blank, seen) >= 0.8
        assert contrast(colours["stroke"], colours["card"]) > 1.5


@pytest.mark.parametrize(
    "line", ['import "./a.js";', 'export { a } from "./b.js";', "export default 1;"]
)
def test_what_cannot_be_inlined_is_refused(line):
    with pytest.raises(ValueError, match=r"a\.js must have imports like"):
        build_demo.inlined("a.js", f"const a = 1;\n{line}\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The page's modules, the exported actors beside them, as Node loads them."""
    path = tmp_path_factory.mktemp("demo")
    for name in build_demo.SCRIPTS:
        shutil.copy(build_demo.SOURCES / f"{name}.js", path)
    for file, _, outputs in build_demo.AGENTS.values():
        (path / f"{file}.js").write_text(build_demo.exported(file, outputs))
    (path / "package.json").write_text('{"type": "module"}')
    return path


ACTORS = """
import { Actor as MemoryActor } from "./memory.js";
import { Actor as MemorylessActor } from "./memoryless.js";
const actors = () => ({ memory: new MemoryActor(), memoryless: new MemorylessActor() });
"""


def in_node(folder: Path, program: str, given: Any = None) -> Any:
    """Run a program that sees ``given`` and says what ``told`` is in the end."""
    (folder / "given.json").write_text(json.dumps(given))
    (folder / "program.js").write_text(
        'import { readFileSync } from "node:fs";\n'
        'const given = JSON.parse(readFileSync("given.json"));\nlet told;\n'
        f"{program}\nconsole.log(JSON.stringify(told));\n"
    )
    command = [NODE, "program.js"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


PHYSICS = 'import { advanced, isOver, started } from "./cartpole.js";\n'


@needs_node
class TestPhysics:
    def test_2000_steps_of_one_cart(self, folder):
        """Both sides push by a law of their own state; one that differed would leave the other."""
        told = in_node(
            folder,
            f"""{PHYSICS}
            let state = given;
            told = [];
            for (let step = 0; step < 2000; step++) {{
              const [x, xDot, theta, thetaDot] = state;
              const action = theta + 0.4 * thetaDot + 0.1 * x + 0.2 * xDot > 0 ? 1 : 0;
              state = advanced(state, action);
              told.push([action, ...state, isOver(state) ? 1 : 0]);
            }}""",
            [0.01, -0.02, 0.03, 0.04],
        )
        cart = gym.make("CartPole-v1").unwrapped
        cart.reset(seed=0)
        cart.state = np.array([0.01, -0.02, 0.03, 0.04])
        rows = []
        for _ in range(2000):
            x, x_dot, theta, theta_dot = cart.state
            action = int(theta + 0.4 * theta_dot + 0.1 * x + 0.2 * x_dot > 0)
            _, _, is_over, *_ = cart.step(action)
            rows.append([action, *cart.state, is_over])
        assert not any(row[-1] for row in rows)
        assert {row[0] for row in rows} == {0, 1}
        np.testing.assert_allclose(told, rows, rtol=0, atol=1e-12)

    def test_random_pushes_until_the_end(self, folder):
        rng = np.random.default_rng(0)
        starts, pushes = rng.uniform(-0.05, 0.05, (80, 4)), rng.integers(0, 2, (80, 200))
        told = in_node(
            folder,
            f"""{PHYSICS}
            told = given.starts.map((state, i) => {{
              const rows = [];
              for (const action of given.pushes[i]) {{
                state = advanced(state, action);
                rows.push(state);
                if (isOver(state)) break;
              }}
              return rows;
            }});""",
            {"starts": starts.tolist(), "pushes": pushes.tolist()},
        )
        assert sum(map(len, told)) > 1500
        cart = gym.make("CartPole-v1").unwrapped
        for start, actions, rows in zip(starts, pushes, told, strict=True):
            cart.reset(seed=0)
            cart.state = start
            for row, action in zip(rows, actions, strict=False):
                _, _, is_over, *_ = cart.step(int(action))
                np.testing.assert_allclose(row, cart.state, rtol=0, atol=1e-12)
                assert is_over == (row is rows[-1])

    @pytest.mark.parametrize("seed", SEEDS)
    def test_start_states_are_those_of_the_environment(self, folder, seed):
        told = in_node(
            folder,
            f"""{PHYSICS}
            import {{ Stream }} from "./random.js";
            const stream = new Stream(given);
            told = [started(stream), started(stream), started(stream)];""",
            seed,
        )
        env = gym.make("thrust_pomdp:FlickeringCartPole-v0")
        for place, state in enumerate(told):
            env.reset(seed=seed if place == 0 else None)
            assert state == env.unwrapped.state.tolist()


@needs_node
class TestBlanking:
    @pytest.mark.parametrize(("rate", "burst"), SENSORS)
    def test_flags_are_those_of_the_environment(self, folder, rate, burst):
        told = in_node(
            folder,
            """
            import { Flicker, flickerLaw } from "./flicker.js";
            told = given.seeds.map((seed) => {
              const flicker = new Flicker(seed, flickerLaw(given.rate, given.burst));
              return [flicker.blanked, ...Array.from({ length: 2000 }, () => flicker.next())];
            });""",
            {"seeds": SEEDS, "rate": rate, "burst": burst},
        )
        process = FlickerProcess(FlickerLaw(rate, burst if rate else None))
        for seed, flags in zip(SEEDS, told, strict=True):
            process.seed(seed)
            assert flags == [process.first_frame(), *(process.next_frame() for _ in range(2000))]

    def test_possible_is_what_the_law_allows(self, folder):
        told = in_node(
            folder,
            """
            import { isPossible } from "./flicker.js";
            told = [];
            for (let percent = 5; percent < 100; percent++)
              for (let burst = 1; burst <= 30; burst++)
                told.push([percent, burst, isPossible(percent / 100, burst)]);""",
        )
        for percent, burst, is_possible in told:
            if is_possible:
                FlickerLaw(percent / 100, burst)
            else:
                with pytest.raises(ValueError, match="no process"):
                    FlickerLaw(percent / 100, burst)
        assert {is_possible for *_, is_possible in told} == {True, False}


@needs_node
class TestSettings:
    def test_a_slider_cannot_set_an_impossible_pair(self, folder):
        """From each pair to each value: that is set, and the other moves where it must."""
        told = in_node(
            folder,
            """
            import { isPossible } from "./flicker.js";
            import { BURST_MOST, RATE_MOST, RATE_STEP, withBurst, withRate } from "./settings.js";
            const rates = Array.from({ length: RATE_MOST / RATE_STEP + 1 },
                                     (_, i) => (i * RATE_STEP) / 100);
            const bursts = Array.from({ length: BURST_MOST }, (_, i) => i + 1);
            const row = (asked, { rate, burst }) =>
              [isPossible(asked.rate, asked.burst), asked.rate, asked.burst, rate, burst];
            told = { rates, bursts, byRate: [], byBurst: [] };
            for (const rate of rates)
              for (const burst of bursts.filter((x) => isPossible(rate, x))) {
                for (const to of rates)
                  told.byRate.push(row({ rate: to, burst }, withRate({ rate, burst }, to)));
                for (const to of bursts)
                  told.byBurst.push(row({ rate, burst: to }, withBurst({ rate, burst }, to)));
              }""",
        )
        for rows, kept, least in ((told["byRate"], 1, 2), (told["byBurst"], 2, 1)):
            for is_possible, *asked, rate, burst in rows:
                got = [rate, burst]
                assert rate in told["rates"]
                assert burst in told["bursts"]
                assert got[kept - 1] == asked[kept - 1]
                assert (got == asked) == is_possible
                if not is_possible:  # the other went no further than it had to
                    assert rate * (1 + burst) <= burst
                    one_less = (rate, burst - 1) if least == 2 else (rate + 0.05, burst)
                    assert one_less[0] * (1 + one_less[1]) > one_less[1]
            assert {row[0] for row in rows} == {True, False}

    @pytest.mark.parametrize(
        ("address", "settings", "complaint"),
        [
            ("", {}, ""),
            ("#seed=0&rate=0.9&burst=9&speed=2&view=true",
             {"seed": 0, "rate": 0.9, "burst": 9, "speed": 2, "trueView": True}, ""),
            ("#seed=-1", {}, "seed must be a whole number from 0 to 4294967295, got -1"),
            ("#seed=", {}, "got nothing"),
            ("#seed=x&rate=0.35", {"rate": 0.35}, "got x"),
            ("#rate=0.33", {}, "rate must be 0, 0.05, 0.1 and so on up to 0.9, got 0.33"),
            ("#rate=0.95", {}, "got 0.95"),
            ("#burst=2.5", {}, "burst must be a whole number from 1 to 24, got 2.5"),
            ("#speed=3", {}, "speed must be one of 0.1, "),
            ("#rate=0.9&burst=4", {"rate": 0.9, "burst": 9}, "burst must be at least 9, got 4"),
        ],
    )  # fmt: skip
    def test_addresses(self, folder, address, settings, complaint):
        program = """
            import { DEFAULTS, read, written } from "./settings.js";
            const found = read(given), again = read(written(found.settings)).settings;
            told = { ...found, again, defaults: DEFAULTS };"""
        told = in_node(folder, program, address)
        assert told["settings"] == told["again"] == {**told["defaults"], **settings}
        assert complaint in told["complaint"]
        assert bool(complaint) == bool(told["complaint"])


@needs_node
class TestScene:
    @pytest.mark.parametrize("seed", [0, 3])
    @pytest.mark.parametrize("name", ["memory", "memoryless"])
    def test_first_episode_is_that_of_the_environment(self, folder, name, seed):
        """With torch and Gymnasium: start, frames, actions, physics and end are the same."""
        told = in_node(
            folder,
            f"""{ACTORS}
            import {{ Scene }} from "./scene.js";
            import {{ Stream }} from "./random.js";
            const scene = new Scene(given, actors());
            const cart = scene.carts["{name}"], noise = new Stream(given.seed, [1]);
            told = {{ rows: [], noise: Array.from({{ length: 250 }}, () => noise.next()) }};
            for (let step = 0; step < 250 && !cart.isFallen; step++) {{
              const action = cart.driver.action, flag = scene.blanked;
              scene.step();
              told.rows.push([flag, action, ...cart.state, cart.isFallen]);
            }}""",
            {**DEFAULT, "seed": seed},
        )
        actor = StatefulActor.load(build_demo.MODELS / f"{name}.safetensors", device="cpu")
        actor.deterministic = True
        env = gym.make("thrust_pomdp:BurstFlickeringCartPole-L8-v0")
        obs, info = env.reset(seed=seed)
        for row, number in zip(told["rows"], told["noise"], strict=False):
            noise = [number] if name == "memoryless" else None
            action = int(actor.act(obs, blanked=info["blanked"], noise=noise))
            flag = info["blanked"]
            obs, _, is_over, _, info = env.step(action)
            assert (row[0], row[1], row[-1]) == (flag, action, is_over)
            np.testing.assert_allclose(row[2:6], env.unwrapped.state, rtol=0, atol=1e-9)
        assert len(told["rows"]) == 250 or told["rows"][-1][-1]

    def test_an_agent_forgets_what_was_before_a_fall(self, folder):
        """With torch's actor, told of each start, on all that was to be seen."""
        told = in_node(
            folder,
            f"""{ACTORS}
            import {{ Scene }} from "./scene.js";
            const scene = new Scene(given, actors()), {{ memory }} = scene.carts;
            told = [];
            for (let step = 0; step < 400; step++) {{
              if (!memory.isFallen)
                told.push([memory.steps, scene.blanked, memory.state, memory.driver.action]);
              scene.step();
            }}""",
            {"seed": 4, "rate": 0.9, "burst": 24},
        )
        actor = StatefulActor.load(build_demo.MODELS / "memory.safetensors", device="cpu")
        actor.deterministic = True
        assert sum(steps == 0 for steps, *_ in told) > 2
        for steps, blanked, state, action in told:
            if steps == 0:
                actor.reset()
            reading = np.zeros(4) if blanked else np.array(state)
            assert action == actor.act(reading.astype(np.float32), blanked=blanked)

    def test_memory_outlives_no_memory_in_each_of_20_scenes(self, folder):
        told = in_node(
            folder,
            f"""{ACTORS}
            import {{ DEFAULTS }} from "./settings.js";
            import {{ firstFalls }} from "./scene.js";
            told = Array.from({{ length: 20 }}, (_, seed) =>
              firstFalls({{ ...DEFAULTS, seed }}, actors(), 500));""",
        )
        assert all(ends["memory"] > ends["memoryless"] for ends in told), told
        assert np.median([ends["memory"] for ends in told]) == 500
        assert np.median([ends["memoryless"] for ends in told]) < 100

    def test_the_belief_is_in_the_units_of_the_state(self, folder):
        told = in_node(
            folder,
            f"""{ACTORS}
            import {{ Scene }} from "./scene.js";
            const scene = new Scene(given, actors()), {{ memory }} = scene.carts;
            told = [];
            for (let step = 0; step < 500; step++) {{
              told.push([memory.state, memory.driver.belief]);
              scene.step();
            }}""",
            {**DEFAULT, "seed": 1},
        )
        states, beliefs = np.array(told).swapaxes(0, 1)
        error = np.sqrt(np.square(beliefs - states)[50:].mean(axis=0))
        # It knows far more than one that knows only how such states are spread.
        assert (error < 0.5 * states[50:].std(axis=0)).all(), (error, states[50:].std(axis=0))

    def test_the_same_scene_is_shown_again_and_three_share_its_frames(self, folder):
        told = in_node(
            folder,
            f"""{ACTORS}
            import {{ Scene }} from "./scene.js";
            told = [0, 1].map(() => {{
              const scene = new Scene(given, actors());
              const rows = [];
              for (let step = 0; step < 300; step++) {{
                scene.step();
                rows.push(Object.values(scene.carts).map((cart) => [cart.state, cart.falls]));
              }}
              const flags = ({{ past }}) => past.map((frame) => frame.blanked);
              return {{ rows, frames: Object.values(scene.carts).map(flags) }};
            }});""",
            DEFAULT,
        )
        first, second = told
        assert first == second
        assert first["frames"][0] == first["frames"][1] == first["frames"][2]
        assert set(first["frames"][0]) == {True, False}

    def test_blinding_hides_as_many_frames_as_it_says(self, folder):
        told = in_node(
            folder,
            f"""{ACTORS}
            import {{ Scene }} from "./scene.js";
            const scene = new Scene({{ ...given, rate: 0 }}, actors());
            scene.blind(50);
            told = [];
            for (let step = 0; step < 60; step++) {{
              scene.step();
              told.push(scene.blanked);
            }}""",
            DEFAULT,
        )
        assert told == [True] * 50 + [False] * 10

    def test_a_push_turns_all_poles_that_stand(self, folder):
        told = in_node(
            folder,
            f"""{ACTORS}
            import {{ PUSH, Scene }} from "./scene.js";
            const scene = new Scene(given, actors());
            const speeds = () => Object.values(scene.carts).map((cart) => cart.state[3]);
            told = {{ size: PUSH, sides: [], speeds: [speeds()] }};
            for (let i = 0; i < 2; i++) {{
              told.sides.push(scene.push());
              told.speeds.push(speeds());
            }}""",
            DEFAULT,
        )
        start, pushed, back = np.array(told["speeds"])
        assert told["sides"] == ["right", "left"]
        np.testing.assert_allclose(pushed - start, [told["size"], told["size"], 0])
        np.testing.assert_allclose(back, start)

    def test_your_cart_waits_rolls_on_and_obeys(self, folder):
        told = in_node(
            folder,
            f"""{ACTORS}
            import {{ Scene }} from "./scene.js";
            const scene = new Scene(given, actors()), {{ you }} = scene.carts;
            const steps = (count) => Array.from({{ length: count }}, () => {{
              scene.step();
              return you.driver.action;
            }});
            steps(5);
            told = {{ waited: you.steps }};
            scene.drive(1);
            told.right = steps(3);
            scene.drive(null);
            told.free = steps(4);
            scene.drive(0);
            told.left = steps(3);
            told.steps = you.steps;
            steps(60);
            told.falls = you.falls;
            told.isWaiting = you.isWaiting;""",
            DEFAULT,
        )
        assert told == {
            "waited": 0, "right": [1, 1, 1], "free": [0, 1, 0, 1], "left": [0, 0, 0], "steps": 10,
            "falls": 1, "isWaiting": True,
        }  # fmt: skip
