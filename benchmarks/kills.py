"""Kill runs of every registered method 200 times, resume them, and count those that end bit-identical.

python benchmarks/kills.py [--kills 200] [--methods hierfavg,fedavg] [--json]
"""

import sys

from espalier.testing.kills import main

if __name__ == "__main__":
    sys.exit(main())
