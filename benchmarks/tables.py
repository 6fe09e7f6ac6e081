"""How the figures kept in benchmarks/measured.json are shown in the documents: one function per kind of table."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

Rows = list[dict[str, Any]]
#: what becomes of a hostile letter
FATES = ("refused at the door", "refused behind the door", "passed over", "taken")
#: methods that are compared on a fleet and simulated
AGREEING = ("hierfavg", "phefl", "csahfl", "easf")
#: of simulated links, in bits per second
LINK_SPEEDS = (1e9, 25e9)
NAMES = {
    "mlp": "MLP", "mlp_easf": "MLP of EASF", "mlp_d2d": "MLP of D2D", "lenet": "LeNet", "d2d_cnn": "CNN of D2D",
    "fedavg_cnn": "FedAvg CNN", "resnet_small": "small ResNet", "resnet8": "ResNet-8", "resnet20": "ResNet-20",
    "mobile": "depthwise blocks", "lstm": "LSTM", "transformer": "Transformer", "lora": "Transformer, LoRA",
    "espalier": "Espalier", "jax": "JAX",
}  # fmt: skip


def table(heads: list[str], rows: list[list[str]], text: int = 1) -> list[str]:
    """Return the lines of a table whose first columns are text."""
    marks = ["---"] * text + ["---:"] * (len(heads) - text)
    return ["| " + " | ".join(cells) + " |" for cells in (heads, marks, *rows)]


def peers(rows: Rows) -> list[str]:
    """Seconds per round of ourselves and of each peer."""
    names = list(dict.fromkeys(name for row in rows for name in row["timings"]))
    lines = []
    for row in rows:
        medians = {n: statistics.median(t["seconds"]) for n, t in row["timings"].items() if t["seconds"]}
        ours = medians["espalier"]
        cells = [
            "–" if n not in medians
            else f"{medians[n]:.3f} s" + ("" if n == "espalier" else f" ({medians[n] / ours:.1f}×)")
            for n in names
        ]  # fmt: skip
        floor = "–" if row["floor"] is None else f"{row['floor']:.1f}×"
        share = f"{row['gflops'] / row['peak_gflops']:.0%}"
        model = NAMES.get(row["model"], row["model"])
        lines.append([model, str(row["batch"]), str(row["clients"]), *cells, share, floor])
    heads = ["model", "batch", "clients", *(NAMES.get(n, n) for n in names), "of a matrix product", "floor (naive)"]
    return table(heads, lines)


def chunks(rows: Rows) -> list[str]:
    """What the kernels gain whole chunks of training."""
    lines = [
        [NAMES.get(r["model"], r["model"]), str(r["batch"]), f"{r['plain_ms']:.2f}", f"{r['native_ms']:.2f}",
         f"{r['ratio']:.2f}"]
        for r in rows
    ]  # fmt: skip
    return table(
        ["model", "batch", "ms per step and client, PyTorch alone", "with the kernels", "times as fast"], lines
    )


def halves(rows: Rows) -> list[str]:
    """What bfloat16 gains."""
    lines = [
        [NAMES.get(r["model"], r["model"]), str(r["batch"]), f"{r['single_ms']:.2f}", f"{r['half_ms']:.2f}",
         f"{r['ratio']:.2f}"]
        for r in rows
    ]  # fmt: skip
    return table(["model", "batch", "ms per step and client, float32", "bfloat16", "times as fast"], lines)


def operations(rows: Rows) -> list[str]:
    """Where the time of a training step goes."""
    parts = [name for name in rows[0] if name not in ("model", "batch", "side", "whole")]
    plain = {r["model"]: r["whole"] for r in rows if r["side"] == "plain loop"}
    lines = [
        [NAMES[r["model"]], str(r["batch"]), r["side"], f"{r['whole']:.1f}", f"{plain[r['model']] / r['whole']:.2f}",
         *(f"{r[part]:.0%}" for part in parts)]
        for r in rows
    ]  # fmt: skip
    heads = ["model", "batch", "", "CPU ms per step and client", "times as fast", *parts]
    return ["| " + " | ".join(cells) + " |" for cells in (heads, ["---", "---:", "---"] + ["---:"] * 7, *lines)]


def layers(rows: Rows) -> list[str]:
    """What each native layer reaches, PyTorch's own in brackets."""

    def rates(row: dict[str, Any]) -> list[str]:
        mine, theirs = row["native"], row["library"]
        return [f"{mine[part]:.0f} ({theirs[part]:.0f})" for part in ("forward", "weights", "inputs")]

    lines = [[r["layer"], str(r["batch"]), *rates(r), f"{r['native']['all'] / r['library']['all']:.1f}"] for r in rows]
    return table(["layer", "batch", "result", "weights", "input", "all three, times as fast"], lines)


