"""Models that travel smaller: zstd without loss, 8-bit differences with error feedback, simulated and real."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.torch import load_file

import espalier
from espalier.core import quantise
from espalier.core.errors import ProtocolError
from espalier.core.params import Entry, ParamSpec
from espalier.experiment import Experiment
from espalier.fleet.links.encoding import Encoding, decode, encode
from espalier.fleet.links.framing import LetterPart
from espalier.fleet.local import LocalFleet
from espalier.record.run import Run

# three numbers and a counter
SPEC = ParamSpec((Entry("w", (3,), 0, 3, "float32"), Entry("n", (1,), 3, 4, "int64")), 3, 3, 4)


def test_a_difference_by_hand() -> None:
    # model - base = (1.27, -0.254, 0.006): the scale is 1.27 / 127 = 0.01, the levels are 127, round(-25.4) = -25 and
    # round(0.6) = 1. The receiver sees base + (1.27, -0.25, 0.01); rounding took (0, -0.004, -0.004) away.
    base, model = torch.tensor([1.0, 2.0, 3.0, 7.0]), torch.tensor([2.27, 1.746, 3.006, 9.0])
    coded = quantise.code(model, base, None, SPEC)
    assert len(coded.data) == quantise.coded_bytes(3, 4) == 3 + 4 + 4
    torch.testing.assert_close(coded.model, torch.tensor([2.27, 1.75, 3.01, 9.0]))
    torch.testing.assert_close(coded.error, torch.tensor([0.0, -0.004, -0.004]), atol=1e-6, rtol=0)
    torch.testing.assert_close(quantise.decode(coded.data, base, SPEC), coded.model)
    # the next difference makes up for it: (0, -0.006 - 0.004, 0) is sent whole
    again = quantise.code(base + torch.tensor([0.0, -0.006, 0.004, 0.0]), base, coded.error, SPEC)
    torch.testing.assert_close(again.model[:3], base[:3] + torch.tensor([0.0, -0.01, 0.0]), atol=1e-6, rtol=0)
    with pytest.raises(ProtocolError, match="10 bytes; 11 are expected"):
        quantise.decode(coded.data[:-1], base, SPEC)


@given(arrays.arrays(np.float32, (4, 600), elements=st.floats(-4, 4, width=32)))
def test_nothing_is_lost_over_time(changes: np.ndarray) -> None:  # type: ignore[type-arg]
    # what was sent in all differs from what should have been only by the last rounding: at most half a step
    spec = ParamSpec((Entry("w", (600,), 0, 600, "float32"),), 600, 600, 600)
    base, error = torch.zeros(600), None
    sent = torch.zeros(600)
    for change in changes:
        coded = quantise.code(torch.from_numpy(change), base, error, spec)
        sent, error = sent + coded.model, coded.error
    wanted = torch.from_numpy(changes.sum(0))
    torch.testing.assert_close(sent + error, wanted, atol=1e-4, rtol=1e-5)
    assert float(error.abs().max()) <= 2 * 4 / 127


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zstd_loses_nothing(dtype: torch.dtype) -> None:
    vector = torch.linspace(-1, 1, 1000, dtype=dtype)
    part = encode(vector, "zstd")
    assert torch.equal(decode(part, 1000, dtype), vector)
    with pytest.raises(ProtocolError, match="not of"):
        decode(part, 999, dtype)


def test_a_model_is_of_the_runs_type() -> None:
    # one device's numbers made those of everybody twice as wide, and 1e300 was finite
    for dtype, other in ((torch.float32, torch.float64), (torch.float64, torch.float32)):
        for compress in ("none", "zstd"):
            with pytest.raises(ProtocolError, match="this run's are float"):
                decode(encode(torch.full((10,), 1e30, dtype=dtype), compress), 10, other)


def test_a_model_that_would_unpack_to_gigabytes_is_refused() -> None:
    # a frame that does not say its size, and one that lies
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 24))
    for data in (silent, zstandard.ZstdCompressor().compress(bytes(1 << 24)), b"nonsense"):
        with pytest.raises(ProtocolError, match="compressed model"):
            decode(LetterPart.of(data, Encoding.ZSTD_FLOAT32), 10)


BASE = {"task": {"model": "logistic"}, "fleet": {"devices": 4, "edges": 2}, "stop": {"rounds": 3}}


def real(folder: Path, method: object, **options: str) -> dict[str, int]:
    """Run on a real fleet; return the bytes of models by direction between devices and edges."""
    with LocalFleet(Experiment.build({**BASE, "methods": [method]}), folder, **options) as fleet:
        fleet.start()
        fleet.wait(60)
    rows = Run(folder / "cloud").query(
        "SELECT direction, max(bytes) FROM traffic WHERE kind = 'model' AND tier = 'dev-edge' GROUP BY direction"
    )
    return dict(rows)


def test_eight_bits_on_a_real_fleet_are_the_simulated_ones(tmp_path: Path) -> None:
    method = {"name": "hierfavg", "local": {"kind": "q8"}}
    sent = real(tmp_path / "real", method)
    espalier.simulate(method, BASE, directory=tmp_path / "simulated")
    espalier.simulate("hierfavg", BASE, directory=tmp_path / "whole")
    found, simulated, whole = (
        torch.cat([v.reshape(-1) for v in load_file(tmp_path / f / "models/global.safetensors").values()])
        for f in ("real/cloud", "simulated", "whole")
    )
    # the last digit of a merge may tip a rounding; rounding itself changes a model by more
    assert float((found - simulated).abs().max()) < 1e-4
    assert 0 < float((simulated - whole).abs().max()) < 1e-2
    # 650 numbers: 650 + 4 * 3 bytes instead of 2600
    assert sent["up"] / sent["down"] == pytest.approx(662 / 2600, rel=0.1)


def test_zstd_on_a_real_fleet(tmp_path: Path) -> None:
    real(tmp_path / "real", "hierfavg", compress="zstd")
    espalier.simulate("hierfavg", BASE, directory=tmp_path / "simulated")
    one, other = (load_file(tmp_path / f / "models/global.safetensors") for f in ("real/cloud", "simulated"))
    assert max(float((one[k] - other[k]).abs().max()) for k in other) < 1e-6
