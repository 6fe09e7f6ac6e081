"""The built wheel, tried as somebody would who has neither a checkout nor a compiler: ``python -m tests.wheel``.

Everything happens in a folder of its own: a wheel is built, installed into a fresh environment, and takes a table to a
report, with nothing on the path but that environment.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: a table of two shops' days, the method and the time that they get
TABLE = "visitors,shop,day\n" + "".join(
    f"{100 + 37 * i % 60},{'ab'[i % 2]},{'good' if i % 3 else 'slow'}\n" for i in range(60)
)
EXPERIMENT = """
methods = ["hierfavg"]
[task]
dataset = { kind = "csv", path = "shops.csv", label = "day", owner = "shop" }
model_options = { hidden = [8] }
[partition]
kind = "owner"
[fleet]
devices = 2
edges = 1
[stop]
rounds = 2
"""


def build(folder: Path, *, isolated: bool) -> Path:
    """Build the wheel of this checkout into a folder; ``isolated`` fetches what builds it."""
    how = [] if isolated else ["--no-build-isolation"]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *how, "-w", str(folder), str(ROOT)], check=True
    )
    (found,) = folder.glob("espalier_hfl-*.whl")
    return found


def install(wheel: Path, folder: Path) -> Path:
    """Install a wheel and what it needs into a fresh environment; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    constraints = ["-c", str(ROOT / "constraints.txt")]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *constraints, str(wheel)], check=True)
    return python


def smoke(python: Path, wheel: Path, folder: Path, path: str = "") -> None:
    """Take a table to a report in an empty folder, with nothing else on the ``PATH``; the wheel's kernels are used."""
    folder.mkdir()
    (folder / "shops.csv").write_text(TABLE, encoding="utf-8")
    (folder / "shops.toml").write_text(EXPERIMENT, encoding="utf-8")
    native = any("_kernels_" in name for name in zipfile.ZipFile(wheel).namelist())
    kernels = "from espalier.training import native; print(native.kernels() is not None)"
    commands = (
        ["-m", "espalier", "--version"],
        ["-m", "espalier", "run", "shops.toml", "--out", "runs", "--quiet", "--report", "report.html"],
        ["-m", "espalier", "export", "runs", "--format", "torchscript", "-o", "model.pt"],
        ["-c", kernels],
    )
    environment = {"PATH": str(python.parent), "HOME": str(folder), **({"PYTHONPATH": path} if path else {})}
    for command in commands:
        done = subprocess.run([python, *command], cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    assert done.stdout.strip() == str(native), f"kernels in the wheel: {native}; in use: {done.stdout}"
    assert (folder / "report.html").stat().st_size > 100_000 and (folder / "model.pt").is_file()


def main() -> None:
    """Build, install and try the wheel."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = build(folder, isolated=True)
        smoke(install(wheel, folder / "environment"), wheel, folder / "empty")
        print(f"{wheel.name}: installed in a fresh environment, from a table to a report without a compiler")


if __name__ == "__main__":
    main()