def shares(rows: Rows) -> list[str]:
    """Which part of a run's processor time went where."""
    parts = [name for name in rows[0] if name not in ("run", "seconds")]
    lines = [[r["run"], f"{r['seconds']:.1f}", *(f"{r[p] / r['seconds']:.1%}" for p in parts)] for r in rows]
    return table(["run", "CPU seconds", *parts], lines)


def judged(rows: Rows) -> list[str]:
    """Devices' figures by how many rows each is judged on."""
    lines = [
        [r["partition"], "all" if r["rows"] is None else str(r["rows"]), *(f"{figure:.3f}" for figure in r["figures"])]
        for r in rows
    ]
    return table(["partition", "rows", "accuracy of devices", "standard deviation", "worst tenth"], lines)


def lazily(rows: Rows) -> list[str]:
    """What computing late gains."""
    lines = [
        [NAMES[r["model"]], str(r["batch"]), f"{r['eager_s']:.2f} s", f"{r['lazy_s']:.2f} s",
         f"{r['eager_s'] / r['lazy_s']:.1f}×", f"{r['eager_jobs']} / {r['lazy_jobs']}"]
        for r in rows
    ]  # fmt: skip
    return table(["model", "batch", "at once", "lazily", "gain", "jobs at once / lazily"], lines)


def one_fleet(rows: Rows) -> list[str]:
    """The parts of one large fleet's time."""
    (row,) = rows
    lines = [[part, f"{s:.2f}", f"{s / row['wall_s']:.1%}"] for part, s in row["parts"].items()]
    whole = f"{row['wall_s']:.1f} s and {row['peak_gb']:.2f} GB, {row['engine_us_per_event']:.0f} µs per event:"
    return [whole, "", *table(["part", "seconds", "share"], lines)]


def fleets(rows: Rows) -> list[str]:
    """What large fleets cost."""
    lines = [
        [f"{r['devices']:,}", f"{r['setup_s']:.1f} s", f"{r['wall_s']:.1f} s", f"{r['cpu_s']:.1f} s",
         f"{r['parts']['training']:.1f} s", f"{r['engine_s']:.1f} s ({r['engine_share']:.0%})",
         f"{r['engine_us_per_event']:.0f}", f"{r['events']:,}", f"{r['moves']:,}", f"{r['jobs']:,}",
         f"{r['peak_gb']:.2f} GB"]
        for r in rows
    ]  # fmt: skip
    heads = ["devices", "set-up", "wall", "CPU", "training", "engine", "engine µs/event", "events", "moves", "jobs"]
    return table([*heads, "peak memory"], lines, text=0)


def on_ray(rows: Rows) -> list[str]:
    """What Ray costs on one machine."""
    lines = [
        [f"{NAMES.get(r['model'], r['model'])}, {r['batch']}", f"{r['local_seconds']:.3f}", f"{r['ray_seconds']:.3f}",
         f"{r['ratio']:.2f}", f"{r['cpu_ratio']:.2f}", f"{r['kilobytes_back']:.0f} KB", f"{r['load']:.1f}",
         "equal" if r["equal"] else "DIFFER"]
        for r in rows
    ]  # fmt: skip
    heads = ["model, batch", "seconds per round, local", "Ray", "ratio of seconds", "ratio of CPU seconds"]
    return table([*heads, "into the driver per round", "load", "rows"], lines)


def agreement(rows: Rows) -> list[str]:
    """What a fleet of processes gives beside a simulation."""

    def curve(found: list[float | None]) -> str:
        return " ".join("–" if value is None else f"{value:.3f}" for value in found)

    def line(r: dict[str, Any]) -> list[str]:
        name = r["method"] + (" (edges' models)" if r["score"] == "acc_edge" else "")
        parts = "none" if r["parting"] is None else f"{r['parting'][0]}, by {r['parting'][1]:.0e}"
        return [name, f"{r['difference']:.1e}", parts, str(r["behind"]), curve(r["simulated"]), curve(r["real"])]

    marks = ", ".join(map(str, rows[0]["rounds"]))
    heads = ["method", "largest difference of a weight", "round in which losses part", "times behind its script"]
    heads += [f"accuracy at rounds {marks}: simulated", "on a real fleet at its own speed"]
    return table(heads, [line(row) for row in rows])


