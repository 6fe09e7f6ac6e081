"""Results pages: a paper's prose with its figures looked up, never written.

A paper's package has a template, ``page.md``; the index has one here. What stands between double braces is looked up in
the kept figures, and whatever is not known is an error:

==============================================================  ==================================================
``{{claims}}``                                                  a table of all claims with their verdicts
``{{verdict | NAME}}``                                          the verdict on one claim
``{{settings}}``                                                the notes of all studies
``{{studies}}``                                                 a section for every study that was run (figures,
                                                                pictures, what methods did), then a table of the
                                                                others with their cost
``{{study | NAME}}``                                            the section of one study
``{{mean | STUDY | SCALE | ROW | COLUMN | MEASURE}}``           our figure, with its spread
``{{published | STUDY | ROW | COLUMN | MEASURE}}``              the paper's
``{{difference | STUDY | SCALE | ROW | OTHER | COLUMN | MEASURE}}``  by how much a row leads another, with its interval
``{{tally}}``                                                   (index) how many claims of each paper got which verdict
``{{state}}``                                                   (index) every study: runs, cost, seeds
==============================================================  ==================================================
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TypeVar, get_args

from espalier.core.errors import ConfigError, nearest
from espalier.study import tables
from espalier.study.archive import JUDGED, Archive, State, of_paper
from espalier.study.base import SCALES, Study, papers, studies
from espalier.study.claims import Interval, Judgement, Verdict, difference
from espalier.study.results import Results

T = TypeVar("T")
#: a picture's name → the figures it shows and the measure
Pictures = dict[str, tuple[Results, str]]
_PLACEHOLDER = re.compile(r"\{\{\s*(.*?)\s*\}\}", re.DOTALL)
HEAD = "<!-- Made by `espalier reproduce --pages`: change the template or the data, not this file. -->\n\n"


def index_page(archive: Archive) -> str:
    """Render the index of all papers."""
    template = (resources.files(__package__) / "index.md").read_text(encoding="utf-8")
    known: dict[str, Callable[..., str]] = {
        "tally": lambda: "\n".join(_tally(archive)),
        "claims": lambda: "\n".join(_claims_overview(archive)),
        "state": lambda: "\n".join(state_table(archive)),
    }
    return HEAD + _filled(template, known, "index.md")


class Page:
    """One paper's page.

    Attributes:
        pictures: Those that the page shows, known once it is rendered.
    """

    def __init__(self, archive: Archive, paper: str) -> None:
        self.archive, self.paper = archive, paper
        self.pictures: Pictures = {}

    def render(self) -> str:
        """Fill the paper's template."""
        path = resources.files(papers()[self.paper]) / "page.md"
        return HEAD + self.fill(path.read_text(encoding="utf-8"))

    def fill(self, template: str) -> str:
        """Look up what stands between double braces."""
        return _filled(
            template,
            {
                "claims": lambda: "\n".join(_claims_table(self.archive, self.paper)),
                "verdict": self._verdict,
                "settings": self._settings,
                "studies": self._studies,
                "study": lambda name: self._section(_known(name, studies(), "study")),
                "mean": self._mean,
                "published": self._published,
                "difference": self._difference,
            },
            f"{self.paper}'s page.md",
        )

    # -- sections ----------------------------------------------------------------------------------------

    def _settings(self) -> str:
        return "\n".join(f"- {n}" for n in dict.fromkeys(n for s in of_paper(self.paper) for n in s.notes))

    def _studies(self) -> str:
        states = [(study, [self.archive.state(study, scale) for scale in JUDGED]) for study in of_paper(self.paper)]
        begun = [study for study, found in states if any(state.done for state in found)]
        rows = [
            f"| `{study.name}` | {study.title} | {' | '.join(map(_left, found))} |"
            for study, found in states if study not in begun
        ]  # fmt: skip
        sections = [self._section(study) for study in begun]
        if rows:
            head = f"| study | what it shows | {' | '.join(f'cost at `{scale}`' for scale in JUDGED)} |"
            text = "Each is run by `espalier reproduce NAME --scale SCALE`."
            lines = ["## Not run", "", text, "", head, "| --- | --- |" + " ---: |" * len(JUDGED), *rows]
            sections.append("\n".join(lines) + "\n")
        return "\n".join(sections)

    def _section(self, study: Study) -> str:
        lines = [f"## {study.name}: {study.title}", ""]
        for scale in JUDGED:
            results = self.archive.results(study, scale)
            if results is not None:
                owner = studies().get(study.runs_of)
                elsewhere = owner is not None and self.archive.results(owner, scale) is not None
                lines += [*tables.body(results, results.commands, did=not elsewhere), "", *self._picture(results)]
                if elsewhere:
                    lines += [f"What the methods did stands at {study.runs_of}: the runs are the same.", ""]
        rest = [self.archive.state(study, scale) for scale in JUDGED]
        lines += [text for text in map(_not_run, rest) if text]
        return "\n".join(lines).rstrip() + "\n"

    def _picture(self, results: Results) -> list[str]:
        """Show the first measure that the paper prints figures of, ours beside them."""
        for measure, what in results.study.measures.items():
            both = [
                (r, c) for r in results.rows for c in results.columns
                if math.isfinite(results.published(r, c, measure)) and math.isfinite(results.mean(r, c, measure))
            ]  # fmt: skip
            if len(both) > 1:
                name = f"{results.study.name.replace('/', '-')}-{results.scale}.svg"
                self.pictures[name] = results, measure
                return [f"![{what.title}: published and ours at {results.scale}](figures/{name})", ""]
        return []

    # -- figures in prose --------------------------------------------------------------------------------

    def _verdict(self, name: str) -> str:
        return _known(name, {j.claim.name: j for j in self.archive.judgements(self.paper)}, "claim").verdict

    def _mean(self, study: str, scale: str, row: str, column: str, measure: str) -> str:
        results = self._results(study, scale, [row], column, measure)
        return tables.ours(results, row, column, measure)

    def _published(self, study: str, row: str, column: str, measure: str) -> str:
        found = _known(study, studies(), "study")
        value = _known(measure, _known(column, _known(row, found.published, "row"), "column"), "measure")
        return f"{value:.{found.measures[measure].digits}f}"

    def _difference(self, study: str, scale: str, row: str, other: str, column: str, measure: str) -> str:
        results = self._results(study, scale, [row, other], column, measure)
        return _spelled(difference(results, measure, row, other, column), results.study.measures[measure].digits)

    def _results(self, study: str, scale: str, rows: Sequence[str], column: str, measure: str) -> Results:
        found = _known(study, studies(), "study")
        results = self.archive.results(found, _known(scale, {s: s for s in SCALES}, "scale"))
        if results is None:
            raise ConfigError(f"{study} has no figures at {scale}.")
        _known(measure, found.measures, "measure")
        for row in rows:
            if math.isnan(results.mean(row, column, measure)):
                raise ConfigError(f"{study} at {scale} has no figure of {measure} for {row!r} in {column!r}.")
        return results


