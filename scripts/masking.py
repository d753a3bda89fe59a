"""Is a CartPole without velocities a POMDP? It depends on how its equations are integrated.

python scripts/masking.py

Prints every figure of docs/masking.md and draws its picture.
"""

from __future__ import annotations

import csv
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from numpy.typing import NDArray

from thrust_pomdp.experiment.commands.options import make_parser, positive
from thrust_pomdp.reference import Rung, ladder
from thrust_pomdp.reference.control_laws import Memoryless
from thrust_pomdp.reference.episodes import make_envs

ENV = "MaskedCartPole-v0"
DOCS = Path(__file__).parents[1] / "docs"
INTEGRATORS = ("euler", "semi-implicit euler")
NAMES = {"euler": "explicit Euler (Gymnasium)", "semi-implicit euler": "semi-implicit Euler"}
COLOURS = {"euler": "#D55E00", "semi-implicit euler": "#0072B2"}
# For those who see no colours and for print without.
DASHES = {"euler": "-", "semi-implicit euler": (0, (4, 1.2))}
HATCHES = {"euler": None, "semi-implicit euler": "///"}

#: Where the trained arms' figures are, by integrator (made with scripts/results.py).
TRAINED = {
    "euler": DOCS / "results" / "ids" / "masked" / "summary.csv",
    "semi-implicit euler": DOCS / "results" / "ids" / "masked-semi-implicit" / "summary.csv",
}

CART = CartPoleEnv()
TAU = CART.tau
#: Angular acceleration of the upright pole per unit of cart acceleration, and by a full push.
INERTIA = CART.length * (4 / 3 - CART.masspole / CART.total_mass)
GRAVITY = CART.gravity / INERTIA
PUSH = CART.force_mag / CART.total_mass / INERTIA
FALLEN = CART.theta_threshold_radians

Array = NDArray[np.float64]


# ------------------------------------------------------------------ the loop, linearised


def stiffness(gain: float) -> float:
    """Return k of theta'' = -k theta when a push to the right has probability sigmoid(gain theta).

    The mean push is tanh(gain theta / 2) of a full one; gravity works against it.
    """
    return PUSH * gain / 2 - GRAVITY


def step_matrix(k: float, damping: float, integrator: str) -> Array:
    """Return what a step makes of (theta, theta') for theta'' = -k theta - damping theta'."""
    if integrator == "euler":
        return np.array([[1.0, TAU], [-k * TAU, 1.0 - damping * TAU]])
    velocity = np.array([-k * TAU, 1.0 - damping * TAU])
    return np.stack([np.array([1.0, 0.0]) + TAU * velocity, velocity])


def two_frame_matrix(gain: float, weight: float, integrator: str) -> Array:
    """Return the step of (theta, theta', last theta) under theta + weight (theta - last theta)."""
    pull = GRAVITY - PUSH * gain / 2 * (1 + weight), PUSH * gain / 2 * weight
    velocity = np.array([TAU * pull[0], 1.0, TAU * pull[1]])
    angle = np.array([1.0, TAU, 0.0])
    if integrator != "euler":
        angle = np.array([1.0, 0.0, 0.0]) + TAU * velocity
    return np.stack([angle, velocity, np.array([1.0, 0.0, 0.0])])


def largest(matrix: Array) -> float:
    """Return the largest modulus of an eigenvalue."""
    return float(np.abs(np.linalg.eigvals(matrix)).max())


# ------------------------------------------------------------- the real loop, and its energy


class Flight(NamedTuple):
    """First episodes of many poles; NaN after their ends.

    :param theta: ``[n_steps + 1, n_envs]``, rad
    :param velocity: ``[n_steps + 1, n_envs]``, rad/s
    """

    theta: Array
    velocity: Array


def fly(integrator: str, n_envs: int, n_steps: int) -> Flight:
    """Push always to the side to which the pole leans, and record the true states."""
    law = Memoryless([0.0, 1e9, 0.0])
    law.reset(n_envs)
    kwargs: dict[str, Any] = {"kinematics_integrator": integrator, "expose_state": True}
    with closing(make_envs(ENV, n_envs, **kwargs)) as envs:
        obs, infos = envs.reset(seed=0)
        states, running = [infos["state"].astype(float)], np.ones(n_envs, dtype=bool)
        for _ in range(n_steps):
            obs, _, terminations, truncations, infos = envs.step(law.act(obs))
            running &= ~(terminations | truncations)
            states.append(np.where(running[:, None], infos["state"], np.nan))
    _, _, theta, velocity = np.moveaxis(np.array(states), 2, 0)
    return Flight(theta, velocity)


