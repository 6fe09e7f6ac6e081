"""The report in a real Chromium: it opens offline, draws everything, and its controls work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from espalier.report.page import write_report
from tests.report.made import write_run

PLOTS = (
    "plot-lead", "plot-curves", "plot-spread-device", "plot-spread-edge", "plot-spread", "plot-edges", "plot-tree",
    "plot-timeline", "plot-labels", "plot-devices",
)  # fmt: skip


class Desk:
    """Pages opened without a network; whatever they ask of one and whatever they complain about is kept."""

    def __init__(self, chromium: Any) -> None:
        self.chromium = chromium
        self.contexts: list[Any] = []
        self.requests: list[str] = []
        self.complaints: list[str] = []

    def open(self, path: Path, width: int = 1280) -> Any:
        context = self.chromium.new_context(viewport={"width": width, "height": 900}, offline=True)
        self.contexts.append(context)
        page = context.new_page()
        page.on("request", lambda r: self.requests.append(r.url))
        page.on("console", lambda m: self.complaints.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda e: self.complaints.append(str(e)))
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-ready=yes]", timeout=60_000)
        return page

    def check(self) -> None:
        assert [r for r in self.requests if not r.startswith(("file:", "data:", "blob:"))] == []
        assert self.complaints == []


@pytest.fixture(scope="module")
def desk(chromium: Any) -> Iterator[Desk]:
    found = Desk(chromium)
    yield found
    for context in found.contexts:
        context.close()


@pytest.fixture(autouse=True)
def silent(desk: Desk) -> Iterator[None]:
    """No test may leave a message on the console or a request to a network."""
    yield
    desk.check()


@pytest.fixture(scope="module")
def report(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "report.html"
    write_report([runs], out)
    return out


@pytest.fixture(scope="module")
def wide(desk: Desk, report: Path) -> Any:
    """The report on a desk; opened once, every test puts the controls where it wants them."""
    return desk.open(report)


def until(check: Callable[[], bool], page: Any) -> None:
    """Wait until something is so."""
    end = time.monotonic() + 30
    while not check():
        assert time.monotonic() < end, "it did not happen within 30 s"
        page.wait_for_timeout(40)


def drawn(page: Any, name: str) -> bool:
    """Tell whether a plot has marks on it: lines, points, boxes or an image."""
    marks = f"#{name} .plot-container :is(.scatterlayer .trace path, .boxlayer path, .heatmaplayer image)"
    return bool(page.locator(f"#{name}").is_visible() and page.locator(marks).count() > 0)


def title(page: Any, plot: str, axis: str = "x") -> str:
    return str(page.locator(f"#{plot} .g-{axis}title").first.text_content())


def choose(page: Any, label: str) -> None:
    page.select_option("#run", label=label)
    clusters = label.startswith("CSAHFL")
    page.wait_for_selector("#tree-look option[value=cluster]", state="attached" if clusters else "detached")
    page.wait_for_selector("#similarity", state="visible" if clusters else "hidden")


def test_everything_is_drawn(wide: Any) -> None:
    choose(wide, "HierFAVG, seed 0")
    assert wide.title() == "made up · espalier"
    until(lambda: all(drawn(wide, name) for name in PLOTS), wide)
    assert wide.locator(".ranking tbody tr").count() == 3
    assert "Flat &lt;i&gt;" in wide.locator(".ranking tbody").inner_html()
    # the first run has notes but no similarity; the second the other way round
    until(lambda: wide.locator("#notes .plot .scatterlayer path").count() > 0, wide)
    choose(wide, "CSAHFL, seed 0")
    until(lambda: drawn(wide, "plot-similarity"), wide)
    wide.wait_for_selector("#notes", state="hidden")


def test_the_switch_changes_the_axis(wide: Any) -> None:
    wide.select_option("#curves-measure", "acc_device")
    for switch, wanted in (
        ("virtual time", "virtual time (min)"), ("bytes", "bytes sent over all links (MB)"),
        ("rounds", "global rounds"),
    ):  # fmt: skip
        wide.click(f"#curves-axis >> text={switch}")
        until(lambda wanted=wanted: title(wide, "plot-curves") == wanted, wide)  # type: ignore[misc]
        assert title(wide, "plot-curves", "y") == "accuracy per device"
    wide.select_option("#curves-measure", "loss_device")
    until(lambda: title(wide, "plot-curves", "y") == "loss per device", wide)
    wide.locator("#curves-axis input:checked").focus()
    wide.keyboard.press("ArrowLeft")  # the switch works without a mouse
    until(lambda: title(wide, "plot-curves") == "virtual time (min)", wide)


def test_the_first_thing_said_is_which_method_leads(wide: Any) -> None:
    headline = wide.locator(".headline")
    assert headline.bounding_box()["y"] + wide.evaluate("scrollY") < 300
    assert headline.text_content().startswith("CSAHFL leads with accuracy per device")
    assert "cannot be told with 2 seeds" in wide.locator(".detail").text_content()
    assert title(wide, "plot-curves") == "virtual time (min)"  # what curves open against
    ranks = wide.locator(".ranking tbody tr").evaluate_all("rows => rows.map((r) => r.cells[1].textContent)")
    assert [r.split(" ")[0] for r in ranks] == ["CSAHFL", "HierFAVG", "Flat"]
    heads = wide.locator(".ranking thead").text_content()
    assert all(word in heads for word in ("rounds", "bytes sent", "virtual time", "at equal virtual time"))
    table = wide.locator(".ranking").bounding_box()
    assert table["x"] + table["width"] <= 1280 - 32  # no column is cut off
    wide.click("#verdict-budget >> text=bytes sent")
    until(lambda: "MB sent" in headline.text_content(), wide)
    wide.click("#verdict-budget >> text=virtual time")
    until(lambda: "virtual time" in headline.text_content(), wide)
    assert wide.locator(".modebar").count() == 0


def test_methods_and_seeds_can_be_left_out(wide: Any) -> None:
    wide.select_option("#curves-measure", "acc_device")

    def lines() -> list[str]:
        return list(wide.evaluate("byId('plot-curves').data.filter((t) => t.meta.seeds).map((t) => t.name)"))

    until(lambda: lines() == ["CSAHFL", "HierFAVG", "Flat &lt;i&gt;"], wide)
    wide.click("#methods >> text=HierFAVG")
    until(lambda: lines() == ["CSAHFL", "Flat &lt;i&gt;"], wide)
    assert wide.locator(".ranking tbody tr:visible").count() == 2
    until(lambda: wide.evaluate("byId('plot-spread-device').data.length") == 2, wide)
    wide.click("#seeds button:text-is('1')")
    until(lambda: wide.evaluate("Object.keys(byId('plot-curves').data.at(-1).meta.seeds)") == ["0"], wide)
    assert wide.evaluate("byId('plot-curves').data.length") == 2  # one seed has no band
    wide.click("#methods >> text=HierFAVG")
    wide.click("#seeds button:text-is('1')")
    wide.click("#curves-layout >> text=side by side")
    until(lambda: wide.locator("#plot-curves .subplot").count() == 3, wide)
    wide.click("#curves-layout >> text=together")
    until(lambda: wide.locator("#plot-curves .subplot").count() == 1, wide)


def downloaded(page: Any, button: str) -> bytes:
    with page.expect_download() as waiting:
        page.click(button)
    return Path(waiting.value.path()).read_bytes()


def test_every_figure_and_table_can_be_taken_away(wide: Any) -> None:
    """As vectors and numbers, made in the page: the network is off."""
    bars = wide.locator(".plot:visible + .export")
    assert bars.count() == wide.locator(".plot:visible").count() > 8
    tool = "#plot-curves + .export >> text="
    svg = downloaded(wide, f"{tool}SVG").decode()
    assert svg.startswith("<svg") and "virtual time (min)" in svg and "<image" not in svg
    pdf = downloaded(wide, f"{tool}PDF")
    assert (pdf.startswith(b"%PDF-1.4") and b"(virtual time \\050min\\051) Tj" in pdf) or b"virtual time" in pdf
    table = int(pdf[pdf.rindex(b"startxref") + 9 :].split()[0])
    assert pdf[table : table + 4] == b"xref"
    for number, line in enumerate(pdf[table:].splitlines()[3:], 1):  # every object is where the table says
        if not line.endswith(b" n "):
            break
        assert pdf[int(line[:10]) :].startswith(b"%d 0 obj" % number)
    rows = downloaded(wide, f"{tool}CSV").decode().splitlines()
    assert rows[0] == "series,seed,x,y,value" and any(row.startswith("CSAHFL,1,") for row in rows)
    assert downloaded(wide, "#plot-tree + .export >> text=PNG").startswith(b"\x89PNG")
    assert b"Length" in downloaded(wide, "#plot-timeline + .export >> text=PDF")
    assert downloaded(wide, "#verdict-export >> text=CSV").startswith(b"setting,rank,method")
    assert downloaded(wide, "#verdict-export >> text=LaTeX").startswith(b"\\begin{tabular}")


def test_paper_gets_light_figures_of_its_width(wide: Any) -> None:
    wide.emulate_media(color_scheme="dark")
    pdf = wide.pdf(prefer_css_page_size=True)
    assert pdf.startswith(b"%PDF")
    wide.evaluate("printed(true)")
    until(lambda: wide.evaluate("byId('plot-curves').layout.width") == 680, wide)
    assert wide.evaluate("byId('plot-curves').layout.template.layout.font.color") == "#1b1f24"
    wide.evaluate("printed(false)")
    wide.emulate_media(color_scheme="light")
    until(lambda: wide.evaluate("byId('plot-curves')._fullLayout.width") > 1000, wide)


def test_pointing_at_a_line_shows_every_seed(wide: Any) -> None:
    wide.locator("#plot-curves").scroll_into_view_if_needed()
    box = wide.locator("#plot-curves .nsewdrag").bounding_box()
    found = False
    for part in range(5, 100, 5):
        wide.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * part / 100)
        wide.wait_for_timeout(60)
        text = wide.locator("#plot-curves .hoverlayer").text_content() or ""
        found = found or ("seed 0:" in text and "seed 1:" in text)
    assert found


def test_the_tree_s_slider_and_colours(wide: Any) -> None:
    choose(wide, "HierFAVG, seed 0")
    slider, caption = wide.locator("#tree-time"), wide.locator("#tree-caption")
    slider.focus()
    wide.keyboard.press("Home")
    until(lambda: caption.text_content().startswith("0.0 s"), wide)
    before = wide.locator("#plot-tree .scatterlayer").inner_html()
    for _ in range(3):
        wide.keyboard.press("ArrowRight")
    until(lambda: any(w in caption.text_content() for w in ("moved", "left", "came")), wide)
    assert slider.input_value() == "3"
    until(lambda: wide.locator("#plot-tree .scatterlayer").inner_html() != before, wide)
    choose(wide, "CSAHFL, seed 0")
    wide.select_option("#tree-look", "cluster")
    wide.wait_for_selector("#plot-tree .legendtext:has-text('cluster c1')")
    wide.click("#tree-play")
    start = slider.input_value()
    until(lambda: slider.input_value() != start, wide)
    wide.click("#tree-play")
    assert wide.locator("#tree-play").text_content() == "play"


def test_the_timeline_shows_a_chosen_window(wide: Any) -> None:
    choose(wide, "HierFAVG, seed 0")
    wide.click("#timeline-whole")
    whole = wide.locator("#timeline-to").input_value()
    wide.fill("#timeline-from", "30")
    wide.fill("#timeline-to", "60")
    wide.keyboard.press("Enter")
    until(lambda: wide.evaluate("Timeline.view") == [30, 60], wide)
    wide.click("#timeline-later")
    until(lambda: wide.evaluate("Timeline.view") == [45, 75], wide)
    wide.locator("#plot-timeline").scroll_into_view_if_needed()
    box = wide.locator("#plot-timeline .nsewdrag").bounding_box()
    caption = wide.locator("#timeline-caption")
    middle = box["y"] + box["height"] / 2
    wide.mouse.move(box["x"] + box["width"] / 2 - 5, middle)
    wide.mouse.move(box["x"] + box["width"] / 2, middle)
    until(lambda: any(w in caption.text_content() for w in ("trains", "sends", "receives", "waits")), wide)
    wide.mouse.down()
    wide.mouse.move(box["x"] + box["width"] * 3 / 4, middle, steps=4)
    wide.mouse.up()
    # from the middle of 45–75 s to three quarters of it
    until(lambda: wide.evaluate("Timeline.view") == pytest.approx([60, 67.5], abs=0.5), wide)
    wide.click("#timeline-whole")
    until(lambda: wide.locator("#timeline-to").input_value() == whole, wide)
    assert "update dropped" in wide.locator("#plot-timeline .legend").text_content()


def test_the_picture_drawn_here_is_python_s(wide: Any, runs: Path) -> None:
    """The browser bins spans itself; it must show what the notebook's figure shows."""
    from espalier.report.reading import opened
    from espalier.report.timeline import timeline

    choose(wide, "HierFAVG, seed 0")
    wide.evaluate("Timeline.look(40, 140)")
    until(lambda: wide.evaluate("Timeline.view") == [40, 140], wide)
    until(lambda: wide.evaluate("byId('plot-timeline').data[0].x0") == pytest.approx(40 / 60, abs=0.01), wide)
    theirs = wide.evaluate("byId('plot-timeline').data[0].z.map((row) => Array.from(row))")
    with opened(runs / "a" / "seed-0") as run:
        ours = timeline(run, 40.0, 140.0, bins=len(theirs[0]))["data"][0]["z"]
    cells = [(a, b) for one, other in zip(ours, theirs, strict=True) for a, b in zip(one, other, strict=True)]
    # where two states are equally long, rounding decides
    assert sum(a != b for a, b in cells) <= len(cells) / 1000


