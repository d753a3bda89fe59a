"""The same as ``python -m thrust_pomdp tune``.

python scripts/tune.py --arm lstm --env TMaze-v0 --trials 60 --out tmaze.yml
"""

import sys

from thrust_pomdp.experiment.commands.tune import main

if __name__ == "__main__":
    sys.exit(main())
