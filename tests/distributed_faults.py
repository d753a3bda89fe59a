"""A training in which a process goes wrong: the program that the tests of ``ranks`` start.

``python tests/distributed_faults.py FAULT RANK WINDOW TIMEOUT``: at its first step in that window
the process of that number does what the fault says. Processes are told who they are by the
environment, as torchrun does it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import distributed_cases as cases
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnvWrapper

from thrust_pomdp.distributed.block_training import LearnsInBlocks


class Wrong(VecEnvWrapper):
    """Environments that do what they should not."""

    def __init__(self, venv: Any, fault: str, window: int) -> None:
        super().__init__(venv)
        self.fault, self.left = fault, window * cases.N_STEPS

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        self.left -= 1
        if self.left == -1:
            fail(self.fault)
        if self.fault == "slow":
            time.sleep(0.8)
        return self.venv.step_wait()


def fail(fault: str) -> None:
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hangs":
        time.sleep(1000)
    if fault == "raises":
        raise OSError("the robot is unplugged")


class Evaluates(BaseCallback):
    """Takes long, and acts meanwhile, as evaluations do."""

    def _on_rollout_end(self) -> None:
        for _ in range(30):
            time.sleep(0.4)
            self.model.predict(self.model._last_obs)

    def _on_step(self) -> bool:
        return True


def main(fault: str, rank: int, window: int, timeout: float) -> None:
    me = int(os.environ.get("RANK", "0"))
    env = cases.flickering()
    if me == rank and fault in ("killed", "hangs", "raises", "slow"):
        env = Wrong(env, fault, window)
    else:
        env = Wrong(env, "nothing", window)
    arguments: dict[str, Any] = {"timeout": timeout}
    if me == rank and fault == "other arguments":
        arguments["gamma"] = 0.9
    model = cases.make("MlpLstmPolicy", env, **arguments)
    if me == rank and fault == "other weights":
        with th.no_grad():
            model.policy.action_net.bias += 1
    if me == rank and fault == "killed in training":
        original = LearnsInBlocks._losses

        def losses(self: Any, batch: Any, *args: Any) -> Any:
            if self._first_epoch + batch.epoch == 2 * window:
                fail("killed")
            return original(self, batch, *args)

        LearnsInBlocks._losses = losses
    callback = Evaluates() if fault == "evaluates" else None
    updates = 2 if fault in ("slow", "evaluates") else 10_000
    print(f"rank {me} begins", flush=True)
    model.learn(updates * cases.N_ENVS * cases.N_STEPS, callback=callback)
    print(f"rank {me} is done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
