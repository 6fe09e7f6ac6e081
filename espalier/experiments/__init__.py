"""The experiments that come with the package, a TOML file each."""

from __future__ import annotations

from pathlib import Path


def bundled() -> dict[str, Path]:
    """Return the experiments that come with the package, by name."""
    return {p.stem: p for p in sorted(Path(__file__).parent.glob("*.toml"))}