def _known(name: str, among: Mapping[str, T], what: str) -> T:
    if name not in among:
        raise ConfigError(f"There is no {what} {name!r}.{nearest(name, among)}")
    return among[name]


def _filled(template: str, known: Mapping[str, Callable[..., str]], where: str) -> str:
    def value(match: re.Match[str]) -> str:
        name, *arguments = (part.strip() for part in " ".join(match[1].split()).split("|"))
        try:
            return _known(name, known, "placeholder")(*arguments)
        except (ConfigError, TypeError) as error:
            raise ConfigError(f"{where}: {{{{{match[1]}}}}} cannot be filled. {error}") from error

    return _PLACEHOLDER.sub(value, template)


# -- claims and states --------------------------------------------------------------------------------------


def _spelled(found: Interval, digits: int) -> str:
    if math.isinf(found.low):
        return f"{found.mean:+.{digits}f} (one seed)"
    return f"{found.mean:+.{digits}f} [{found.low:+.{digits}f}, {found.high:+.{digits}f}]"


def _size(values: Sequence[float], digits: int) -> str:
    if not values:
        return "–"
    low, high = (f"{v:+.{digits}f}" for v in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


#: heads of what `claim_cells` returns beside a verdict and why
SIZES = ("for / against / open (firm)", "claimed lead", "our mean lead", "from the published level")


def claim_cells(archive: Archive, judgement: Judgement) -> tuple[str, str, str, str, str, str]:
    """Return a claim's verdict, why, how many differences speak for it, its size, ours, and our level's distance."""
    claim = judgement.claim
    digits = studies()[claim.study].measures[claim.measure].digits
    claimed = claim.size or _size(archive.claimed(claim), digits)
    ours = _size([d.mean for d in judgement.differences.values()], digits)
    apart = "–" if math.isnan(judgement.distance) else f"{judgement.distance:.{digits}f}"
    sides, firm = (" / ".join(map(str, counts)) for counts in (judgement.sides(), judgement.firm()))
    sides = f"{sides} ({firm})" if judgement.differences else "–"
    return judgement.verdict, judgement.why, sides, claimed, ours, apart


def _claims_table(archive: Archive, paper: str) -> list[str]:
    judgements = archive.judgements(paper)
    if not judgements:
        raise ConfigError("The paper has no claims.toml.")
    heads = ("claim", "verdict", *SIZES, "why")
    lines = [f"| {' | '.join(heads)} |", "| --- | --- | ---: | ---: | ---: | ---: | --- |"]
    for found in judgements:
        claim = found.claim
        verdict, why, *sizes = claim_cells(archive, found)
        at = f" `{claim.study}`" + (f" at `{found.scale}`" if found.scale else "")
        quote = f" “{claim.quote}”" if claim.quote else ""
        text = f"**{claim.name}** ({claim.where}): {claim.text}{quote}"
        lines.append(f"| {text} | *{verdict}* | {' | '.join(sizes)} | {why}{at} |")
    return lines


def _tally(archive: Archive) -> list[str]:
    verdicts = get_args(Verdict)
    lines = [f"| paper | {' | '.join(verdicts)} |", "| --- |" + " ---: |" * len(verdicts)]
    for paper in papers():
        found = Counter(judgement.verdict for judgement in archive.judgements(paper))
        lines.append(f"| [{paper}]({paper}.md) | {' | '.join(str(found[v] or '–') for v in verdicts)} |")
    return lines


def _claims_overview(archive: Archive) -> list[str]:
    heads = ("paper", "claim", "verdict", *SIZES, "runs")
    lines = [f"| {' | '.join(heads)} |", "| --- | --- | --- | ---: | ---: | ---: | ---: | --- |"]
    for paper in papers():
        for found in archive.judgements(paper):
            verdict, _, *sizes = claim_cells(archive, found)
            at = f"`{found.claim.study}`" + (f" at `{found.scale}`" if found.scale else "")
            cells = " | ".join((f"[{paper}]({paper}.md)", found.claim.text, f"*{verdict}*", *sizes, at))
            lines.append(f"| {cells} |")
    return lines


def cost(state: State, minutes: float) -> str:
    """Say how long runs would take."""
    if math.isnan(minutes):
        return "cost not known"
    about = "about " if state.guessed else ""
    return f"{about}{minutes:,.0f} core minutes" if minutes < 120 else f"{about}{minutes / 60:,.0f} core hours"


def _not_run(state: State) -> str:
    if state.done >= state.runs:
        return ""
    what = "Not run" if not state.done else f"{state.runs - state.done} of {state.runs} runs are missing"
    return f"{what} at `{state.scale}`: `{state.command}` ({_left(state)}).\n"


def _left(state: State) -> str:
    """Say how many runs are missing and what they cost."""
    if state.study.runs_of:
        return f"runs of {state.study.runs_of}"
    return f"{state.runs - state.done} runs, {cost(state, state.left_minutes)}"


def state_rows(archive: Archive) -> list[tuple[str, str, str, str, str]]:
    """Return for every study and telling scale: its name, the scale, its state, its whole cost, its title."""
    rows: list[tuple[str, str, str, str, str]] = []
    for paper in papers():
        for study in of_paper(paper):
            for scale in JUDGED[::-1]:
                state = archive.state(study, scale)
                done = "run" if state.done >= state.runs else f"{state.done} of {state.runs} runs"
                seeds = f", seed(s) {', '.join(map(str, state.seeds))}" if state.seeds else ""
                what = f"{done}{seeds}" if state.done else "not run"
                if study.runs_of:
                    price = f"runs of {study.runs_of}"
                else:
                    price = f"{state.runs} runs, {cost(state, state.minutes)}"
                rows.append((study.name, scale, what, price, study.title))
    return rows


def state_table(archive: Archive) -> list[str]:
    """Return the studies' states as a Markdown table."""
    lines = ["| study | scale | state | all of it | what it shows |", "| --- | --- | --- | --- | --- |"]
    return [
        *lines,
        *(f"| `{n}` | {scale} | {what} | {price} | {t} |" for n, scale, what, price, t in state_rows(archive)),
    ]


def all_pages(folder: Path, draw: Callable[[Results, str], str]) -> dict[Path, str]:
    """Return every page and picture that belongs in a folder of results, whose figures lie in its ``data``."""
    archive = Archive(folder / "data")
    found = {folder / "index.md": index_page(archive)}
    for paper, package in papers().items():
        if not (resources.files(package) / "page.md").is_file():
            continue
        page = Page(archive, paper)
        found[folder / f"{paper}.md"] = page.render()
        found |= {folder / "figures" / name: draw(*shown) for name, shown in page.pictures.items()}
    return found
