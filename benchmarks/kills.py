"""Kill runs of every registered method 200 times, resume them, and count those that end bit-identical.

python benchmarks/kills.py [--kills 200] [--methods hierfavg,fedavg] [--json]
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.reliability.kills import main

if __name__ == "__main__":
    sys.exit(main())
