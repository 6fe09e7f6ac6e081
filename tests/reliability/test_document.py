"""docs/reliability.md: every test it names is there, and its configuration can be built."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from espalier.core import errors
from espalier.core.errors import EspalierError
from espalier.experiment import Experiment

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


def test_every_promise_names_a_test_that_is_there() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"\b(test_[a-z_0-9]+)`", TEXT))
    assert len(named) > 30
    assert {name for name in named if f"def {name}(" not in code} == set()
    for path in re.findall(r"`((?:tests|benchmarks)/[a-z_/]+\.py)", TEXT):
        assert (ROOT / path).is_file(), path


def test_the_configuration_can_be_built() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", TEXT, flags=re.DOTALL)
    experiment = Experiment.build(tomllib.loads(block))
    assert experiment.world.attackers.kind == "sign_flip"
    assert len(experiment.methods) == 2


def test_every_exit_code_is_documented() -> None:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, EspalierError)]
    for kind in kinds:
        assert f"| {kind.exit_code} | " in TEXT
