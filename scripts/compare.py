"""The same as ``python -m thrust_pomdp compare``.

python scripts/compare.py --env FlickeringCartPole-v0 --arms lstm mlp --out results/demo
"""

import sys

from thrust_pomdp.experiment.commands.compare import main

if __name__ == "__main__":
    sys.exit(main())