def standing(rows: Rows) -> list[str]:
    """What became of three runs in a row."""
    lines = [
        [r["run"], r["what"], *(str(r[n]) for n in ("wanted", "merged", "lost", "twice")), f"{r['off']:.0e}",
         f"{r['seconds']:.0f}"]
        for r in rows
    ]  # fmt: skip
    heads = ["run", "what happened", "updates wanted", "merged", "lost", "twice", "off from the exact sum", "seconds"]
    return table(heads, lines, text=2)


def faults(rows: Rows) -> list[str]:
    """What a fleet loses by faults, and how long it takes to notice and to recover."""

    def times(found: list[float]) -> str:
        return f"{statistics.median(found):.2f} s (≤ {max(found):.2f})" if found else "–"

    lines = [
        [r["name"], *(str(r[n]) for n in ("faults", "merged")), str(r["wanted"] - r["merged"]), str(r["doubled"]),
         str(r["dropped"] or "–"), times(r["noticed"]), times(r["back"])]
        for r in rows
    ]  # fmt: skip
    return table(["fault", "times", "updates merged", "lost", "twice", "dropped as late", "noticed", "back"], lines)


def load(rows: Rows) -> list[str]:
    """What fleets of several sizes take."""

    def memory(r: dict[str, Any], kind: str) -> str:
        return ", ".join(f"{r[kind][who]:.0f}" for who in ("cloud", "edge", "device")) + " MB"

    def models(r: dict[str, Any], way: str) -> str:
        real, simulated = (count / 1e6 for count in r["bytes"][way])
        return f"{real:.2f} MB (simulated: {simulated:.2f})"

    trained, echoed = ([r for r in rows if r["echo"] is echo] for echo in (False, True))
    lines = [
        ["seconds of a round, one epoch each (median)", *(f"{r['round']:.2f}" for r in trained)],
        ["the same with devices that hand back what they got: overhead alone", *(f"{r['round']:.2f}" for r in echoed)],
        ["memory of the cloud, of an edge, of a device: PSS", *(memory(r, "pss") for r in trained)],
        ["the same, RSS (a node that is alone on its machine)", *(memory(r, "rss") for r in trained)],
        ["models between devices and edges, each way", *(models(r, "dev-edge up") for r in trained)],
        ["models between edges and cloud, each way", *(models(r, "edge-cloud up") for r in trained)],
    ]
    return table(["", *(f"{r['devices']} devices" for r in trained)], lines)


def side_by_side(rows: Rows) -> list[str]:
    """What many small runs cost beyond themselves."""
    lines = [
        [str(r["runs"]), str(r["jobs"]), f"{r['cpu_s']:.1f}", f"{r['own_s']:.1f}", f"{r['cpu_s'] / r['own_s']:.2f}"]
        for r in rows
    ]
    return table(["runs", "processes", "CPU seconds", "of the runs themselves", "ratio"], lines, text=0)


def started(rows: Rows) -> list[str]:
    """How long Espalier takes to start."""
    lines = [
        [f"`{r['what']}`" if "," not in r["what"] else r["what"], f"{r['wall_s']:.2f}", f"{r['cpu_s']:.2f}",
         "–" if r["goal_s"] is None else str(r["goal_s"])]
        for r in rows
    ]  # fmt: skip
    return table(["", "seconds", "CPU seconds", "goal"], lines)


