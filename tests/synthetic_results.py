"""Results of comparisons that never ran, as the runner would leave them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from thrust_pomdp.experiment.report import Contest, Run, Verdict, contests, decide

#: Arm -> where it ends on FlickeringCartPole-v0, and how much its runs differ.
SEVEN_ARMS = {
    "lstm": (480.0, 12.0),
    "lstm-prev-action": (490.0, 8.0),
    "mlp": (165.0, 12.0),
    "mlp-prev-action": (430.0, 30.0),
    "frame-stack": (300.0, 40.0),
    "sb3-contrib": (440.0, 35.0),
    "my_research_package.contestants:make_transformer_with_a_long_name": (380.0, 90.0),
}
TWO_ARMS = {arm: SEVEN_ARMS[arm] for arm in ("lstm", "mlp")}

#: No ladder; a reward threshold of 475; neither.
NO_LADDER, NOTHING_KNOWN = "CartPole-v1", "Pendulum-v1"

PROVENANCE = {
    "versions": {"thrust_pomdp": "0.1.0", "torch": "2.13.0+cpu", "gymnasium": "1.4.0"},
    "machine": {"system": "Linux 6.1 x86_64", "processor": "A processor", "cores": 2},
    "revision": "463cfb3d0f0c9a3b2f1e4a5b6c7d8e9f00112233",
    "command": "scripts/compare.py --env FlickeringCartPole-v0 --arms lstm mlp --seeds 10 --out x",
}


def result(
    arm: str = "lstm",
    seed: int = 0,
    score: float = 480.0,
    env_id: str = "FlickeringCartPole-v0",
    env_kwargs: Mapping[str, Any] | None = None,
    start: float = 22.0,
    stochastic_share: float = 0.97,
    extras: bool = True,
    n_episodes: tuple[int, int] = (100, 1000),
) -> dict[str, Any]:
    """The fields of a result; the mean of its deterministic episodes is ``score``."""
    rng = np.random.default_rng([seed, sum(map(ord, arm))])
    timesteps = np.arange(1, 99) * 2048
    shape = 1 / (1 + np.exp(-(timesteps / 200_352 - rng.normal(0.4, 0.05)) * 12))
    means = start + (score - start) * shape + 0.02 * (score - start) * rng.normal(size=98)
    noise = abs(score - start) * 0.2 * rng.normal(size=n_episodes[0])
    drawn = start + (score - start) * stochastic_share
    values = {
        "spec": {
            "arm": arm, "env_id": env_id, "seed": seed, "env_kwargs": dict(env_kwargs or {}),
            "n_timesteps": None, "deterministic_episodes": n_episodes[0],
            "stochastic_episodes": n_episodes[1],
        },
        "final": float(means[-1]),
        "best": float(means.max()),
        "deterministic": (score + (noise - noise.mean())).tolist(),
        "stochastic": rng.normal(drawn, 5, n_episodes[1]).tolist(),
        "timesteps": 200_704,
        "seconds": float(rng.normal(20 if "lstm" in arm else 12, 0.5)),
        "curve": [[int(at), float(mean)] for at, mean in zip(timesteps, means, strict=True)],
    }  # fmt: skip
    if extras:
        values |= {
            "evaluations": [
                [int(at), float(at / 10_000), float(mean), float(0.9 * mean)]
                for at, mean in zip(timesteps[::10], means[::10], strict=True)
            ],
            "recipe": {
                "n_timesteps": 200_000, "n_envs": 8, "learning_rate": "lin_3e-3",
                "policy_kwargs": {"lstm_hidden_size": 128, "net_arch": []},
                **({"n_steps": 128} if "lstm" in arm else {"n_steps": 256, "batch_size": 256}),
            },
            "provenance": PROVENANCE,
        }  # fmt: skip
    return values


def scored(scores: Mapping[str, Sequence[float]], **kwargs: Any) -> list[dict[str, Any]]:
    """Results with these deterministic scores, the runs of each arm numbered from 0."""
    return [
        result(arm, seed, score, **kwargs)
        for arm, of_arm in scores.items()
        for seed, score in enumerate(of_arm)
    ]


def drawn(
    arms: Mapping[str, tuple[float, float]], n_seeds: int, seed: int = 0, **kwargs: Any
) -> list[dict[str, Any]]:
    """Results with normally distributed scores of at most 500."""
    rng = np.random.default_rng(seed)
    scores = {
        arm: np.minimum(rng.normal(centre, spread, n_seeds), 500.0).tolist()
        for arm, (centre, spread) in arms.items()
    }
    return scored(scores, **kwargs)


def contest(results, **kwargs) -> Contest:
    (found,) = contests([Run.from_mapping(values) for values in results], **kwargs)
    return found


def around(centre: float, n_runs: int = 10, spread: float = 2.0) -> list[float]:
    """Scores that lie evenly about a centre, all different."""
    return (centre + spread * np.linspace(-1, 1, n_runs)).tolist()


def verdict(scores, margin=None, solved=None, memory=None, **kwargs) -> Verdict:
    return decide(contest(scored(scores, **kwargs), memory=memory), margin, solved)


def write(folder: Path, results: Sequence[Mapping[str, Any]]) -> Path:
    """Write results as the runner does."""
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    for values in results:
        spec = values["spec"]
        name = f"{spec['arm'].replace(':', '-')}-seed{spec['seed']}"
        (folder / "runs" / f"{name}.json").write_text(json.dumps(values))
    return folder


def write_failure(folder: Path, name: str, message: str) -> None:
    """Write what a failed run leaves."""
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    text = f"Traceback (most recent call last):\n  File ...\n{message}\n"
    (folder / "runs" / f"{name}.error.txt").write_text(text)
