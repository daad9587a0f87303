"""The page as a browser shows it, at the width of a desktop and of a phone. Skipped where there is no Chromium."""

from __future__ import annotations

import browser
import made
import pytest

from reports.__main__ import main

CHROMIUM = browser.find()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (apt-get install chromium)")

# Elements whose content is wider than themselves, or that reach beyond the screen.
CUT_OFF = """[...document.querySelectorAll("body *")].filter(e => {
  const box = e.getBoundingClientRect();
  return box.width > 0 && !e.closest("svg") && (box.right > innerWidth + 1 || box.left < -1
    || (getComputedStyle(e).display !== "inline" && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0));
}).map(e => e.outerHTML.slice(0, 120))"""
BROKEN_LINKS = """[...document.querySelectorAll("a[href]")].filter(a =>
  !a.getAttribute("href").startsWith("#") || !document.getElementById(a.getAttribute("href").slice(1))
).map(a => a.outerHTML)"""
DEAD_FOLDS = """[...document.querySelectorAll("details")].filter(d => {
  const inside = d.querySelector(":scope > :not(summary)"), before = d.open;
  d.querySelector("summary").click();
  const moved = d.open !== before;
  d.open = true;
  return !moved || !inside || inside.getBoundingClientRect().height === 0;
}).map(d => d.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with browser.Page(CHROMIUM, tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """One device with a baseline, and two side by side."""
    folder = tmp_path_factory.mktemp("reports")
    files = [str(path) for path in made.full(folder / "in")]
    before = made.bench({**made.ROWS, ("add", "2x1"): 1e-4, ("gone", "1"): 1e-4})
    baseline = made.write(folder, "base/bench.json", before)
    other = made.metrics(made.record("add", "float32"), gpu="Another GPU with a long name")
    assert main(["build", *files, "--baseline", str(baseline), "--out", str(folder / "one")]) == 0
    assert (
        main(["merge", *files, str(made.write(folder, "other/metrics.json", other)), "--out", str(folder / "two")]) == 0
    )
    return [folder / name / "report.html" for name in ("one", "two")]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360], ids=["desktop", "phone"])
def test_nothing_is_cut_off_and_all_links_and_folds_work(page, reports, width, dark):
    for path in reports:
        page.said.clear()
        page.open(path, width, 800, dark=dark)
        assert page.evaluate(BROKEN_LINKS) == []
        assert page.evaluate("document.querySelectorAll('details').length") > 10
        assert page.evaluate(CUT_OFF) == []
        assert page.evaluate(DEAD_FOLDS) == []
        # Now with all folds open.
        assert page.evaluate(CUT_OFF) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("document.title") != "owned"
        assert page.evaluate("document.querySelectorAll('script, img').length") == 0
        assert page.said == []


@pytest.mark.parametrize("width", [1280, 360], ids=["desktop", "phone"])
def test_the_share_of_a_tile_is_in_one_line(page, reports, tmp_path, width):
    names = ["scaled_dot_product_attention", "rotary_position_embedding", "dequantize_fp8", "add"]
    pairs = [{"op": name, "feasible": 100, "hit": 96, "holes": []} for name in names]
    path = made.write(tmp_path, "metrics.json", made.metrics(made.record("add", "float32"), coverage=pairs))
    assert main(["build", str(path), "--out", str(tmp_path)]) == 0
    page.open(tmp_path / "report.html", width, 800)
    lines = """[...document.querySelectorAll(".heat b")].map(e => {
      const inside = document.createRange();
      inside.selectNodeContents(e);
      return inside.getClientRects().length;
    })"""
    assert page.evaluate(lines) == [1, 1, 1, 1]
    assert page.evaluate(CUT_OFF) == []


def test_dark_and_light_differ_and_text_stands_out(page, reports):
    found = []
    contrast = """(() => {
      const light = c => { const [r, g, b] = c.match(/[0-9.]+/g).map(v => { v /= 255;
        return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const card = light(getComputedStyle(document.querySelector("section.tiles .tile")).backgroundColor);
      return [...document.querySelectorAll(".bad, .warn, .good, .note, p, .line span")]
        .filter(e => e.textContent.trim() && e.getBoundingClientRect().width)
        .map(e => { const text = light(getComputedStyle(e).color);
          return (Math.max(card, text) + 0.05) / (Math.min(card, text) + 0.05); });
    })()"""
    for dark in (False, True):
        page.open(reports[0], 1280, 800, dark=dark)
        found.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        # What WCAG 2.1 asks of text.
        assert min(page.evaluate(contrast)) >= 4.5
    assert found[0] != found[1]


def test_the_worst_op_is_on_the_first_screen(page, reports):
    page.open(reports[0], 1280, 800)
    top = page.evaluate("document.querySelector('.findings li').textContent.trim()")
    assert top == "softmax: 3 of 100 cases fail"
    assert page.evaluate("document.querySelector('.findings li').getBoundingClientRect().bottom < innerHeight")
    page.open(reports[0], 360, 740)
    assert page.evaluate("document.querySelector('.findings li').getBoundingClientRect().bottom < innerHeight")
