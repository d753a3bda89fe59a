"""The same as ``python -m thrust_pomdp sweep``.

python scripts/sweep.py evaluate results/demo --grid flicker_prob:0,0.25,0.5 --out results/sweep
"""

import sys

from thrust_pomdp.experiment.commands.sweep import main

if __name__ == "__main__":
    sys.exit(main())