def energy(flight: Flight) -> Array:
    """Return the loop's energy: of the velocity, and of the angle in the field of push and gravity.

    The push of size PUSH always points back, gravity away: U = PUSH |theta| - GRAVITY theta^2 / 2.
    """
    potential = PUSH * np.abs(flight.theta) - GRAVITY * flight.theta**2 / 2
    return flight.velocity**2 / 2 + potential


def gain_per_step(flight: Flight) -> float:
    """Return the mean change of the energy in a step."""
    return float(np.nanmean(np.diff(energy(flight), axis=0)))


# ----------------------------------------------------------------------------- the page


def print_loop(gain: float) -> None:
    k = stiffness(gain)
    print(f"Proportional law P(right) = sigmoid({gain:g} theta): k = {k:.1f} 1/s^2")
    for integrator in INTEGRATORS:
        matrix = step_matrix(k, 0.0, integrator)
        print(
            f"  {NAMES[integrator]:<28} determinant {np.linalg.det(matrix):.4f}, "
            f"largest |eigenvalue| {largest(matrix):.4f}; "
            f"two frames theta + 2 dtheta {largest(two_frame_matrix(gain, 2.0, integrator)):.4f}"
        )
    print(f"  1 + k tau^2 = {1 + k * TAU**2:.4f}; amplitude doubles in "
          f"{2 * np.log(2) / np.log(1 + k * TAU**2):.0f} steps; damping needed against explicit "
          f"Euler: k tau = {k * TAU:.2f} 1/s\n")  # fmt: skip


def print_energy(flights: dict[str, Flight]) -> None:
    print("Pushing always to the side to which the pole leans, first 30 steps:")
    for integrator, flight in flights.items():
        early = Flight(flight.theta[:31], flight.velocity[:31])
        lives = np.isfinite(flight.theta).sum(axis=0)
        over = f"over {len(flight.theta) - 1}" if np.median(lives) == len(flight.theta) else ""
        print(f"  {NAMES[integrator]:<28} energy gained per step {gain_per_step(early):+.4f} 1/s^2"
              f", median life {over or f'{np.median(lives):.0f}'} steps")  # fmt: skip
    print(f"  of it tau^2 U'^2 / 2 with the push alone: {TAU**2 * PUSH**2 / 2:.4f}; the pole falls "
          f"at an energy of {PUSH * FALLEN - GRAVITY * FALLEN**2 / 2:.2f}\n")  # fmt: skip


def print_ladders(ladders: dict[str, list[Rung]]) -> None:
    print(f"{ENV}, mean episode length with 95 % interval:")
    for integrator, rungs in ladders.items():
        print(f"  {NAMES[integrator]}")
        for rung in rungs:
            low, high = rung.interval
            print(
                f"    {rung.controller:<22} {rung.mean:6.1f}  {low:.1f} to {high:.1f}  {rung.kind}"
            )


