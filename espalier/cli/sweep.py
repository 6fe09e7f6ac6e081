"""``espalier sweep``: try settings, judge them on held-out training data, and say which is best.

Every setting is an experiment of its own in a folder named after it, so a sweep that is started again goes on. Nothing
here sees the test set: a fifth of the training data is held out and takes its place (``task.judged_on``).
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from espalier.cli.plugins import PLUGINS
from espalier.core.errors import ConfigError

if TYPE_CHECKING:
    from espalier.cli.pool import RunRequest, RunStatus
    from espalier.experiment import Experiment

#: one setting: what is set, as in ``--set``
Setting = Mapping[str, str]


@dataclass(frozen=True)
class Sweep:
    """Runs settings of one experiment file below one folder."""

    file: str
    changes: tuple[str, ...]
    out: Path
    jobs: int
    data_dir: Path | None
    plugins: tuple[str, ...]
    tell: Callable[[str], None]

    def experiment(self, setting: Setting) -> Experiment:
        """Return the experiment of a setting, judged on held-out training data; its methods are labelled by it."""
        from espalier.experiment import read

        told = [f"{k}={v}" for k, v in setting.items()]
        found = read(self.file, [*self.changes, *told, 'task.judged_on="validation"'])
        methods = tuple(replace(e, label=f"{e.label}, {short(setting)}") for e in found.methods)
        return replace(found, methods=methods)

    def run(self, settings: Sequence[Setting]) -> list[dict[str, float]]:
        """Run settings side by side, going on where they were; return each one's mean score by method.

        Raises:
            SystemExit: It was stopped; everything is saved.
        """
        from espalier.cli.plan import prepare
        from espalier.cli.pool import DONE, run_all, stopped
        from espalier.record.run import slug

        experiments = [self.experiment(s) for s in settings]
        planned = tuple(e.label for found in experiments for e in found.methods)
        todo: list[RunRequest] = []
        for setting, experiment in zip(settings, experiments, strict=True):
            whole = replace(experiment, planned=planned)
            todo += prepare(whole, self.out / slug(short(setting)), self.data_dir, 1, go_on=True)

        def told(news: RunStatus) -> None:
            if news.final:
                self.tell(f"{todo[news.number].title}: {news.text or news.state}")

        todo = [replace(request, plugins=self.plugins) for request in todo]
        ends = run_all(todo, self.jobs, told) if todo else []
        if said := stopped(ends):
            self.tell(f"{said} The same command goes on.")
            sys.exit(130)
        for request, end in zip(todo, ends, strict=True):
            if end.state not in DONE:
                self.tell(f"{request.title}: {end.text}")
        return [self.scores(e, s) for e, s in zip(experiments, settings, strict=True)]

    def scores(self, experiment: Experiment, setting: Setting) -> dict[str, float]:
        """Return a setting's mean score over seeds, by method; those that did not end well are left out."""
        from espalier.record.run import Run, slug

        name, found = experiment.task.score, {}
        for entry in experiment.methods:
            folder = self.out / slug(short(setting)) / slug(entry.label)
            runs = [Run(p.parent) for p in sorted(folder.glob("*/run.sqlite"))]
            last = [float(r.frame()[name].iloc[-1]) for r in runs if name in r.frame() and "diverged" not in r.status]
            if len(last) == len(experiment.seeds):
                found[entry.label.removesuffix(f", {short(setting)}")] = sum(last) / len(last)
        return found


def short(setting: Setting) -> str:
    """Name a setting: the keys without their tables."""
    return " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in setting.items())


def grid_of(options: Sequence[str]) -> dict[str, list[str]]:
    """Read ``key=value,value`` of every ``--grid``."""
    found: dict[str, list[str]] = {}
    for option in options:
        key, sign, values = option.partition("=")
        listed = [v.strip() for v in values.split(",") if v.strip()]
        if not sign or not key.strip() or not listed:
            raise ConfigError(f"--grid {option!r}: must be key=value,value, such as training.lr=0.01,0.1.")
        found[key.strip()] = listed
    return found


def ranges_of(options: Sequence[str]) -> dict[str, tuple[float, float, bool]]:
    """Read ``key=low..high`` (with ``:log``) of every ``--range``."""
    found = {}
    for option in options:
        key, _, values = option.partition("=")
        low, dots, high = values.removesuffix(":log").partition("..")
        try:
            ends = float(low), float(high)
        except ValueError:
            ends = (0.0, 0.0)
        log = values.endswith(":log")
        if not dots or not ends[0] < ends[1] or (log and ends[0] <= 0):
            raise ConfigError(f"--range {option!r}: must be key=low..high, such as training.lr=0.001..1:log.")
        found[key.strip()] = (*ends, log)
    return found