def into_driver(rows: Rows) -> list[str]:
    """What workers send to the driver: of jobs, in models per edge round; of an evaluation, in bytes."""
    lines = [
        [str(r["devices"]), str(r["edges"]), str(r["workers"]), str(r["devices"] // r["edges"]), f"{r['driver']:.1f}",
         f"{r['joined']:.1f}", f"{r['answered'] / 1e3:.1f} KB"]
        for r in rows
    ]  # fmt: skip
    heads = ["devices", "edges", "workers", "models of an edge round", "parts joined by the driver", "by workers"]
    return table([*heads, "of an evaluation of all models"], lines, text=0)


def placed(rows: Rows) -> list[str]:
    """To how many nodes models go, per edge round."""
    lines = [
        [str(r["devices"]), str(r["edges"]), str(r["nodes"]), f"{r['batches']:.1f}", f"{r['turn']:.1f}",
         f"{r['nearest']:.1f}", f"{r['after']['samples'] / r['before']['samples']:.0%}"]
        for r in rows
    ]  # fmt: skip
    heads = ["devices", "edges", "nodes", "batches of an edge round", "nodes its model goes to: batches in turn"]
    return table([*heads, "to the nearest", "samples of the set that a node gets"], lines, text=0)


def links(rows: Rows) -> list[str]:
    """What simulated links need for the bytes of an edge round, before and after."""
    lines = []
    for r in rows:
        for when in ("before", "after"):
            found = r[when]
            inward, node = found["into the driver"], (found["models"] / r["nodes"], found["samples"] / r["nodes"])
            mine = [f"{count / 1e6:.1f} MB" for count in (inward, *node)]
            seconds = [f"{8 * inward / speed:.3f}" for speed in LINK_SPEEDS]
            seconds += [f"{8 * (found['models'] + found['samples']) / speed:.3f}" for speed in LINK_SPEEDS]
            lines.append([f"{r['devices']} / {r['edges']}", when, *mine, *seconds])
    speeds = [f"{speed / 1e9:g} Gbit/s" for speed in LINK_SPEEDS]
    heads = ["devices / edges", "", "into the driver, per edge round", "models to a node", "samples to a node, once"]
    heads += [f"s into the driver at {speeds[0]}", speeds[1], f"s out of it, the first time, at {speeds[0]}", speeds[1]]
    return table(heads, lines, text=2)


def facts(rows: Rows) -> list[str]:
    """What one ResNet-18 costs."""
    (r,) = rows
    lines = [
        [f"ResNet-18: {r['parameters'] / 1e6:.1f} M parameters",
         f"{r['model_bytes'] / 1e6:.1f} MB, a partial sum {2 * r['model_bytes'] / 1e6:.1f} MB"],
        ["one job: one step with 10 images of 32×32", f"{r['eight jobs'] / 8:.2f} CPU s"],
        ["one image evaluated", f"{r['64 rows evaluated'] / 64 * 1e3:.1f} ms of CPU"],
        ["add a model to a merge / add a partial sum",
         f"{r['add a model'] * 1e3:.0f} / {r['add a partial sum'] * 1e3:.0f} ms of CPU"],
        ["put a model into the object store / get it there",
         f"{r['put a model'] * 1e3:.0f} / {r['get a model'] * 1e3:.1f} ms"],
        ["an empty call", f"{r['empty call'] * 1e3:.1f} ms"],
        ["the ledger, per job: written down / computed",
         f"{r['recipe_bytes'] / 1e3:.2f} KB / {r['job computed'] * 1e6:.0f} µs"],
        ["cutting a wave into batches, per job", f"{r['job cut'] * 1e6:.1f} µs"],
    ]  # fmt: skip
    return table(["", ""], lines, text=2)


def cluster(rows: Rows) -> list[str]:
    """The arithmetic of a million devices on 64 nodes."""
    r = next(row for row in rows if "eight jobs" in row)
    counted = next(row for row in rows if (row.get("devices"), row.get("edges")) == (800, 4))
    near, held = counted["nearest"], counted["nodes"] * counted["after"]["samples"] / counted["before"]["samples"]
    jobs, edges, nodes, workers, link = 10**6, 1000, 64, 64 * 32, 25e9 / 8
    model, images = r["model_bytes"], 10 * 10**6 * 3 * 32 * 32 * 4
    spread = min(nodes, r["batches"] / edges)
    judged, kept = (edges + 1) * 10_000, r["job computed"] + r["job cut"]
    entries: list[tuple[str, str, float]] = [
        ("training", f"10⁶ × {r['eight jobs'] / 8:.2f} s / {workers:,}", jobs * r["eight jobs"] / 8 / workers),
        ("models back, if every one came", f"10⁶ × {model / 1e6:.1f} MB into one link", jobs * model / link),
        ("partial sums to the driver", f"{r['parts']:,} × {2 * model / 1e6:.1f} MB into one link",
         r["parts"] * 2 * model / link),
        ("partial sums to the workers that join them", f"the same over {nodes} links",
         r["parts"] * 2 * model / link / nodes),
        ("workers add them, the driver gets models",
         f"{r['parts']:,} × {r['add a partial sum'] * 1e3:.0f} ms / {workers:,}; {edges:,} × {model / 1e6:.1f} MB",
         r["parts"] * r["add a partial sum"] / workers + edges * model / link),
        ("start models, after the cloud's merge", f"one version to {nodes} nodes", nodes * model / link),
        ("start models between cloud merges, batches in turn",
         f"{edges:,} versions to put, each to {spread:.0f} nodes",
         edges * r["put a model"] + edges * spread * model / link),
        ("the same, batches to the nearest", f"each to {near:.1f} nodes (counted above: 800 devices, 4 edges)",
         edges * r["put a model"] + edges * near * model / link),
        ("samples, once: the whole set to every node", f"{images / 1e9:.0f} GB × {nodes} out of one link",
         images * nodes / link),
        ("the same in shards", f"{images / 1e9:.0f} GB, each to {held:.1f} nodes (counted too)",
         images * held / link),
        ("evaluation of the cloud's and all edges' models on 10,000 rows: in the driver",
         f"{judged:,} × {r['64 rows evaluated'] / 64 * 1e3:.1f} ms on one core", judged * r["64 rows evaluated"] / 64),
        ("the same on workers", f"/ {workers:,}; 4 bytes per model and row come back",
         judged * r["64 rows evaluated"] / 64 / workers + judged * 4 / link),
        ("the driver's own work",
         f"10⁶ × {kept * 1e6:.0f} µs + {r['batches']:,} calls × {r['empty call'] * 1e3:.1f} ms",
         jobs * kept + r["batches"] * r["empty call"]),
    ]  # fmt: skip
    lines = [[what, how, f"{seconds:,.0f}" if seconds >= 10 else f"{seconds:.1f}"] for what, how, seconds in entries]
    return table(["where the time of an edge round goes", "", "seconds"], lines, text=2)


def resnet(rows: Rows) -> list[str]:
    """A ResNet-18 on 10,000 devices, in one process and on two workers."""
    lines = []
    equal = rows[0]["digest"] == rows[1]["digest"]
    for r in rows:
        worker = "–"
        if r["workers"]:
            worker = f"{max(w['peak'] for w in r['workers']):.2f} GB ({max(w['own'] for w in r['workers']):.2f} GB)"
        moved = [f"{r['sent'][what] / 1e6:.0f} MB" for what in ("models", "samples")] if "sent" in r else ["–", "–"]
        back = "–"
        if "sent" in r:
            back = f"{r['received'] / r['model_bytes']:.0f} models, {r['answered'] / 1e3:.0f} KB"
        driver = f"{r['memory']['peak']:.2f} GB ({r['memory']['own']:.2f} GB)"
        lines.append([r["on"], str(r["rounds"]), str(r["jobs"]), driver, worker, *moved, back])
    heads = ["", "rounds", "jobs", "the driver's peak memory (its own pages at the end)", "a worker's"]
    heads += ["models to the node", "samples", "back"]
    told = f"All rows and final models of the first two are {'equal' if equal else 'DIFFERENT'}."
    return [*table(heads, lines), "", told]


def hostile(rows: Rows) -> list[str]:
    """What became of a hostile member's letters."""
    whole = {"method": "all", **{kind: sum(r[kind] for r in rows) for kind in FATES}}
    lines = [
        [r["method"], f"{sum(r[kind] for kind in FATES):,}", *(f"{r[kind]:,}" for kind in FATES)]
        for r in (*rows, whole)
    ]
    return table(["method", "letters", *FATES], lines)


#: block of a page -> how it is rendered, and the parts whose rows it shows
BLOCKS: dict[str, tuple[Callable[[Rows], list[str]], *tuple[str, ...]]] = {
    "peers": (peers, "peers", "peers_cnn", "peers_models"),
    "all_peers": (peers, "all_peers"),
    "chunks": (chunks, "chunks"),
    "half": (halves, "half"),
    "operations": (operations, "operations"),
    "layers": (layers, "layers", "linear"),
    "shares": (shares, "shares"),
    "personal": (shares, "personal"),
    "judged": (judged, "judged"),
    "lazy": (lazily, "lazy"),
    "fleet": (one_fleet, "fleet"),
    "million": (one_fleet, "million"),
    "fleets": (fleets, "thousand", "hundred_thousand", "million", "ten_million"),
    "ray": (on_ray, "ray"),
    "agreement": (agreement, *(f"agreement_{name}" for name in AGREEING)),
    "standing": (standing, "standing"),
    "faults": (faults, "faults"),
    "load": (load, "load"),
    "hostile": (hostile, "hostile"),
    "bytes": (into_driver, "bytes"),
    "places": (placed, "places"),
    "links": (links, "places"),
    "facts": (facts, "facts"),
    "cluster": (cluster, "facts", "places"),
    "resnet": (resnet, "resnet"),
    "start": (started, "start"),
    "many_runs": (side_by_side, "many_runs"),
}