def test_light_and_dark(wide: Any) -> None:
    paths = wide.locator("#plot-curves .scatterlayer path.js-line")
    for scheme, paper, line in (
        ("dark", "rgb(21, 24, 29)", "rgb(115, 173, 243)"), ("light", "rgb(255, 255, 255)", "rgb(57, 122, 248)"),
    ):  # fmt: skip
        wide.emulate_media(color_scheme=scheme)
        until(lambda line=line: line in paths.evaluate_all("es => es.map(e => e.style.stroke)"), wide)  # type: ignore[misc]
        assert wide.evaluate("getComputedStyle(document.body).backgroundColor") == paper
        assert wide.locator(".swatch").first.evaluate("e => e.style.background") == line


def test_figures_follow_the_window(desk: Desk, report: Path) -> None:
    page = desk.open(report)
    sizes = "n => (({ width, height }) => [width, height])(byId(n).querySelector('.main-svg').getBoundingClientRect())"
    begun = {name: page.evaluate(sizes, name) for name in PLOTS}
    for width in (400, 1280, 1000, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        until(lambda width=width: abs(page.evaluate("byId('plot-curves')._fullLayout.width") - width) < 130, page)  # type: ignore[misc]
        page.wait_for_timeout(300)
        for name in PLOTS:  # nothing lies over what comes below it
            assert page.evaluate("n => byId(n).clientHeight", name) >= page.evaluate(sizes, name)[1] - 1, (width, name)
    assert {name: page.evaluate(sizes, name) for name in PLOTS} == begun
    for name in ("plot-edges", "plot-labels"):  # of a scale on another side nothing is left
        assert page.locator(f"#{name} .cbaxis").count() == page.locator(f"#{name} .cbtitle").count() == 1
        assert page.locator(f"#{name} .nsewdrag").bounding_box()["width"] > 0.5 * begun[name][0]


def test_a_phone_s_width_is_enough(desk: Desk, report: Path) -> None:
    page = desk.open(report, width=360)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.locator("#verdict table").first.is_visible()
    assert "Right:" not in page.inner_text("#verdict")  # there is no room for two panels
    for name in PLOTS:
        box = page.locator(f"#{name}").bounding_box()
        assert drawn(page, name) and box["x"] >= 0 and box["x"] + box["width"] <= 360, name
        assert page.locator(f"#{name} .nsewdrag").first.bounding_box()["width"] >= 120, name
    for control in ("#curves-axis span >> nth=0", "#tree-play", "#timeline-in", "#run", "#curves-measure"):
        assert page.locator(control).bounding_box()["height"] >= 30, control
    page.click("#curves-axis >> text=bytes")
    until(lambda: "(MB)" in title(page, "plot-curves"), page)


def test_two_hundred_nodes_with_a_thousand_spans_each_are_fast(desk: Desk, tmp_path: Path) -> None:
    # 200 devices × (train, send, and what their edge sends them) × 333 passes: 199,800 spans
    write_run(tmp_path / "run", devices=200, edges=10, rounds=1, passes=333)
    write_report([tmp_path / "run"], tmp_path / "large.html")
    assert (tmp_path / "large.html").stat().st_size < 8_000_000
    page = desk.open(tmp_path / "large.html")
    assert "one by one from" not in page.locator("#timeline-note").text_content()  # every span is there
    # processor time of the page itself: other programs on the machine do not count
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy() -> float:
        return float({m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}["TaskDuration"])

    end = float(page.locator("#timeline-to").input_value())
    seconds = []
    for start in (0.1, 0.4, 0.7):
        before = busy()
        page.evaluate(f"Timeline.look({start * end}, {(start + 0.05) * end})")
        until(lambda start=start: page.evaluate("Timeline.view")[0] == start * end, page)  # type: ignore[misc]
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        seconds.append(busy() - before)
    assert min(seconds) < 0.6, seconds


def test_settings_that_were_tried_are_drawn_against_their_key(desk: Desk, tmp_path: Path) -> None:
    for lr in (0.001, 0.01, 0.1):
        write_run(tmp_path / f"lr{lr}", label=f"HierFAVG, lr={lr}", lr=lr)
    write_report([tmp_path], tmp_path / "report.html")
    page = desk.open(tmp_path / "report.html")
    assert (
        page.locator(".tried .plot").count() == 1 and "training.lr" in page.locator("#plot-lead-tried-1").inner_text()
    )
    assert page.locator("#plot-lead-tried-1 .scatterlayer .trace").count() == 1


def test_of_several_keys_the_one_that_matters_most_comes_first(desk: Desk, tmp_path: Path) -> None:
    """Skill is all that makes a difference here: it follows the learning rate, the batch size has no part in it."""
    for lr, skill in ((0.001, 0.3), (0.01, 0.5), (0.1, 0.7)):
        for size in (5, 20):
            where = tmp_path / f"lr{lr}-{size}"
            write_run(where, label=f"lr={lr} batch_size={size}", lr=lr, skill=skill, batch_size=size)
    write_report([tmp_path], tmp_path / "report.html")
    page = desk.open(tmp_path / "report.html")
    titles = [page.locator(f"#plot-lead-tried-{i} .xtitle").text_content() for i in (1, 2)]
    assert titles == ["training.lr: 100 % of the differences", "training.batch_size: 0 % of the differences"]
    first, second = (page.locator(f"#plot-lead-tried-{i}").bounding_box() for i in (1, 2))
    assert first is not None and second is not None and first["x"] + first["width"] <= second["x"]
