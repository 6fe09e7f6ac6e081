"""Speeds drawn once per device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kstest, truncnorm

from espalier.core.errors import ConfigError, WorldError
from espalier.world import Shape
from espalier.world.compute import Constant, Rate, Trace, TruncatedNormal, Uniform
from tests.world.compute import seconds_per_batch


def shape(n: int = 20_000, seed: int = 0, batches: int | None = None) -> Shape:
    return Shape(n, 5, seed, None if batches is None else np.full(n, batches))


def test_constant_takes_exactly_its_time() -> None:
    bound = Constant(0.1).bind(shape(3))
    # 5 batches of .1 s, whenever and whichever job.
    assert bound.duration(2, 5, 17.0, 8) == bound.nominal(2, 5, 17.0) == 0.5
    assert seconds_per_batch(bound, 3).tolist() == [0.1, 0.1, 0.1]
    assert bound.at(7) is bound


def test_uniform_and_rate_follow_their_law() -> None:
    assert kstest(Uniform(2, 5).draw(shape()), "uniform", args=(2, 3)).pvalue > 1e-3
    assert kstest(1 / Rate(2, 5).draw(shape()), "uniform", args=(2, 3)).pvalue > 1e-3


def test_whole_rates() -> None:
    rates = 1 / Rate(5, 15, whole=True).draw(shape())
    values, counts = np.unique(rates.round(9), return_counts=True)
    assert values.tolist() == list(range(5, 16))
    assert abs(counts / 20_000 - 1 / 11).max() < 0.01
    with pytest.raises(ConfigError, match="whole number"):
        Rate(5, 15.5, whole=True)


def test_truncated_normal_is_the_papers() -> None:
    # C8: N(63, 40) resampled into [2, 128]. By hand: Φ(-1.525)=.0636, Φ(1.625)=.9479; the middle
    # .50575 is z=.0144, so the median is 63 + .0144·40 = 63.6.
    delays = TruncatedNormal(63, 40, 2, 128).draw(shape())
    assert delays.min() >= 2 and delays.max() <= 128
    assert np.median(delays) == pytest.approx(63.6, abs=1.0)
    assert kstest(delays, truncnorm(-61 / 40, 65 / 40, 63, 40).cdf).pvalue > 1e-3
    # Resampled, not clipped: nobody sits on an end.
    assert not np.isin(delays, (2.0, 128.0)).any()


def test_t_theta_of_the_papers_delays() -> None:
    # C7: with α = 1.5 nobody is ever late. By hand: the quartiles are at Φ = .2847 and .7268, so
    # z = -.569 and .603, 40.2 s and 87.1 s; T_θ = 63.6 + 1.5·46.9 = 133.9, above the largest, 128.
    delays = TruncatedNormal(63, 40, 2, 128).draw(shape())
    q1, q2, q3 = np.percentile(delays, [25, 50, 75])
    assert q2 + 1.5 * (q3 - q1) == pytest.approx(133.9, abs=2.0)


@pytest.mark.parametrize(("per", "share"), [("batch", 1), ("epoch", 5), ("training", 50)])
def test_what_the_delay_covers(per: str, share: int) -> None:
    # 10 epochs of 5 batches: a training's delay is spread over 50 batches (C8).
    delay = TruncatedNormal(63, 40, 2, 128).draw(shape(100))
    model = TruncatedNormal(63, 40, 2, 128, per=per, epochs=10)  # type: ignore[arg-type]
    assert model.draw(shape(100, batches=5)) == pytest.approx(delay / share)


def test_batches_must_be_known() -> None:
    with pytest.raises(WorldError, match=r"Shape\(batches=\.\.\.\)"):
        TruncatedNormal(63, 40, 2, 128, per="epoch").draw(shape(3))


def test_a_device_without_data_divides_by_nothing() -> None:
    bound = TruncatedNormal(63, 40, 2, 128, per="epoch").bind(shape(3, batches=0))
    assert np.isfinite(seconds_per_batch(bound, 3)).all()


def test_a_device_s_speed_does_not_depend_on_the_fleet_s_size() -> None:
    small, large = (Uniform(0, 1).draw(shape(n)) for n in (10, 1000))
    assert (small == large[:10]).all()


def write(folder: Path, text: str) -> Path:
    file = folder / "speeds.csv"
    file.write_text(text)
    return file


def test_a_value_holds_until_the_next(tmp_path: Path) -> None:
    text = "device,time,seconds_per_batch\n1,0,4\n0,10,1\n0,0,2\n"
    bound = Trace(write(tmp_path, text)).bind(Shape(2, 1, 0))
    # Device 0: 2 s per batch until 10, then 1. From t=6: 2 batches until 10, 3 more until 13.
    assert bound.duration(0, 5, 6.0, 0) == 7.0
    assert bound.duration(1, 5, 6.0, 0) == 20.0
    assert bound.nominal(0, 1, 9.99) == 2.0 and bound.nominal(0, 1, 10.0) == 1.0
    assert seconds_per_batch(bound, 2).tolist() == [2.0, 4.0]


def test_before_its_first_time_a_device_has_its_first_value(tmp_path: Path) -> None:
    bound = Trace(write(tmp_path, "device,time,seconds_per_batch\n0,10,3\n0,20,1\n")).bind(Shape(1, 1, 0))
    assert bound.nominal(0, 1, 0.0) == 3.0
    # 18 s until 20 do 6 batches at 3 s each.
    assert bound.duration(0, 7, 2.0, 0) == 19.0


def test_cycle_lets_few_stand_for_many(tmp_path: Path) -> None:
    text = "device,time,seconds_per_batch\n40,0,2\n7,0,1\n"
    bound = Trace(write(tmp_path, text), cycle=True).bind(Shape(5, 1, 0))
    assert seconds_per_batch(bound, 5).tolist() == [1.0, 2.0, 1.0, 2.0, 1.0]
    assert bound.duration(3, 2, 0.0, 0) == 4.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no column 'device'"),
        ("device,time,seconds\n0,0,1\n", "has no column 'seconds_per_batch'"),
        ("device,time,seconds_per_batch\n", "has no rows"),
        ("device,time,seconds_per_batch\n0,0,x\n", "line 2: seconds_per_batch = 'x'"),
        ("device,time,seconds_per_batch\n0,0,1\n0,nan,1\n", "line 3: time = 'nan'"),
        ("device,time,seconds_per_batch\n9,0,1\n", "number of a device, 0 … 1"),
        ("device,time,seconds_per_batch\n0,0,-1\n", "≥ 0"),
        ("device,time,seconds_per_batch\n0,0\n", "the line is too short"),
        ("device,time,seconds_per_batch\n0,0,1\n", "no row for device 1"),
        ("device,time,seconds_per_batch\n0,0,1\n1,0,1\n0,0,2\n", "two rows for time 0"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(WorldError) as error:
        Trace(write(tmp_path, text)).bind(Shape(2, 1, 0))
    assert says in str(error.value) and "speeds.csv" in str(error.value)


def test_no_file_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="cannot be read"):
        Trace(tmp_path / "none.csv").bind(Shape(2, 1, 0))
    binary = tmp_path / "b.csv"
    binary.write_bytes(b"\xff\xfe\x00\x81device")
    with pytest.raises(WorldError, match=r"not a CSV text file|has no column"):
        Trace(binary).bind(Shape(2, 1, 0))
