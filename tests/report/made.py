"""Run directories made up for tests and benchmarks: written through the recorder, as a simulation would write them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from espalier.record.database import Recorder


@dataclass(frozen=True)
class Made:
    """What is made up: a two-level tree of ``devices`` at ``edges``, one evaluation per round."""

    label: str = "HierFAVG"
    seed: int = 0
    devices: int = 20
    edges: int = 4
    rounds: int = 10
    classes: int = 10
    skill: float = 0.8
    passes: int = 1
    moving: float = 0.1
    clusters: int = 0
    churn: bool = False
    notes: bool = False
    similarity: bool = False
    reconstruction: str = ""
    state: str = "finished"
    target: float | None = 0.6
    name: str = "made up"
    stop: int | None = None
    flat: bool = False
    lr: float = 0.05
    batch_size: int = 10
    stalled: str = ""
    planned: tuple[str, ...] = ()
    told: dict[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """The resolved configuration."""
        return {
            "name": self.name,
            "seeds": [self.seed],
            "methods": [{"name": "hierfavg", "label": self.label, "kappa2": 3}],
            "task": {"dataset": "digits", "model": "mlp", "target": self.target, "score": "acc_device"},
            "partition": {"kind": "two_level", "edge_fraction": 0.5},
            "fleet": {"devices": self.devices, "edges": self.edges, "tiers": [], "fraction": 1.0},
            "training": {"batch_size": self.batch_size, "updates": 5, "lr": self.lr},
            "world": {"compute": {"kind": "truncated_normal"}, "links": {"kind": "uniform", "bandwidth": float("inf")}},
            "stop": {"rounds": self.stop or self.rounds},
            "evaluate": {"every": 1},
            "record": {"spans": True},
        }


def write_run(directory: Path, made: Made | None = None, **changes: Any) -> Path:
    """Write a made-up run into a directory and return it."""
    made = replace(made or Made(), **changes)
    directory.mkdir(parents=True, exist_ok=True)
    about = {"versions": {"espalier": "0.1.0", "torch": "2.13"}, "command": "espalier run made-up.toml"}
    plain = {**made.plain(), "about": about}
    plain["task"] = {k: v for k, v in plain["task"].items() if v is not None}
    (directory / "run.toml").write_text(tomli_w.dumps(plain), encoding="utf-8")
    recorder = Recorder(directory / "run.sqlite")
    describe(recorder, made)
    evaluate(recorder, made, 0, 0.0)
    time = 0.0
    for number in range(1, made.rounds + 1):
        time = play_round(recorder, made, number, time)
    for key, value in made.told.items():
        recorder.meta(key, value)
    recorder.meta("status", {"state": made.state, "pid": 1, **({"stalled": made.stalled} if made.stalled else {})})
    recorder.close()
    return directory


def describe(recorder: Recorder, made: Made) -> None:
    """Write what is known before the first round."""
    rng = np.random.default_rng(made.seed)
    n, cloud = made.devices, made.devices + made.edges
    for key, value in {
        "experiment": made.plain(), "label": made.label, "planned": made.planned, "method": "hierfavg",
        "reconstruction": made.reconstruction, "seed": made.seed, "status": {"state": "running", "pid": 1},
        "fleet": {"devices": n, "edges": made.edges, "cloud": cloud},
    }.items():  # fmt: skip
        recorder.meta(key, value)
    weights = rng.dirichlet(np.full(made.classes, 0.3), n)
    histograms = np.array([rng.multinomial(60, w) for w in weights], dtype="<i4")
    rows = [(d, d * made.edges // n, int(h.sum()), h.tobytes()) for d, h in enumerate(histograms)]
    recorder.devices(rows)
    if not made.flat:
        for edge in range(made.edges):
            recorder.move(0.0, n + edge, cloud, "")
    recorder.commit()


def play_round(recorder: Recorder, made: Made, number: int, time: float) -> float:
    """Write one round that begins at a time; return when it ends. All draws come from the seed and the round."""
    rng = np.random.default_rng((made.seed, number))
    n, cloud = made.devices, made.devices + made.edges
    home = n + np.arange(n) * made.edges // n
    if number > 1 and made.moving and not made.flat:
        for device in np.flatnonzero(rng.random(n) < made.moving).tolist():
            recorder.move(time, device, n + int(rng.integers(made.edges)), "")
    if made.clusters and number in (2, made.rounds // 2 + 2):
        for device in range(n):
            recorder.move(time, device, int(home[device]), f"c{(device + number) % made.clusters}")
    if made.churn:
        churn(recorder, number, time, rng, n)
    end = time
    for _ in range(made.passes):
        seconds = rng.uniform(2.0, 40.0, n)
        travel = rng.uniform(0.5, 3.0, (2, n))
        for device in range(n):
            edge = cloud if made.flat else int(home[device])
            began = time + travel[0, device]
            ended = began + seconds[device]
            recorder.span(edge, "send", time, began, device)
            recorder.span(device, "train", began, ended)
            recorder.span(device, "send", ended, ended + travel[1, device], edge)
        time = float(time + (travel.sum(0) + seconds).max())
        end = time
    if made.notes:
        values = {str(n + e): e / 10 + 1 / number for e in range(3)}
        recorder.event(end, "alpha", n, {"round": number, "values": values})
        recorder.event(end, "dropped", n, {"node": n, "child": number % n, "why": "late", "round": number})
    if made.similarity and number in (2, made.rounds):
        x = rng.normal(size=(n, 3))
        recorder.event(end, "similarity", cloud, {"matrix": np.round(x @ x.T, 4), "devices": list(range(n))})
    evaluate(recorder, made, number, end)
    return end


def churn(recorder: Recorder, number: int, time: float, rng: np.random.Generator, n: int) -> None:
    """Let device ``number`` leave and the one before it come back."""
    gone, back = number % n, (number - 1) % n
    if number > 1:
        recorder.event(time, "came", back, {})
        recorder.move(time, back, n, "")
    recorder.event(time, "gone", gone, {"silent": False})
    recorder.move(time, gone, None, "")


def evaluate(recorder: Recorder, made: Made, number: int, time: float) -> None:
    """Write one evaluation."""
    rng = np.random.default_rng((made.seed, number, 7))
    level = made.skill * (1 - np.exp(-number / 4)) + 0.1
    device = np.clip(level + rng.normal(0, 0.12, made.devices), 0, 1)
    edge = np.clip(level + rng.normal(0, 0.05, made.edges), 0, 1)
    for scope, values in (("device", device), ("edge", edge)):
        for name, of in (("acc", values), ("loss", 2.3 * (1 - values))):
            recorder.array(time, number, f"{name}_{scope}", of)
            recorder.metric(time, number, f"{name}_{scope}", float(of.mean()))
            recorder.metric(time, number, f"{name}_{scope}_std", float(of.std()))
            tail = np.sort(of) if name == "acc" else np.sort(of)[::-1]
            recorder.metric(time, number, f"{name}_{scope}_worst", float(tail[: max(1, len(of) // 10)].mean()))
    recorder.metric(time, number, "acc_global", float(level))
    recorder.metric(time, number, "loss_global", float(2.3 * (1 - level)))
    if number:
        for tier, size in (("dev-edge", 20_000 * made.devices), ("edge-cloud", 20_000 * made.edges)):
            for direction in ("up", "down"):
                recorder.traffic(time, number, tier, direction, "model", size * number)
    recorder.commit()