def trained() -> dict[str, dict[str, list[float]]]:
    """Return the arms' figures by integrator, one per seed, each arm in its better way to act.

    An LSTM acts by its most likely action, a memoryless policy is better off sampling.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for integrator, path in TRAINED.items():
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        for arm in dict.fromkeys(row["arm"] for row in rows):
            of_mode = [
                [float(row[mode]) for row in rows if row["arm"] == arm]
                for mode in ("sampled", "most_likely")
            ]
            found.setdefault(integrator, {})[arm] = max(of_mode, key=sum)
    return found


def print_trained(results: dict[str, dict[str, list[float]]]) -> None:
    print("\nTrained (each arm by sampled or most likely actions, whichever is better for it):")
    for integrator, arms in results.items():
        for arm, means in arms.items():
            each = ", ".join(f"{mean:.1f}" for mean in means)
            print(f"  {NAMES[integrator]:<28} {arm:<5} mean {np.mean(means):6.1f}  ({each})")


def draw(
    flights: dict[str, Flight],
    ladders: dict[str, list[Rung]],
    results: dict[str, dict[str, list[float]]],
    path: Path,
) -> None:
    from matplotlib.figure import Figure

    picture = Figure(figsize=(13, 4.2), dpi=150, layout="constrained")
    phases, energies, bars = picture.subplots(1, 3, width_ratios=(1, 1, 1.5))
    for integrator, flight in flights.items():
        style = {"color": COLOURS[integrator], "label": NAMES[integrator],
                 "linestyle": DASHES[integrator]}  # fmt: skip
        phases.plot(np.degrees(flight.theta[:101, 0]), flight.velocity[:101, 0], lw=1.1, **style)
        energies.plot(np.nanmedian(energy(flight)[:31], axis=1), lw=2, **style)
    _finish_phases(phases)
    _finish_energies(energies, flights["euler"])
    _draw_bars(bars, ladders, results)
    for axes in (phases, energies, bars):
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = phases.get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    picture.savefig(path)


def _finish_phases(axes: Any) -> None:
    for side in (-1, 1):
        axes.axvline(side * np.degrees(FALLEN), color="0.4", linestyle=":", lw=1.2)
    axes.set_xlabel("pole angle (degrees; dotted: the pole has fallen)")
    axes.set_ylabel("angular velocity (rad/s)")
    axes.set_title("One pole, pushed where it leans: 100 steps", loc="left", fontsize=10)


def _finish_energies(axes: Any, explicit: Flight) -> None:
    steps = np.arange(31)
    start = np.nanmedian(energy(explicit)[0])
    axes.plot(steps, start + steps * TAU**2 * PUSH**2 / 2, color="0.3", linestyle=":", lw=1.4)
    axes.annotate("½τ²U'² a step", (20, start + 20 * TAU**2 * PUSH**2 / 2), (4, -12),
                  fontsize=8, color="0.3", textcoords="offset points")  # fmt: skip
    axes.set_xlabel("step (0.02 s)")
    axes.set_ylabel("energy of the loop (1/s²)")
    axes.set_ylim(bottom=0)
    axes.set_title("Median of 1000 poles", loc="left", fontsize=10)


def _draw_bars(axes: Any, ladders: dict[str, list[Rung]], results: Any) -> None:
    names = ["memoryless,\nbest found", "MLP,\ntrained", "previous\naction", "two\nframes",
             "exact\nmodel", "LSTM,\ntrained"]  # fmt: skip
    for shift, (integrator, rungs) in zip((-0.2, 0.2), ladders.items(), strict=True):
        arms = results[integrator]
        scripted = [rung.mean for rung in rungs[1:]]
        heights = [scripted[0], np.mean(arms["mlp"]), *scripted[1:], np.mean(arms["lstm"])]
        for column, height in enumerate(heights):
            is_trained = column in (1, 5)
            axes.bar(column + shift, height, 0.38, color=COLOURS[integrator], lw=0,
                     hatch=HATCHES[integrator], edgecolor="white",
                     alpha=0.5 if is_trained else 1.0)  # fmt: skip
            axes.annotate(f"{height:.0f}", (column + shift, height), (0, 3), ha="center",
                          va="bottom", fontsize=8, textcoords="offset points")  # fmt: skip
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(0, 540)
    axes.set_ylabel("mean episode length (at most 500)")
    axes.set_title(
        "What memory is worth (hatched: semi-implicit; pale: trained)", loc="left", fontsize=10
    )


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--episodes", type=positive, default=6000,
                        help="episodes of each controller (default: %(default)s)")  # fmt: skip
    parser.add_argument("--plot", type=Path, default=DOCS / "masking.png", metavar="PNG",
                        help="where to draw (default: %(default)s)")  # fmt: skip
    args = parser.parse_args(arguments)
    print_loop(gain=25.0)
    flights = {integrator: fly(integrator, 1000, 100) for integrator in INTEGRATORS}
    print_energy(flights)
    ladders = {
        integrator: ladder(ENV, args.episodes, kinematics_integrator=integrator)
        for integrator in INTEGRATORS
    }
    print_ladders(ladders)
    results = trained()
    print_trained(results)
    draw(flights, ladders, results, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
