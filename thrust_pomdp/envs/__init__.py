"""The environments: physics, the blanking process, native vector twins, registration, pictures.

It imports the ground floor, NumPy and Gymnasium only; workers that step environments pay for no
torch. Start reading in ``flicker.py``, where a blank frame is decided, then ``cartpole.py``; a new
environment is a file here, a row in ``registration.py`` and a native twin if it has one.
"""

from thrust_pomdp.envs.cartpole import FlickeringCartPoleEnv, MaskedCartPoleEnv
from thrust_pomdp.envs.flicker import FlickerLaw, FlickerProcess
from thrust_pomdp.envs.popgym_cartpole import NoisyPositionOnlyCartPoleEnv, PositionOnlyCartPoleEnv
from thrust_pomdp.envs.repeat_previous import RepeatPreviousEnv
from thrust_pomdp.envs.tmaze import ActiveTMazeEnv, TMazeEnv

__all__ = [
    "ActiveTMazeEnv",
    "FlickerLaw",
    "FlickerProcess",
    "FlickeringCartPoleEnv",
    "MaskedCartPoleEnv",
    "NoisyPositionOnlyCartPoleEnv",
    "PositionOnlyCartPoleEnv",
    "RepeatPreviousEnv",
    "TMazeEnv",
]
