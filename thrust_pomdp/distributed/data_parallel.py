"""Recurrent PPO as one training of many processes."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Self

import torch as th
from numpy.typing import NDArray
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv

from thrust_pomdp.arguments import check_count, check_positive
from thrust_pomdp.distributed.agreement import check_agreement, check_env_layers
from thrust_pomdp.distributed.block_collecting import CollectsInBlocks
from thrust_pomdp.distributed.block_training import LearnsInBlocks, check_buffer
from thrust_pomdp.distributed.blocks import Blocks
from thrust_pomdp.distributed.checkpoints import ManyProcesses
from thrust_pomdp.distributed.envs import check_share
from thrust_pomdp.distributed.ranks import Ranks, rank_and_size
from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.ppo.code_between_steps import against_model
from thrust_pomdp.ppo.collecting import STEP_METHODS
from thrust_pomdp.ppo.compiled_minibatch import against_minibatch
from thrust_pomdp.ppo.maskable.masks import Masks
from thrust_pomdp.ppo.maskable.ppo import MaskableRecurrentPPO
from thrust_pomdp.ppo.recurrent_ppo import RecurrentPPO
from thrust_pomdp.ppo.resumable_learning import find_taking_up
from thrust_pomdp.ppo.training import TrainsOnWindows
from thrust_pomdp.unmodified_classes import against_methods, remember

#: What a file of a model does not hold.
_OF_PROCESSES = (
    *("_ranks", "_plan", "_gradient", "_episodes", "_late_stop", "_is_stopped", "_first_epoch"),
    *("_present_block", "_masks_of_step"),
)


@remember
class DataParallelRecurrentPPO(CollectsInBlocks, LearnsInBlocks, RecurrentPPO):
    """:class:`~thrust_pomdp.ppo.recurrent_ppo.RecurrentPPO` on the environments of many processes.

    ``torchrun --nproc-per-node 4 train.py`` is one training. Each process (*rank*) steps its share
    of the environments; the weights are the same in all. Environments are divided into
    ``gradient_blocks``: minibatches take equally many sequences from each, a block's gradient is
    computed alone, and blocks are added up in a fixed tree. So the result is a function of the
    blocks, bit for bit, and not of how many processes computed them: one, two and four ranks with
    ``gradient_blocks=4`` end with the same weights. With one block, as in a plain process, this is
    ``RecurrentPPO``, bit for bit.

    ::

        from thrust_pomdp.distributed import DataParallelRecurrentPPO, make_vec_env_share

        options = {"update": "window"}
        env = make_vec_env_share("FlickeringCartPole-v0", n_envs=64, normalize=options)
        model = DataParallelRecurrentPPO("MlpLstmPolicy", env, gradient_blocks=4, seed=0)
        model.learn(1_000_000)
        model.save("model")

    ``make_vec_env_share`` makes a process's share; ``share_of(64)`` gives the numbers of its
    environments to who makes them otherwise. Rank 0 logs, saves and evaluates: callbacks are called
    there alone, and see its share of the environments, while counts, episodes and logs are those of
    all. A callback that stops the training does so at the window's end. The page
    ``docs/distributed.md`` has the commands for one machine, for several, and for Slurm.

    In more than one block each process computes with one thread of torch's, since sums over several
    round otherwise.

    .. warning::
        What a policy or an environment of your own draws from a global generator that is not
        torch's, and what an environment takes from its process (its number, its time), is no
        function of the blocks.

    :param args: those of ``RecurrentPPO``; ``env`` has this process's share of the environments
    :param gradient_blocks: number of blocks, a multiple of the number of ranks that divides the
        number of all environments; default that of the ranks
    :param timeout: seconds after its last sign of life when a rank counts as dead. It gives one
        between two steps of its environments, in ``predict`` and in :meth:`give_sign_of_life`
    :param kwargs: those of ``RecurrentPPO``
    :raises ValueError: naming the argument, the rule and the value
    """

    gradient_blocks: int | None = None
    timeout: float = 60.0
    _ranks: Ranks

    def __init__(
        self,
        *args: Any,
        gradient_blocks: int | None = None,
        timeout: float = 60.0,
        **kwargs: Any,
    ) -> None:
        _take_own_device()
        self.gradient_blocks = gradient_blocks
        self.timeout = timeout
        super().__init__(*args, **kwargs)

    @property
    def _blocks(self) -> Blocks:  # type: ignore[override]
        """How the environments are divided; their number may change when others are set."""
        assert self.gradient_blocks is not None
        return Blocks(self.gradient_blocks, self._ranks.size, self._ranks.rank, self.n_envs)

    def _setup_model(self) -> None:
        self.timeout = check_positive("timeout", self.timeout)
        self._ranks = Ranks(self.timeout)
        if self.gradient_blocks is None:
            self.gradient_blocks = self._ranks.size
        self.gradient_blocks = check_count("gradient_blocks", self.gradient_blocks)
        if not self._ranks.is_first:
            self.verbose, self.tensorboard_log = 0, None
        is_loaded = self._is_loaded
        with nullcontext() if self._blocks.is_one else _one_thread():
            super()._setup_model()
        if not is_loaded:  # a file may be loaded to act on other environments
            self._check_blocks()

    def _check_blocks(self) -> None:
        blocks = self._blocks
        if blocks.is_one:
            return
        blocks.check()
        check_share(self.n_envs, self._ranks.size)
        check_buffer(self.rollout_buffer, self._right_buffer_class())
        if self._ranks.size > 1 and self.seed is None:
            raise ArgumentError(
                "seed must be given where several processes train: each would begin with other "
                "weights"
            )
        if self.envs_per_minibatch is not None and self.envs_per_minibatch % blocks.n_blocks:
            raise ArgumentError(
                "envs_per_minibatch must be a multiple of gradient_blocks="
                f"{blocks.n_blocks}, since minibatches take equally many windows from each block, "
                f"got {self.envs_per_minibatch}"
            )

    @property
    def _checkpoint_processes(self) -> ManyProcesses | None:
        """Who writes checkpoints, and what of them belongs to this process."""
        return None if self._blocks.is_one else ManyProcesses(self._ranks, self._blocks)

    def _n_envs_of_training(self) -> int:
        return self._blocks.envs_of_all

    def _start_noise(self, seed: int, first_env: int = 0) -> None:
        super()._start_noise(seed, self._blocks.first_env)

    def set_random_seed(self, seed: int | None = None) -> None:
        """Seed as ``RecurrentPPO`` does; environments by their numbers among all."""
        is_loaded = self._is_loaded
        super().set_random_seed(seed)
        if seed is not None and not is_loaded and self.env is not None:
            self.env.seed(seed + self._blocks.first_env)

    # --------------------------------------------------------------------------- one training

    def learn(self, *args: Any, **kwargs: Any) -> Self:
        """Train for at least ``total_timesteps`` steps of all environments together.

        The arguments are those of ``RecurrentPPO.learn``; callbacks are called on rank 0 alone.

        :raises ValueError: for arguments that cannot be, or are others in another process
        :raises RankError: if another process is gone, hangs or has failed; the message names it
        """
        if self._blocks.is_one:
            super().learn(*args, **kwargs)
            return self
        given = inspect.signature(super().learn).bind(*args, **kwargs)
        if not self._ranks.is_first:
            given.arguments["callback"] = find_taking_up(given.arguments.get("callback"))
            given.arguments["progress_bar"] = False
        with self._ranks.together(), _one_thread():
            self._check_blocks()
            assert self.env is not None
            check_env_layers(self.env, self._ranks.size)
            told = {name: part for name, part in given.arguments.items() if name != "callback"}
            told.pop("progress_bar", None)
            check_agreement(self, told, self._ranks)
            super().learn(*given.args, **given.kwargs)
            self._take_weights_of_first()
        return self

    def _take_weights_of_first(self) -> None:
        """Leave all ranks with the weights that rank 0's callbacks have left there.

        Such as one that averages them at the end of a training.
        """
        if self._ranks.size == 1:
            return
        weights = {name: part.cpu() for name, part in self.policy.state_dict().items()}
        told = self._ranks.gather_objects(weights if self._ranks.is_first else None)
        if not self._ranks.is_first:
            self.policy.load_state_dict(told[0])

    def give_sign_of_life(self) -> None:
        """Tell the other processes that this one lives.

        For callbacks that take longer than ``timeout`` and neither step the training's environments
        nor ask ``predict`` meanwhile.

        :raises RankError: if another process is gone, hangs or has failed
        """
        self._ranks.beat()

    def predict(self, *args: Any, **kwargs: Any) -> tuple[NDArray[Any], Any]:
        """Act, as ``RecurrentPPO.predict`` does."""
        self._ranks.beat()
        return super().predict(*args, **kwargs)

    # In one block methods do what RecurrentPPO's do: what stands in for those may do so here.

    def _against_unseen_steps(self) -> str | None:
        return (
            self._against_one_block()
            or against_methods(self, STEP_METHODS, DataParallelRecurrentPPO)
            or against_model(self)
        )

    def against_compiled_minibatch(self) -> str | None:
        """Say why minibatches are trained on by torch's operations; None where compiled."""
        return self._against_one_block() or against_minibatch(
            self, TrainsOnWindows, DataParallelRecurrentPPO
        )

    def _against_one_block(self) -> str | None:
        if not self._blocks.is_one:
            return "environments are divided into blocks"
        # Another class may have put its methods between these and RecurrentPPO's.
        if type(self) is not DataParallelRecurrentPPO:
            return f"{type(self).__name__} is derived from DataParallelRecurrentPPO"
        return None

    # ------------------------------------------------------------------------------- rank 0

    def set_logger(self, logger: Logger) -> None:
        """Log there, on rank 0; elsewhere nothing is logged."""
        super().set_logger(logger if self._ranks.is_first else Logger(None, []))

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save as ``RecurrentPPO`` does, on rank 0; elsewhere nothing is done."""
        if self._ranks.is_first:
            super().save(*args, **kwargs)

    def save_safe(self, *args: Any, **kwargs: Any) -> None:
        """Save as ``RecurrentPPO`` does, on rank 0; elsewhere nothing is done."""
        if self._ranks.is_first:
            super().save_safe(*args, **kwargs)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), *_OF_PROCESSES]


class DataParallelMaskableRecurrentPPO(DataParallelRecurrentPPO, MaskableRecurrentPPO):
    """:class:`DataParallelRecurrentPPO` with action masks.

    See :class:`~thrust_pomdp.ppo.maskable.ppo.MaskableRecurrentPPO` for these.

    :param args: those of ``MaskableRecurrentPPO``
    :param kwargs: those of :class:`DataParallelRecurrentPPO`
    """

    #: The masks of the present step, of all environments of this process.
    _masks_of_step: Masks

    def _next_masks(self, env: VecEnv, buffer: Any) -> Masks:
        if self._blocks.is_one:
            return super()._next_masks(env, buffer)
        if self._present_block == 0:  # asked once a step, before the first block acts
            self._masks_of_step = super()._next_masks(env, buffer)
        return self._masks_of_step[self._blocks.rows[self._present_block]]


def _take_own_device() -> None:
    """Let each process of a machine compute on a GPU of its own, where there are so many."""
    if rank_and_size()[1] > 1 and th.cuda.is_available():
        th.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % th.cuda.device_count())


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread: sums over several round otherwise."""
    before = th.get_num_threads()
    th.set_num_threads(1)
    try:
        yield
    finally:
        th.set_num_threads(before)