def _search(sweep: Sweep, grid: Mapping[str, list[str]], ranges: Mapping[str, Any], trials: int) -> list[Any]:
    """Let Optuna choose settings; return (setting, scores) of all trials of the study in the folder."""
    try:
        import optuna
    except ImportError as error:
        raise ConfigError("--search optuna needs it installed: pip install 'espalier-hfl[sweep]'.") from error
    from espalier.record.measures import lower_is_better

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sweep.out.mkdir(parents=True, exist_ok=True)
    worst = lower_is_better(sweep.experiment({}).task.score)
    study = optuna.create_study(
        study_name="sweep", storage=f"sqlite:///{sweep.out / 'optuna.db'}", load_if_exists=True,
        direction="minimize" if worst else "maximize",
    )  # fmt: skip
    # a study that goes on must not draw again what it drew first
    study.sampler = optuna.samplers.TPESampler(seed=len(study.get_trials(deepcopy=False)))
    space: dict[str, Any] = {k: optuna.distributions.CategoricalDistribution(v) for k, v in grid.items()}
    space |= {k: optuna.distributions.FloatDistribution(a, b, log=log) for k, (a, b, log) in ranges.items()}
    for begun in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):  # when a sweep was killed: they go on
        study.tell(begun.number, state=optuna.trial.TrialState.FAIL)
        study.enqueue_trial(begun.params)
    found: list[Any] = []
    while len(study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))) < trials:
        asked = [study.ask(space) for _ in range(max(1, min(sweep.jobs, trials)))]
        settings = [_told(t.params) for t in asked]
        for trial, scores in zip(asked, sweep.run(settings), strict=True):
            if scores:
                study.tell(trial, sum(scores.values()) / len(scores))
            else:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
        if not any(t.value is not None for t in study.get_trials(deepcopy=False)):
            raise ConfigError("No trial gave a score: see what the runs say.")
    for ended in study.get_trials(states=(optuna.trial.TrialState.COMPLETE,)):
        setting = _told(ended.params)
        found.append((setting, sweep.scores(sweep.experiment(setting), setting)))
    return found


def _told(params: Mapping[str, Any]) -> Setting:
    """Return what Optuna drew as people write it: what is tried is what is shown."""
    return {key: f"{value:.4g}" if isinstance(value, float) else str(value) for key, value in params.items()}


@click.command()
@click.argument("experiment")
@click.option(
    "--grid", multiple=True, metavar="KEY=V,V", help="Values to try, such as training.lr=0.01,0.1 (repeatable)."
)
@click.option("--range", "ranges", multiple=True, metavar="KEY=A..B[:log]", help="A range to search with Optuna.")
@click.option("--search", type=click.Choice(["grid", "optuna"]), default="grid", show_default=True)
@click.option("--trials", type=click.IntRange(1), default=20, show_default=True, help="Settings that Optuna tries.")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a setting of all.")
@click.option("--seed", "-s", "seeds", multiple=True, type=int, help="Judge by these seeds (repeatable).")
@click.option("--out", "-o", type=click.Path(path_type=Path), required=True, help="Where the runs are kept.")
@click.option("--jobs", "-j", type=click.IntRange(1), default=1, show_default=True, help="Runs side by side.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where dataset files are looked for first.")
@PLUGINS
@click.option("--quiet", "-q", is_flag=True, help="Print only the table.")
def sweep(
    experiment: str,
    grid: tuple[str, ...],
    ranges: tuple[str, ...],
    search: str,
    trials: int,
    changes: tuple[str, ...],
    seeds: tuple[int, ...],
    out: Path,
    jobs: int,
    data_dir: Path | None,
    plugins: tuple[str, ...],
    quiet: bool,
) -> None:
    """Try settings of EXPERIMENT on held-out training data and say which is best; again, to go on."""
    values, spaces = grid_of(grid), ranges_of(ranges)
    if not values and not spaces:
        raise ConfigError("Nothing to try: give --grid training.lr=0.01,0.1, or --range with --search optuna.")
    if spaces and search == "grid":
        raise ConfigError("--range is for --search optuna; a grid needs values (--grid).")
    changes += (f"seeds={list(seeds)}",) if seeds else ()
    tell: Callable[[str], None] = lambda text: None if quiet else click.echo(text, err=True)  # noqa: E731
    one = Sweep(experiment, changes, out, jobs, data_dir, plugins, tell)
    if search == "optuna":
        found = _search(one, values, spaces, trials)
    else:
        settings = [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]
        found = list(zip(settings, one.run(settings), strict=True))
    _show(found, one.experiment({}))


def _show(found: Sequence[tuple[Setting, Mapping[str, float]]], experiment: Experiment) -> None:
    from espalier.record.measures import lower_is_better, spoken

    score = experiment.task.score
    methods = list(dict.fromkeys(m for _, scores in found for m in scores))
    pick = min if lower_is_better(score) else max
    best = {m: pick((s[m], i) for i, (_, s) in enumerate(found) if m in s)[1] for m in methods}
    seeds = "1 seed" if len(experiment.seeds) == 1 else f"the mean over {len(experiment.seeds)} seeds"
    click.echo(f"\n{spoken(score)} on held-out training data at the end of each run, {seeds}; *: the best of a method")
    table = Table("setting", *(Column(m, justify="right") for m in methods), box=SIMPLE_HEAD, pad_edge=False)
    for i, (setting, scores) in enumerate(found):
        cells = [f"{scores[m]:.3f}{' *' if best[m] == i else '  '}" if m in scores else "–" for m in methods]
        table.add_row(short(setting), *cells)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    for method, i in best.items():
        click.echo(f"best for {method}: " + " ".join(f"--set {k}={v}" for k, v in found[i][0].items()))
