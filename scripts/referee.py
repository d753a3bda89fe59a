"""What the referee finds in recurrent algorithms: the tables of docs/features/referee.md.

python scripts/referee.py
python scripts/referee.py --faults     # in which it is then tried on planted faults
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import sb3_contrib
import stable_baselines3
import torch as th
from torch import nn

import thrust_pomdp
from thrust_pomdp.conformance import Report, check_recurrent

MakeModel = Callable[..., Any]
SIZE = {"lstm_hidden_size": 64}
SHARED = {"shared_lstm": True, "enable_critic_lstm": False}
SHORT = {"held": "held", "broken": "**broken**", "not observable": "not observable"}


def recurrent(kind: Any, more: dict[str, Any] | None = None, **options: Any) -> MakeModel:
    """Return what makes models of a kind, whose policies have further options."""
    policy_kwargs = {**SIZE, **(more or {})}
    return lambda env, **kwargs: kind(
        "MlpLstmPolicy", env, policy_kwargs=policy_kwargs, device="cpu", **options, **kwargs
    )


def memoryless(env: Any, **kwargs: Any) -> Any:
    return stable_baselines3.PPO("MlpPolicy", env, device="cpu", **kwargs)


ALGORITHMS: dict[str, MakeModel] = {
    "sb3-contrib: RecurrentPPO": recurrent(sb3_contrib.RecurrentPPO),
    "sb3-contrib: one LSTM": recurrent(sb3_contrib.RecurrentPPO, SHARED),
    "ours: RecurrentPPO": recurrent(thrust_pomdp.RecurrentPPO),
    "ours: one LSTM": recurrent(thrust_pomdp.RecurrentPPO, SHARED),
    "ours: carried windows": recurrent(thrust_pomdp.RecurrentPPO, window_state="carry"),
    "ours: GRU": recurrent(thrust_pomdp.RecurrentPPO, {"rnn_class": nn.GRU}),
    "ours: MaskableRecurrentPPO": recurrent(thrust_pomdp.MaskableRecurrentPPO),
    "SB3: PPO, no memory": memoryless,
}


def told_versions() -> str:
    names = ("sb3-contrib", "stable-baselines3", "torch", "gymnasium", "numpy")
    return ", ".join(f"{name} {version(name)}" for name in names)


def table(reports: dict[str, Report]) -> str:
    """Return a row for each law, a column for each algorithm, and what was told below."""
    laws = [finding.law for finding in next(iter(reports.values())).findings]
    lines = [f"| law | {' | '.join(reports)} |", "|---" * (len(reports) + 1) + "|"]
    for law in laws:
        cells = (SHORT[report[law].verdict] for report in reports.values())
        lines.append(f"| {law} | {' | '.join(cells)} |")
    return "\n".join(lines)


def told(reports: dict[str, Report]) -> list[str]:
    return [
        f"{name}, {finding}"
        for name, report in reports.items()
        for finding in report.findings
        if finding.detail
    ]


def try_faults() -> None:
    """Plant each fault in sb3-contrib's algorithm and in ours, and ask the law that names it."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    import planted_faults

    makers = {
        "theirs": ALGORITHMS["sb3-contrib: RecurrentPPO"],
        "ours": ALGORITHMS["ours: carried windows"],
    }
    found = 0
    print("\n| planted | law that names it | in sb3-contrib's | in ours |\n|---|---|---|---|")
    for fault, planted in planted_faults.PLANTED.items():
        verdicts = []
        for library, make in makers.items():
            faulty = planted_faults.planted_in(make, planted, library)
            verdict = check_recurrent(faulty, only=[planted.law])[planted.law].verdict
            verdicts.append("found" if verdict == "broken" else verdict)
        found += verdicts == ["found", "found"]
        print(f"| {fault} | {planted.law} | {' | '.join(verdicts)} |", flush=True)
    print(f"\n{found} of {len(planted_faults.PLANTED)} faults were found in both.")


def main() -> None:
    parser = argparse.ArgumentParser(prog="referee", description=__doc__)
    parser.add_argument("--faults", action="store_true", help="try planted faults too")
    given = parser.parse_args()
    th.set_num_threads(1)
    begun, used = time.perf_counter(), time.process_time()
    reports = {}
    for name, make in ALGORITHMS.items():
        reports[name] = check_recurrent(make)
        print(f"{name}: {time.process_time() - used:.1f} s of CPU time so far", file=sys.stderr)
    wall, cpu = time.perf_counter() - begun, time.process_time() - used
    print(f"{told_versions()}; {wall:.0f} s, of CPU time {cpu:.0f} s\n")
    print(table(reports), *("", *told(reports)), sep="\n")
    if given.faults:
        try_faults()


if __name__ == "__main__":
    main()
