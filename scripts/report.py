"""The same as ``python -m thrust_pomdp report``.

python scripts/report.py results/demo
"""

import sys

from thrust_pomdp.experiment.commands.report import main

if __name__ == "__main__":
    sys.exit(main())
