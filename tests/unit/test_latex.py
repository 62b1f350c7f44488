"""LaTeX tables: every text escaped in one pass, every row whole, nothing wider than the page."""

import json
import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridlab.lab.papers.pages import as_read
from hybridlab.lab.reporting.entry import write_entry
from hybridlab.lab.reporting.latex import LINE, Panel, escape, tex_table
from tests.conftest import PUBLISHED
from tests.experiments import experiment_ids, load_experiment

MACROS = set(
    re.findall(
        r"\w+",
        """
toprule midrule bottomrule begin end par parbox scriptsize medskip smallskip textit caption label centering
footnotesize setlength
tabcolsep resizebox ifdim width linewidth else fi raggedright arraybackslash textbackslash textasciitilde
textasciicircum textless textgreater textbar textbullet dots S P copyright pm times div cdot circ leq geq neq
approx sim propto to leftarrow leftrightarrow uparrow downarrow Rightarrow in infty sum prod surd partial nabla
ell Vert cap cup forall exists odot oplus ll gg frac lceil rceil lfloor rfloor alpha beta gamma delta epsilon
zeta eta theta iota kappa lambda mu nu xi o pi rho sigma tau upsilon phi chi psi omega Gamma Delta Theta Lambda
Xi Pi Sigma Upsilon Phi Psi Omega
""",
    )
)
NASTY = "a_b & 50% of #1 $x^2$ {~} \\ <α> λ φ ≤ ≥ → ρ² − – … \"q\" `t` [2] * x|y --set ''a'' 中 \x00 é ½ §"


def check(text):
    """Braces and environments are balanced, every row has the columns of its tabular, only known macros occur."""
    text = re.sub(r"^%.*$", "", text, flags=re.MULTILINE)
    assert set(re.findall(r"\\([A-Za-z]+)", text)) <= MACROS
    assert set(re.findall(r"\\([^A-Za-z])", text)) <= set("\\_&%#${}`")
    bare = re.sub(r"\\[\\_&%#${}`]", "", text)
    assert not set(bare) & set("#~") and bare.count("$") % 2 == 0
    assert not re.search(r"%(?!\n)", bare), "a percent sign that begins no line end"
    depth = 0
    for letter in bare:
        depth += (letter == "{") - (letter == "}")
        assert depth >= 0
    assert depth == 0
    assert sorted(re.findall(r"\\begin{(\w+)}", text)) == sorted(re.findall(r"\\end{(\w+)}", text))
    for spec, body in re.findall(r"\\begin{tabular}{([^\n]*)}\n(.*?)\\end{tabular}", text, re.DOTALL):
        columns = len(re.findall(r"[lr]|p{[^}]*}", re.sub(r">{[^}]*}", "", spec)))
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert rows and all(re.sub(r"\\[\\&]", "", row).count("&") == columns - 1 for row in rows)


texts = st.text(st.characters(codec="utf-8"), max_size=40)


@given(texts)
def test_any_text_is_escaped_to_something_that_latex_prints(text):
    check(escape(text))
    assert escape(text).isprintable() and escape(text).count("\n") == 0


@given(st.lists(st.lists(texts, min_size=4, max_size=4), min_size=1, max_size=5), texts)
def test_any_table_is_whole(rows, title):
    check(tex_table("t", title, [Panel(title, ["", "a", "b", title], rows, [False, True, False, False])]))


def test_the_escape_is_one_pass():
    assert escape("\\") == r"\textbackslash{}" and escape("{}") == r"\{\}" and escape("a & b_c 5%") == r"a \& b\_c 5\%"
    assert escape("ρ ≤ 0.5 → λ²") == r"$\rho$ $\leq$ 0.5 $\to$ $\lambda$$^{2}$"
    assert escape("--set") == "-{}-set" and escape("[2]") == "{[}2{]}" and escape("中") == "U+4E2D"


def test_a_wide_panel_is_cut_into_parts_that_repeat_the_names():
    heads = ["", *(f"column {i}" for i in range(20))]
    rows = [["a name", *(f"12.34 ± 0.56 ({i})" for i in range(20))]]
    text = tex_table("wide", "Wide", [Panel("All", heads, rows, [False] + [True] * 20)])
    check(text)
    parts = re.findall(r"\\midrule\n(.*)\n", text)
    assert len(parts) > 2 and all(part.startswith("a name & ") and len(part) < 1.5 * LINE for part in parts)
    assert sum(part.count("&") for part in parts) == 20 and "All (continued)" in text


def test_a_long_table_is_cut_into_pages_with_labels_of_their_own():
    rows = [[f"row {i}", "1"] for i in range(120)]
    text = tex_table("long", "Long", [Panel("", ["", "a"], rows, [False, True])])
    check(text)
    assert text.count(r"\begin{table}") == 3 and r"\label{tab:long-3}" in text and "(part 2 of 3)" in text
    assert all(f"row {i} & 1" in text for i in range(120))


@pytest.fixture(scope="module")
def all_tables(tmp_path_factory):
    """The folder of every table at its cheapest scale, from the published records and plans."""
    results = tmp_path_factory.mktemp("results")
    (results / "published").symlink_to(PUBLISHED)
    tables = [load_experiment(name) for name in experiment_ids() if load_experiment(name).kind == "table"]
    return [write_entry(one, one.available_scales()[0], results, also=[".tex"])[1] for one in tables]


@pytest.mark.long
def test_every_shipped_table_is_whole_and_the_published_one(all_tables):
    for folder in all_tables:
        check((folder / "table.tex").read_text())
        data = as_read(json.loads((folder / "table.json").read_text()))
        if data["planned_seeds"] and not data["runs"]:
            assert not (PUBLISHED / folder.parent.name / folder.name).exists(), "it waits for its runs"
            continue
        page = folder.relative_to(folder.parents[1]) / "table.md"
        command = f"hybridlab report {page.parts[0]} --scale {page.parts[1]} --publish"
        assert (folder / "table.md").read_text() == (PUBLISHED / page).read_text(), f"run `{command}`"


ENGINE = next((name for name in ("tectonic", "pdflatex", "xelatex", "lualatex") if shutil.which(name)), None)


@pytest.mark.skipif(ENGINE is None, reason="no TeX here")
def test_every_table_compiles_and_fits_the_page(all_tables, tmp_path):
    nasty = tex_table("n", NASTY, [Panel(NASTY, [NASTY, "b"], [[NASTY, "[1]"], ["*", NASTY]], [False, False])])
    (tmp_path / "nasty.tex").write_text(nasty)
    paths = [*(folder / "table.tex" for folder in all_tables), tmp_path / "nasty.tex"]
    inputs = "\n".join(rf"\input{{{path}}}\clearpage" for path in paths)
    document = f"\\documentclass{{article}}\n\\usepackage{{array,booktabs,graphicx}}\n\\begin{{document}}\n{inputs}\n"
    (tmp_path / "all.tex").write_text(document + "\\end{document}\n")
    options = ["--keep-logs"] if ENGINE == "tectonic" else ["-interaction=nonstopmode", "-halt-on-error"]
    done = subprocess.run([ENGINE, *options, "all.tex"], cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0 and (tmp_path / "all.pdf").is_file(), done.stdout[-2000:]
    log = (tmp_path / "all.log").read_text(errors="replace")
    assert not re.findall(r"Overfull \\[hv]box.*|Float too large.*|.*undefined.*", log)
