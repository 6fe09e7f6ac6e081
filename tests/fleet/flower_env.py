"""An environment with the real Flower: it wants older packages than we have, so it does not go into ours.

It sees what our environment has (one torch for both) and has what Flower replaces. The first test that needs it makes
it, or ``python -m tests.fleet.flower_env`` beforehand.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: newer ones want a certificate store that not every package index has
FLOWER = "flwr==1.41.0"


def python() -> Path:
    """Return the environment's interpreter; make the environment if it is not there."""
    folder = Path(sys.prefix) / "flower"
    done, interpreter = folder / "installed", folder / "bin" / "python"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (done.is_file() and done.read_text() == FLOWER):
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            where = ["-c", "import site; print(site.getsitepackages()[0])"]
            own = subprocess.run([interpreter, *where], check=True, capture_output=True, text=True).stdout.strip()
            # all of ours, also those that a .pth file of ours names: such a file is not read from here
            places = [place for place in sys.path if place.endswith("site-packages")]
            (Path(own) / "espalier.pth").write_text("\n".join([*places, str(ROOT), ""]))
            install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
            subprocess.run([interpreter, *install, FLOWER], check=True)
            done.write_text(FLOWER)
    return interpreter


if __name__ == "__main__":
    print(python())
