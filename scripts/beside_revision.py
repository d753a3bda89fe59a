"""Time training beside another revision: ratios of collecting and training, window by window.

    python scripts/beside_revision.py a0168ab
    python scripts/beside_revision.py HEAD~5 --pairs 7

Both revisions train in processes of their own, in turn, on what `make_vec_env` gives of
FlickeringCartPole-v0, one thread each; a ratio is that of two neighbouring processes, each of which
counts by the lower quartile of its windows. The other revision is checked out in a folder that is
removed again.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from thrust_pomdp.experiment.commands.options import make_parser

ROOT = Path(__file__).parents[1]
#: Name -> environments, LSTM units, and whether actor and critic share one.
SETTINGS = {
    "16 envs, H=64, shared": (16, 64, True),
    "16 envs, H=64, separate": (16, 64, False),
    "8 envs, H=256, separate": (8, 256, False),
}
WINDOWS = 20

WORKER = """
import json, sys, time
import torch as th
th.set_num_threads(1)
import thrust_pomdp
from stable_baselines3.common.logger import configure

for name, (n_envs, hidden, shared) in json.loads(sys.argv[1]).items():
    env = thrust_pomdp.make_vec_env("FlickeringCartPole-v0", n_envs, seed=0)
    kwargs = {"lstm_hidden_size": hidden, "net_arch": {"pi": [64], "vf": [64]}}
    if shared:
        kwargs["shared_lstm_critic_gradient"] = True
    model = thrust_pomdp.RecurrentPPO(
        "MlpLstmPolicy", env, n_steps=128, batch_size=512, n_epochs=4, learning_rate=0.0,
        policy_kwargs=kwargs, seed=0, device="cpu",
    )
    model.set_logger(configure(None, []))
    _, callback = model._setup_learn(10**9)
    callback.on_training_start({}, {})
    times = []
    for _ in range(int(sys.argv[2])):
        begin = time.perf_counter()
        model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
        middle = time.perf_counter()
        model.train()
        times.append((middle - begin, time.perf_counter() - middle))
    print(json.dumps([name, times]), flush=True)
"""


def measure(checkout: Path) -> dict[str, tuple[float, float]]:
    """Return milliseconds of collecting and of training one window, by setting."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WORKER, json.dumps(SETTINGS), str(WINDOWS)]
    told = subprocess.run(
        command, env=environment, cwd=checkout, check=True, capture_output=True, text=True
    )
    found = {}
    for line in told.stdout.splitlines():
        name, times = json.loads(line)
        collect, train = (sorted(part)[WINDOWS // 4] for part in zip(*times, strict=True))
        found[name] = (1e3 * collect, 1e3 * train)
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("revision", help="the other one, as git names it")
    parser.add_argument("--pairs", type=int, default=5, help="processes of each")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "other"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "-f", str(other), args.revision], check=True)
        try:
            pairs = [(measure(ROOT), measure(other)) for _ in range(args.pairs)]
        finally:
            subprocess.run([*git, "remove", "--force", str(other)], check=True)
    print(
        f"\n| setting | here / {args.revision}: collecting | training | both |\n|---|---|---|---|"
    )
    for name in SETTINGS:
        ratios = [
            (a[0] / b[0], a[1] / b[1], sum(a) / sum(b))
            for a, b in ((here[name], there[name]) for here, there in pairs)
        ]
        cells = (
            f"{statistics.median(part):.3f} ({min(part):.2f}-{max(part):.2f})"
            for part in zip(*ratios, strict=True)
        )
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
