"""Films of single environments: GIF by Pillow, MP4 by Gymnasium's ``RecordVideo``."""

from __future__ import annotations

import importlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import RecordVideo

Env = gym.Env[Any, Any]

#: Milliseconds: a GIF counts hundredths of a second, and browsers slow down what is shorter.
_SHORTEST_FRAME = 20

#: Colours of a frame; CartPole has seven and the shades of their edges.
_COLOURS = 64


class RecordGif(gym.Wrapper[Any, Any, Any, Any]):
    """Keep a picture of each frame, and write them all to a GIF when the environment is closed.

    :param env: an environment with ``render_mode="rgb_array"``
    :param path: the file
    """

    def __init__(self, env: Env, path: Path) -> None:
        super().__init__(env)
        self.path = path
        self._pictures: list[Any] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode and keep its first picture."""
        outcome = self.env.reset(seed=seed, options=options)
        self._keep_picture()
        return outcome

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step and keep its picture."""
        outcome = self.env.step(action)
        self._keep_picture()
        return outcome

    def _keep_picture(self) -> None:
        from PIL import Image

        # With a palette at once, which takes a third of the memory.
        picture: Any = self.env.render()
        self._pictures.append(Image.fromarray(picture).quantize(_COLOURS))

    def close(self) -> None:
        """Write the file and close the environment."""
        if self._pictures:
            first, *others = self._pictures
            milliseconds = 1000 / self.metadata.get("render_fps", 30)
            duration = max(_SHORTEST_FRAME, round(milliseconds, -1))
            first.save(
                self.path, save_all=True, append_images=others, duration=duration, loop=0,
                optimize=True,
            )  # fmt: skip
            self._pictures = []
        self.env.close()


class RecordMp4(RecordVideo[Any, Any]):
    """Gymnasium's ``RecordVideo`` of everything that happens, in one file of a chosen name.

    :param env: an environment with ``render_mode="rgb_array"``
    :param path: the file
    """

    def __init__(self, env: Env, path: Path) -> None:
        self.path = path
        self._folder = tempfile.TemporaryDirectory()
        # A folder that is there already draws a warning.
        super().__init__(
            env,
            f"{self._folder.name}/film",
            episode_trigger=lambda episode: episode == 0,
            video_length=2**62,  # a length makes it go on over the ends of episodes
        )

    def close(self) -> None:
        """Write the file and close the environment."""
        super().close()  # type: ignore[no-untyped-call]
        for film in Path(self._folder.name).glob("film/*.mp4"):
            shutil.move(film, self.path)
        self._folder.cleanup()


#: File name's ending -> what records it, the module that needs, and the extra that brings it.
_RECORDERS: dict[str, tuple[type[RecordGif | RecordMp4], str, str]] = {
    ".gif": (RecordGif, "PIL", "render"),
    ".mp4": (RecordMp4, "moviepy", "video"),
}


def check_video_path(path: Path) -> Path:
    """Return the path of a film to be written.

    :raises ValueError: if its ending is none we can write
    :raises ImportError: if what writes it is not installed, with the command that installs it
    """
    if path.suffix.lower() not in _RECORDERS:
        raise ValueError(
            f"the file name of a film must end in {' or '.join(_RECORDERS)}, got {str(path)!r}"
        )
    _, module, extra = _RECORDERS[path.suffix.lower()]
    try:
        importlib.import_module(module)
    except ImportError:
        raise ImportError(
            f'{path.suffix} files need {module}: pip install "thrust-pomdp[{extra}]"'
        ) from None
    return path


def record(env: Env, path: Path) -> RecordGif | RecordMp4:
    """Wrap an environment so that a film of it is written when it is closed.

    :param env: an environment with ``render_mode="rgb_array"``
    :param path: the file, ending in ``.gif`` or ``.mp4``
    :raises ValueError: if its ending is another
    :raises ImportError: if what writes it is not installed
    """
    recorder, _, _ = _RECORDERS[check_video_path(path).suffix.lower()]
    path.parent.mkdir(parents=True, exist_ok=True)
    return recorder(env, path)
