"""The results as a site of HTML: its files, and what a reader does with it in a browser."""

import io
import json
import math
import re
import shutil
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
from typer.testing import CliRunner

from hybridlab.errors import UserError
from hybridlab.lab.cli.main import app
from hybridlab.lab.papers.claim_list import claims
from hybridlab.lab.papers.listing import Filter
from hybridlab.lab.papers.loading import load_experiment
from hybridlab.lab.papers.pages import Entry, Page, as_read, as_written, pages_in
from hybridlab.lab.reporting import site as site_module
from hybridlab.lab.reporting.entry import markdown
from hybridlab.lab.reporting.site import write_site
from hybridlab.lab.reporting.svg import DARK, LEAST_CONTRAST, _parts, contrast, dark_colours, svg_of

PUBLISHED = Path("results/published")
SOME = ("consa-table1", "consa-table4", "consa-fig10", "saobp-table1", "depth-fig7", "spiral-loops", "sgt-fig3")
"""A table with two scales, one without runs, curves, a heatmap, and claims with a picture."""


def results_of(folder, names):
    """A folder of results with these published entries and their records."""
    published = folder / "results" / "published"
    (published / "records").mkdir(parents=True)
    for name in names:
        shutil.copytree(PUBLISHED / name, published / name)
        for path in published.glob(f"{name}/*/*.json"):
            for by_seed in json.loads(path.read_text())["runs"].values():
                for digest in by_seed.values():
                    if (record := PUBLISHED / "records" / f"{digest}.json.zst").exists():
                        shutil.copy(record, published / "records")
    return folder / "results"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A site of some entries, one of them one's own with a hostile title, copied to where it was not made."""
    folder = tmp_path_factory.mktemp("site")
    results = results_of(folder, SOME)
    data = json.loads((PUBLISHED / "consa-table4/smoke/table.json").read_text())
    data |= {"id": "mine", "title": '<script>alert(1)</script> & "mine"', "paper": "my own", "notes": ["<b>bold</b>"]}
    own = results / "mine" / "smoke"
    own.mkdir(parents=True)
    (own / "table.json").write_text(json.dumps(data))
    written = write_site(folder / "made", results)
    shutil.copytree(folder / "made", folder / "copied")
    return folder / "copied", written


