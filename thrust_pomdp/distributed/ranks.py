"""The processes of one training: who they are, how they meet, and how a missing one is noticed.

``torchrun`` tells each process its number and how many there are, and starts a store of keys that
all of them reach. They exchange numbers through torch's process groups (gloo on CPUs, nccl on
GPUs), and signs of life through the store: a process writes a count between two steps of its
environments and reads those of the others. So a slow environment is not taken for a dead one, and
whose count stands still for ``timeout`` seconds is named in the error that ends all.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch as th
import torch.distributed as dist

from thrust_pomdp.errors import ArgumentError

#: Seconds in which all processes must have come to the first meeting: one may have made its
#: environments long before another.
START_SECONDS = 300.0

#: Seconds between two looks at the others' signs of life.
_LOOK_SECONDS = 0.5

#: Seconds that survivors of a broken connection have to say so.
_SURVIVE_SECONDS = 5.0

#: Set to something for processes that end with the one that started them, as torchrun's do.
WATCHED = "THRUST_POMDP_ENDS_WITH_PARENT"

#: What a sign of life begins with where its process has failed, or lost its connections.
_FAILED, _LOST = "failed: ", "lost: "


class RankError(RuntimeError):
    """A process of the training is gone, hangs, or has failed; the message names it."""


def rank_and_size() -> tuple[int, int]:
    """Return this process's number and how many there are, as ``torchrun`` tells them.

    :raises ValueError: if it tells one of them only
    """
    told = [os.environ.get(name) for name in ("RANK", "WORLD_SIZE")]
    if told == [None, None]:
        return 0, 1
    try:
        rank, size = (int(part) for part in told if part is not None)
    except ValueError:
        raise ArgumentError(
            "RANK and WORLD_SIZE must both be numbers in the environment of a process that "
            f"torchrun starts, got RANK={told[0]!r}, WORLD_SIZE={told[1]!r}"
        ) from None
    watch_launcher()
    return rank, size


class Ranks:
    """All processes of a training, as one of them sees them.

    Alone there is nobody to meet, and everything returns at once.

    :param timeout: seconds after its last sign of life when a process counts as dead
    """

    def __init__(self, timeout: float = 60.0) -> None:
        self.rank, self.size = rank_and_size()
        self.timeout = timeout
        self._group: Any = None
        self._device_group: Any = None
        self._store: Any = None
        self._n_beats = self._n_meetings = 0
        self._next_look = self._last_look = 0.0
        #: Of each process its latest sign of life, and when it was new here.
        self._seen: dict[int, tuple[str, float]] = {}
        #: Bytes that this process has received from others, and seconds it has waited for them.
        self.bytes_received, self.seconds = 0, 0.0

    @property
    def is_first(self) -> bool:
        """Whether this process logs, saves and evaluates."""
        return self.rank == 0

    @property
    def others(self) -> list[int]:
        """Numbers of the other processes."""
        return [rank for rank in range(self.size) if rank != self.rank]

    # ------------------------------------------------------------------------ begin and end

    @contextmanager
    def together(self) -> Iterator[None]:
        """Meet, and tell the others when what is done inside fails.

        :raises RankError: if not all come, or one is gone on the way
        """
        if self.size == 1:
            yield
            return
        self._begin()
        try:
            yield
            self.meet()
        except BaseException as error:
            self._tell(f"{_LOST if isinstance(error, RankError) else _FAILED}{_brief(error)}")
            if self.is_first and isinstance(error, Exception):
                self._wait_for_farewells()
            raise

    def _begin(self) -> None:
        if not dist.is_available():
            raise RankError("this build of torch has no torch.distributed")
        if not dist.is_initialized():
            dist.init_process_group("gloo", timeout=timedelta(seconds=START_SECONDS))
        if self._store is None:
            default = dist.distributed_c10d._get_default_store()
            self._store = dist.PrefixStore(  # type: ignore[attr-defined]
                "thrust_pomdp", default
            )
            self._group = dist.new_group(
                backend="gloo", timeout=timedelta(seconds=max(self.timeout, 1.0))
            )
        self._tell_alive()
        try:
            dist.monitored_barrier(timeout=timedelta(seconds=START_SECONDS), wait_all_ranks=True)
        except RuntimeError as error:
            raise RankError(f"not all processes came to the start of the training: {error}") from (
                error
            )
        now = time.monotonic()
        self._seen, self._last_look = dict.fromkeys(self.others, ("", now)), now

    # ---------------------------------------------------------------------------- exchange

    def meet(self) -> None:
        """Wait for all processes to come here, however long a living one takes.

        :raises RankError: naming who is dead, or has failed
        """
        if self.size == 1:
            return
        began = time.perf_counter()
        number, self._n_meetings = self._n_meetings, self._n_meetings + 1
        try:
            self._store.set(f"meeting {number} of {self.rank}", "here")
            keys = [f"meeting {number} of {rank}" for rank in self.others]
            # The store has a wait() of its own, which writes a warning each time it gives up.
            while not self._store.check(keys):
                self.beat()
                waited = time.perf_counter() - began
                time.sleep(min(max(waited / 20, 1e-4), 0.02))
            if number > 1:  # all have left it, since they came to the next one
                self._store.delete_key(f"meeting {number - 2} of {self.rank}")
        except dist.DistError as error:
            raise self._without_store(error) from error
        self.seconds += time.perf_counter() - began

    def gather(self, tensor: th.Tensor) -> list[th.Tensor]:
        """Return the tensors of all processes, which are of one shape, in their order.

        :raises RankError: naming who is dead, or has failed
        """
        if self.size == 1:
            return [tensor]
        group = self._group
        if tensor.is_cuda:
            group = self._group_of_devices()
        moved = tensor.contiguous() if group is not self._group else tensor.detach().cpu()
        found = [th.empty_like(moved) for _ in range(self.size)]
        self._exchange(lambda: dist.all_gather(found, moved, group=group))
        self.bytes_received += (self.size - 1) * moved.numel() * moved.element_size()
        return [part.to(tensor.device) for part in found]

    def gather_objects(self, thing: Any) -> list[Any]:
        """Return what each process hands in, in their order.

        :raises RankError: naming who is dead, or has failed
        """
        if self.size == 1:
            return [thing]
        self.meet()
        found: list[Any] = [None] * self.size
        self._exchange(lambda: dist.all_gather_object(found, thing, group=self._group))
        return found

    def _exchange(self, exchange: Callable[[], Any]) -> None:
        began = time.perf_counter()
        try:
            exchange()
        except RuntimeError as error:
            raise self._who_is_gone(error) from error
        self.seconds += time.perf_counter() - began

    def _group_of_devices(self) -> Any:
        """Return the group whose processes have a GPU each; where some share one, that of CPUs."""
        if self._device_group is None:
            here = int(os.environ.get("LOCAL_WORLD_SIZE", self.size))
            if dist.is_nccl_available() and th.cuda.device_count() >= here:
                self._device_group = dist.new_group(
                    backend="nccl", timeout=timedelta(seconds=max(self.timeout, 1.0))
                )
            else:
                self._device_group = self._group
        return self._device_group

    # ------------------------------------------------------------------------ signs of life

    def beat(self) -> None:
        """Give a sign of life, and look at the others' now and then.

        :raises RankError: naming who is dead, or has failed
        """
        if self._store is None or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK_SECONDS
        try:
            self._tell_alive()
            signs = self._signs()
        except dist.DistError as error:
            raise self._without_store(error) from error
        now = time.monotonic()
        # While nobody looked, as at a compilation, nobody's sign could be seen to be new.
        unseen = max(now - self._last_look - 2 * _LOOK_SECONDS, 0.0)
        self._last_look = now
        for rank, sign in signs.items():
            if sign.startswith((_FAILED, _LOST)):
                raise RankError(f"rank {rank} has {sign}")
            if self._seen.get(rank, ("", 0.0))[0] != sign:
                self._seen[rank] = sign, now
                continue
            self._seen[rank] = sign, self._seen[rank][1] + unseen
            if now - self._seen[rank][1] > self.timeout:
                raise RankError(
                    f"rank {rank} is dead or hangs: no sign of life for {self.timeout:g} seconds "
                    "(timeout). It gives one between two steps of its environments; if one step or "
                    "one callback takes longer, pass a larger timeout"
                )

    def _tell_alive(self) -> None:
        self._n_beats += 1
        self._store.set(f"sign of {self.rank}", str(self._n_beats))

    def _tell(self, sign: str) -> None:
        if self._store is not None:
            with suppress(RuntimeError):  # the store may be what is gone
                self._store.set(f"sign of {self.rank}", sign)

    def _wait_for_farewells(self) -> None:
        """Let the others find out who is gone, since the store may end with this process."""
        end = time.monotonic() + _SURVIVE_SECONDS
        with suppress(RuntimeError):
            while time.monotonic() < end:
                if all(sign.startswith((_FAILED, _LOST)) for sign in self._signs().values()):
                    return
                time.sleep(0.1)

    def _signs(self) -> dict[int, str]:
        keys = [f"sign of {rank}" for rank in self.others]
        values = self._store.multi_get(keys)
        return {rank: value.decode() for rank, value in zip(self.others, values, strict=True)}

    def _who_is_gone(self, error: RuntimeError) -> RankError:
        """Find out which process broke an exchange: the others say that they lost it."""
        self._tell(f"{_LOST}{_brief(error)}")
        # Those who wait for me learn of it.
        for group in {id(group): group for group in (self._device_group, self._group)}.values():
            if group is not None:
                with suppress(RuntimeError, ValueError, AssertionError):
                    dist.destroy_process_group(group)
        self._group = self._device_group = None
        silent: list[int] = []
        try:
            end = time.monotonic() + _SURVIVE_SECONDS
            while time.monotonic() < end:
                signs = self._signs()
                for rank, sign in signs.items():
                    if sign.startswith(_FAILED):
                        return RankError(f"rank {rank} has {sign}")
                silent = [rank for rank, sign in signs.items() if not sign.startswith(_LOST)]
                if not silent:
                    break
                time.sleep(0.1)
        except RuntimeError as gone:
            return self._without_store(gone)
        if silent:
            names = ", ".join(map(str, silent))
            return RankError(f"rank {names} is dead or hangs, since an exchange failed: {error}")
        return RankError(f"the connections between processes were lost: {error}")

    def _without_store(self, error: BaseException) -> RankError:
        return RankError(
            "the store of keys cannot be reached: the launcher, or rank 0 where it holds the "
            f"store, is dead: {_brief(error)}"
        )


def leave() -> None:
    """End this process's connections, so that it may join others."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def _brief(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    return text[:300]


_watching = False


def watch_launcher() -> None:
    """End this process when the launcher that started it is gone, however that ended."""
    global _watching
    if _watching or os.environ.keys().isdisjoint({"TORCHELASTIC_RUN_ID", WATCHED}):
        return
    _watching = True
    launcher = os.getppid()

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(_LOOK_SECONDS)
        print(
            f"thrust_pomdp: the launcher of rank {os.environ.get('RANK')} is gone, so it ends too",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)

    threading.Thread(target=watch, name="thrust_pomdp: launcher", daemon=True).start()
