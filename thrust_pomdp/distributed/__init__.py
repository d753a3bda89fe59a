"""One training on many cores and machines, whose result does not depend on how many there were.

It imports ``checkpoint``, ``ppo`` and what is below. Start reading in ``data_parallel.py``, the
algorithm; ``block_collecting.py`` and ``block_training.py`` say what is done block by block,
``trees.py`` in which order blocks are summed, ``ranks.py`` how processes meet and notice that one
of them is gone, ``envs.py`` which environments a process makes.
"""

from thrust_pomdp.distributed.data_parallel import (
    DataParallelMaskableRecurrentPPO,
    DataParallelRecurrentPPO,
)
from thrust_pomdp.distributed.envs import is_first_rank, make_vec_env_share, share_of
from thrust_pomdp.distributed.ranks import RankError

__all__ = [
    "DataParallelMaskableRecurrentPPO",
    "DataParallelRecurrentPPO",
    "RankError",
    "is_first_rank",
    "make_vec_env_share",
    "share_of",
]