class Addresses(HTMLParser):
    """Ids, and all addresses of a page."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.addresses = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            self.ids += [value] if name == "id" else []
            self.addresses += [value] if name in ("href", "src", "action", "xlink:href", "srcset", "data") else []


def test_nothing_leads_out_of_the_folder_and_every_link_leads_somewhere(made):
    folder, written = made
    pages = {path.name: Addresses(path.read_text()) for path in folder.glob("*.html")}
    assert len(pages) == written["pages"] and {"index.html", "claims.html", "audit.html", "runs.html"} <= {*pages}
    for name, page in pages.items():
        assert len(set(page.ids)) == len(page.ids), f"{name} has an id twice"
        for address in page.addresses:
            if not address.startswith("data:image/png;base64,"):
                assert not re.match(r"[a-z]+:|//|/", address), f"{name}: {address}"
                file, _, place = address.partition("#")
                assert not file or (folder / file).exists(), f"{name}: {address}"
                assert not place or place in pages[file or name].ids, f"{name}: {address}"
    for path in (*folder.glob("*.css"), *folder.glob("*.js")):
        assert not re.search(r"https?:|//[a-z]+\.|@import|url\((?!#)", path.read_text()), path


def test_a_page_shows_what_was_measured_beside_the_paper(made):
    text = (made[0] / "consa-table4.html").read_text()
    row = re.search(r"<th scope=\"row\">0.6B.*?</tr>", text, re.DOTALL)[0]
    assert re.search(r">17\.42\s*<small class=\"paper\">paper 17\.42 <span class=\"agrees\">agrees</span>", row)
    assert "hybridlab reproduce consa-table4 --scale smoke" in text
    both = (made[0] / "consa-table1.html").read_text(), (made[0] / "consa-table1.smoke.html").read_text()
    assert 'href="consa-table1.smoke.html"' in both[0] and 'href="consa-table1.html"' in both[1]
    assert "What the paper prints in columns that are not measured here" in both[0] and ">49.06<" in both[0]


def test_what_a_file_says_is_text_and_never_markup(made):
    for name in ("mine.html", "index.html"):
        text = (made[0] / name).read_text()
        assert "<script>alert" not in text and "&lt;script&gt;alert(1)" in text
    assert "&lt;b&gt;bold" in (made[0] / "mine.html").read_text()


def test_runs_have_their_provenance(made):
    text = (made[0] / "spiral-loops.html").read_text()
    assert "hybridlab reproduce spiral-loops --scale desk" in text and "x86_64 (cpu, 1 thread)" in text
    assert text.count('<tr><th scope="row">spiral-b</th>') == 5


def test_pages_are_made_of_their_data_alone():
    """table.json and figure.json have all that table.md and figure.md say."""
    made = 0
    for path in PUBLISHED.glob("*/*/*.json"):
        data = as_read(json.loads(path.read_text()))
        assert as_written(data) == json.loads(path.read_text())
        if path.name == "table.json" and "panels" in data:
            drawn = (path.parent / "claims.png").exists()
            assert markdown(data, drawn=drawn) == path.with_suffix(".md").read_text(), path
        elif path.name == "figure.json":
            assert markdown(data) == path.with_suffix(".md").read_text(), path
        made += 1
    assert made > 150


def test_a_claim_is_shown_at_the_largest_scale_that_has_a_verdict():
    def page(scale, *verdicts):
        given = [
            {"text": str(i), "source": "x", "verdict": verdict, "about": "trained"}
            for i, verdict in enumerate(verdicts)
        ]
        return Page({"scale": scale, "claims": given}, Path())

    desk, smoke = page("desk", "holds", "not run", "not run"), page("smoke", "open", "open", "not run")
    found = Entry("a", "consa", [desk, smoke]).claims
    assert [(one is desk, number, claim["verdict"]) for one, number, claim in found] == [
        (True, 1, "holds"),
        (False, 2, "open"),
        (True, 3, "not run"),
    ]


def test_what_a_pretrained_model_shows_stands_beside_the_verdict_and_not_for_it():
    def page(scale, verdict):
        claim = {"text": "a", "source": "x", "verdict": verdict, "about": "trained"}
        return Page({"scale": scale, "claims": [claim]}, Path())

    smoke, seen = page("smoke", "open"), page("pretrained", "observed")
    both, alone = Entry("a", "sgt", [smoke, seen]), Entry("a", "sgt", [seen])
    assert both.judged("a", "x")[0] is smoke and both.observed("a", "x") == "observed"
    assert alone.judged("a", "x")[0] is seen, "it has no other page"
    assert both.judged("a", "y") is None and both.observed("b", "x") is None


def test_a_folder_with_other_files_is_never_replaced(made, tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match="there are other files; give a folder that is new, empty, or an older site"):
        write_site(tmp_path, made[0].parent / "results")
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_a_page_that_is_damaged_or_of_an_older_version_says_how_it_is_made_again(tmp_path):
    results = results_of(tmp_path, ["consa-table4"])
    path = results / "published/consa-table4/smoke/table.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({key: data[key] for key in data if key != "columns"}))
    with pytest.raises(UserError, match="'columns' is missing.*hybridlab report consa-table4 --scale smoke"):
        pages_in(results)


@pytest.mark.parametrize(
    "broken", ({"rows": None}, {"claims": [{"text": "a"}]}, {"runs": None}, {"columns": [{"x": 1}]})
)
def test_odd_data_end_in_a_sentence_that_names_the_page(tmp_path, broken):
    results = results_of(tmp_path, ["consa-table4"])
    path = results / "published/consa-table4/smoke/table.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | broken))
    with pytest.raises(UserError, match="consa-table4/smoke: this page is damaged or of another version"):
        write_site(tmp_path / "site", results)
    assert not (tmp_path / "site").exists()


def test_a_claim_of_an_unknown_kind_names_its_page(tmp_path):
    results = results_of(tmp_path, ["consa-table4"])
    path = results / "published/consa-table4/smoke/table.json"
    data = json.loads(path.read_text())
    data["claims"][0]["about"] = "hearsay"
    path.write_text(json.dumps(data))
    with pytest.raises(UserError, match="consa-table4/smoke: this page is damaged"):
        write_site(tmp_path / "site", results)


def test_a_figure_that_cannot_be_drawn_is_named_among_others(tmp_path):
    results = results_of(tmp_path, ["consa-fig10", "consa-fig2", "consa-fig4"])
    path = results / "published/consa-fig4/smoke/figure.json"
    data = json.loads(path.read_text())
    data["panels"][0]["series"][0]["data"] = {"odd": 1}
    path.write_text(json.dumps(data))
    with pytest.raises(UserError, match="consa-fig4/smoke: this page is damaged"):
        write_site(tmp_path / "site", results)


def test_an_entry_cannot_take_the_place_of_a_page_of_the_site(tmp_path):
    results = results_of(tmp_path, ["consa-table4"])
    (results / "published/consa-table4").rename(results / "published/claims")
    with pytest.raises(UserError, match="claims/smoke: the site has another page claims.html"):
        write_site(tmp_path / "site", results)


def test_wrong_options_end_in_a_sentence(tmp_path):
    for arguments, said in (
        (["--site", "consa-table1"], "leave ids out"),
        (["--site", "--tables"], "leave --tables out"),
        (["--out", "x", "--tables"], "names the folder of --site"),
        (["--site", "--results-dir", str(tmp_path / "none")], "there are no pages in"),
    ):
        result = CliRunner().invoke(app, ["report", *arguments])
        assert isinstance(result.exception, UserError) and said in str(result.exception), arguments


# ---- figures ----


def lines(colours):
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.subplots()
    for i, colour in enumerate(colours):
        axes.plot([0, 1], [i, i + 0.123456789], color=colour)
    axes.set_title("A & B < C")
    return figure


def test_a_figure_takes_the_colours_of_the_page():
    svg, colours = svg_of(lambda: lines(["#332288", "0.45", "#E69F00"]), "name", "what < it is")
    assert "<title>what &lt; it is</title>" in svg and "A &amp; B &lt; C" in svg
    assert colours == {"#332288", "#737373", "#000000"} and "#e69f00" in svg
    assert "var(--ink)" in svg and "var(--paper)" in svg and "#010203" not in svg
    values = dict(re.findall(r"--x([0-9a-f]{6}):(#[0-9a-f]{6});", dark_colours(colours)))
    assert {f"#{name}" for name in values} == colours
    assert all(contrast(_parts(value), DARK) >= LEAST_CONTRAST for value in values.values())
    assert f"--paper: #{''.join(f'{part:02x}' for part in DARK)}" in (site_module.TEMPLATES / "site.css").read_text()


def test_a_figure_is_the_same_each_time_and_leaves_the_settings_of_others_alone():
    before = dict(matplotlib.rcParams)
    first, again = (svg_of(lambda: lines(["#332288"]), "name", "it")[0] for _ in range(2))
    assert first == again and dict(matplotlib.rcParams) == before
    assert not re.search(r"<[^>]*\d\.\d{3}", first), "two digits of a point are enough"
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', first))
    assert used and all(f'id="{one}"' in first and one.startswith("name-") for one in used)


def marks(element, style=()):
    """Place, colour and opacity of all marks of a figure, which they may have from a group around them."""
    style = {**dict(style), **dict(re.findall(r"([\w-]+): ?([^;]+)", element.get("style", "")))}
    if element.tag.endswith("use"):
        place = [float(element.get(name, 0)) for name in "xy"]
        yield place, (style.get("fill"), *(float(style.get(name, 1)) for name in ("fill-opacity", "opacity")))
    for inner in element:
        yield from marks(inner, style)


def test_the_marks_of_a_figure_keep_their_places_and_colours():
    def drawn():
        figure = lines(["#009e73"])
        axes = figure.axes[0]
        for colour, alpha in (("#d55e00", 0.45), ("#d55e00", 0.45), ("#0072b2", 1), ("#cc79a7", 0.5)):
            axes.scatter(range(7), [alpha + i for i in range(7)], color=colour, alpha=alpha)
        axes.plot(range(5), range(5), "s", color="#e69f00", alpha=0.5)
        axes.plot(range(5), range(5), "o", color="black")
        return figure

    svg, _ = svg_of(drawn, "name", "it")
    plain = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        drawn().savefig(plain, format="svg")
    ours, theirs = (list(marks(ElementTree.fromstring(text))) for text in (svg, plain.getvalue()))
    assert len(ours) == len(theirs) > 38
    for (place, style), (wanted, plain_style) in zip(ours, theirs, strict=True):
        assert place == pytest.approx(wanted, abs=0.06)
        assert style == plain_style or style[0] == "var(--ink)", "of ticks, which matplotlib draws in black"
    assert svg.count("fill:#0072b2") == 1 and "<g>" not in svg
    # A rule for marks would win over the colour of their group.
    assert not re.search(r"svg\.figure[^{]*\b(use|path)\b", (site_module.TEMPLATES / "site.css").read_text())


def test_a_figure_whose_marks_lie_outside_is_whole():
    """matplotlib writes a group without an end then."""

    def drawn():
        figure = lines(["#009e73"])
        figure.axes[0].plot([5, 6], [math.nan, math.nan], "o")
        figure.axes[0].plot([5, 6], [5, 6], "o")
        figure.axes[0].set_xlim(0, 1)
        return figure

    svg, _ = svg_of(drawn, "name", "it")
    assert svg.count("<g ") == svg.count("</g>") + len(re.findall(r"<g [^>]*/>", svg))
    ElementTree.fromstring(svg)


def test_the_letters_of_a_figure_stay_as_they_are():
    def labelled():
        figure = lines(["#332288"])
        figure.axes[0].set_title("p < 0.001; whiskers: 3.75312")
        figure.axes[0].set_yticks([0.0, 0.0625, 0.12345], ["0.00000", "0.06250", "0.12345"])
        return figure

    svg, _ = svg_of(labelled, "name", "it")
    letters = re.findall(r">([^<>\n]+)<", svg)
    assert "p &lt; 0.001; whiskers: 3.75312" in letters and {"0.00000", "0.06250", "0.12345"} <= {*letters}


# ---- the whole of it ----


@pytest.mark.long
def test_the_whole_site_is_light_and_says_what_lists_and_files_say(tmp_path):
    """In one test, since the site takes half a minute."""
    folder = tmp_path / "site"
    written = write_site(folder, Path("results"))
    assert written["entries"] >= 112 and written["bytes"] < 15_000_000
    assert (folder / "index.html").stat().st_size + (folder / "site.css").stat().st_size < 300_000
    said = Counter(claim.verdict for claim in claims(Path("results"), Filter(paper="saobp")))
    rows = re.findall(r'<tr data-paper="saobp" data-verdict="([^"]+)"', (folder / "claims.html").read_text())
    assert Counter(rows) == said
    for name in ("consa-table1", "depth-fig7"):
        assert load_experiment(name).title in (folder / f"{name}.html").read_text()


# ---- in a browser ----


def browser_path():
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if browser_path() is None:
        pytest.skip("there is no Chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(made, browser):
    """Opens a page of the site in a window of its own; fails on a request that leaves the folder, or an error."""
    contexts, wrong = [], []

    def open_page(name, width=1280, **settings):
        context = browser.new_context(viewport={"width": width, "height": 900}, **settings)
        page = context.new_page()
        page.on("request", lambda one: wrong.append(one.url) if not one.url.startswith(("file:", "data:")) else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"file://{made[0]}/{name}.html")
        contexts.append(context)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not wrong


def column(page, index, table=".claims"):
    rows = page.locator(f"{table} tbody tr:visible")
    return [rows.nth(i).locator("td, th").nth(index).inner_text() for i in range(rows.count())]


def test_a_table_is_sorted_by_its_heads_with_mouse_and_keyboard(opened):
    page = opened("consa-table1")
    head = page.locator(".numbers thead button", has_text="PPL").first
    head.click()
    page.wait_for_selector("th[aria-sort=ascending]")
    numbers = [float(text.split("\n")[0]) for text in column(page, 1, ".numbers >> nth=0 >>")]
    assert numbers == sorted(numbers) and len(numbers) == 6
    head.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("th[aria-sort=descending]")
    again = [float(text.split("\n")[0]) for text in column(page, 1, ".numbers >> nth=0 >>")]
    assert again == numbers[::-1]


@pytest.mark.parametrize("scripts", (True, False))
def test_claims_are_filtered_with_scripts_and_without(opened, scripts):
    page = opened("claims", java_script_enabled=scripts)
    everything = page.locator(".claims tbody tr:visible").count()
    page.select_option("#verdict", "holds")
    page.select_option("#paper", "spiral")
    left = column(page, 2)
    assert 0 < len(left) < everything and all("holds" in text for text in left)
    assert all(text.startswith("spiral-") for text in column(page, 0))
    assert page.locator("#search").is_visible() == scripts
    if scripts:
        word = max(re.findall("[A-Z]?[a-z]+", column(page, 1)[0]), key=len)
        page.fill("#search", f" {word.upper()}  spiral ")
        found = column(page, 1)
        assert 0 < len(found) < len(left) and all(word.lower() in text.lower() for text in found)
        assert page.locator(".found").inner_text() == f"{len(found)} of {everything} lines"


def test_enter_and_the_way_back_keep_what_was_chosen(opened):
    page = opened("claims")
    page.select_option("#paper", "spiral")
    page.fill("#search", "looped")
    page.keyboard.press("Enter")
    left = column(page, 1)
    assert 0 < len(left) < 40 and page.url.endswith("claims.html")
    page.locator(".claims tbody tr:visible a").first.click()
    page.wait_for_url("**/spiral-loops.html*")
    page.go_back()
    page.wait_for_function("document.querySelector('.found').textContent.includes(' of ')")
    assert column(page, 1) == left


def test_long_forms_unfold(opened):
    page = opened("consa-table1", java_script_enabled=False)
    first = page.locator(".claims details").first
    assert not first.locator("li").first.is_visible()
    first.locator("summary").click()
    assert "by seed: 8" in first.locator("li").first.inner_text()


def test_light_and_dark_follow_the_reader(opened):
    seen = {}
    for scheme in ("light", "dark"):
        page = opened("consa-fig10", color_scheme=scheme)
        colour = "e => [getComputedStyle(e).color, getComputedStyle(e).fill]"
        body = page.evaluate("getComputedStyle(document.body).backgroundColor")
        seen[scheme] = body, page.locator("svg.figure text").first.evaluate(colour)[1]
    assert seen["dark"][0] == f"rgb{DARK}" and seen["light"][0] == "rgb(255, 255, 255)"
    assert seen["dark"][1] != seen["light"][1], "letters of a figure change with the page"


@pytest.mark.parametrize("width", (360, 1280))
def test_no_page_is_wider_than_its_window(opened, made, width):
    page = opened("index", width)
    for path in sorted(made[0].glob("*.html")):
        page.goto(f"file://{path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path.name


@pytest.mark.long
@pytest.mark.parametrize("scheme, width", (("light", 1280), ("dark", 360)))
def test_axe_finds_nothing(opened, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = opened("index", width, color_scheme=scheme)
    names = ("index", "claims", "audit", "methods", "runs", "consa-table1", "consa-fig10", "depth-fig7", "mine")
    for name in names:
        page.goto(f"{page.url.rpartition('/')[0]}/{name}.html")
        found = axe.run(page).response["violations"]
        assert not found, [(name, one["id"], one["nodes"][0]["html"][:200]) for one in found]
