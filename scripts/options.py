"""Options the scripts share are those of the commands."""

from thrust_pomdp.experiment.commands.options import add_env_options, positive
from thrust_pomdp.experiment.commands.options import not_negative as seed

__all__ = ["add_env_options", "positive", "seed"]
