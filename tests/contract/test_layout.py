"""Rules about the code itself: imports go one way, help is light, the engine knows no method."""

import ast
import re
import sys
from pathlib import Path

import torch

import hybridlab
from tests.conftest import ROOT, run_python

PACKAGE = ROOT / "hybridlab"
LEVELS = (
    ("errors", "arguments", "bars", "messages", "files", "plugins", "registry", "statistics")
    + ("attention", "plan", "config", "data", "models", "models.ledger", "training.store", "training")
    + ("evaluation", "analysis", "methods", "runs", "cli", "lab.papers", "lab.reporting", "lab.cli")
)
"""The parts of the package, each above those that it may import."""


def part_of(module):
    """The part that a module belongs to: one of LEVELS; None for the package itself and its program."""
    inner = module.removeprefix("hybridlab").removeprefix(".")
    parts = [part for part in LEVELS if f"{inner}.".startswith(f"{part}.")]
    return max(parts, key=len, default=None)


def imports(path):
    """Every module of ours that a file imports, at the top, inside a function, or for types only."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "hybridlab":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("hybridlab."))


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in PACKAGE.rglob("*.py")}


def test_imports_go_one_way():
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        part = part_of(module_name(path))
        if part is not None:
            others = {name: other for name in imports(path) if (other := part_of(name)) is not None}
            wrong += [
                f"{path.name}: {part} → {name}"
                for name, other in others.items()
                if LEVELS.index(other) > LEVELS.index(part)
            ]
    assert not wrong, wrong
    outside = {name for name in MODULES if part_of(name) is None}
    assert outside == {"hybridlab", "hybridlab.__main__", "hybridlab.lab", "hybridlab.moved"}


def test_the_order_is_that_of_the_page_for_contributors():
    chain = re.search(r"`(lab\.cli → [^`]*)`", (ROOT / "CONTRIBUTING.md").read_text())[1]
    assert re.split(r"\s*→\s*", chain) == list(LEVELS[LEVELS.index("attention") :])[::-1]


def test_the_library_knows_nothing_of_the_lab():
    """The package's front loads what is asked of it, and the program has both."""
    for name, path in MODULES.items():
        if not name.startswith("hybridlab.lab") and name not in ("hybridlab", "hybridlab.__main__"):
            assert not [one for one in imports(path) if one.startswith("hybridlab.lab")], name
    code = "import sys, hybridlab.cli.main\nprint([one for one in sys.modules if one.startswith('hybridlab.lab')])"
    assert run_python(code).strip() == "[]"


def test_at_most_twelve_folders():
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert len(folders) <= 12
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert all(f"| `hybridlab/{name}" in page for name in folders)


def test_no_circle_between_files():
    """Packages are left out: what stands in an `__init__` is imported by everything in its folder."""
    files = {name: path for name, path in MODULES.items() if path.name != "__init__.py"}
    graph = {name: {other for other in imports(path) if other in files} for name, path in files.items()}
    done, chain = set(), []

    def visit(name):
        assert name not in chain, " → ".join([*chain[chain.index(name) :], name])
        if name not in done:
            chain.append(name)
            for other in sorted(graph[name]):
                visit(other)
            done.add(chain.pop())

    for name in graph:
        visit(name)


def test_help_and_import_load_no_heavy_library():
    heavy = "[m for m in ('torch', 'transformers', 'datasets', 'pandas', 'matplotlib', 'lm_eval') if m in sys.modules]"
    assert run_python(f"import sys, hybridlab; print({heavy})").strip() == "[]"
    for arguments in (["--help"], ["pretrain", "--help"], ["data", "prepare", "--help"], ["runs", "--help"]):
        code = (
            f"import sys; sys.argv = ['hybridlab', *{arguments}]\n"
            "from hybridlab.lab.cli.main import run\n"
            f"try: run()\nexcept SystemExit: pass\nprint({heavy})"
        )
        assert run_python(code).strip().endswith("[]")


def test_help_imports_typer_and_the_commands_alone():
    """So that it takes less than three times as long as `import typer`."""
    code = (
        "import sys; sys.argv = ['hybridlab', '--help']\nimport typer\nbefore = set(sys.modules)\n"
        "from hybridlab.lab.cli.main import run\n"
        "try: run()\nexcept SystemExit: pass\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    more = run_python(code).splitlines()[-1].split()
    own = {name.removeprefix("hybridlab.") for name in more if name.startswith("hybridlab.")}
    assert {name for name in own if "cli" not in name.split(".")} == {
        "errors",
        "lab",
        "messages",
        "moved",
        "plugins",
        "registry",
    }
    others = {name.split(".")[0] for name in more} - {"hybridlab", "typer", "click", "shellingham"}
    assert others <= sys.stdlib_module_names and "importlib.metadata" not in more


def test_listing_showing_and_comparing_runs_and_waiting_for_a_job_need_no_torch():
    code = (
        "import sys\n"
        "import hybridlab.runs.catalogue, hybridlab.runs.cluster, hybridlab.training.store.cleaning\n"
        "import hybridlab.cli.runs, hybridlab.cli.runs_text, hybridlab.runs.pictures\n"
        "print('torch' in sys.modules)"
    )
    assert run_python(code).strip() == "False"


def test_plans_maps_configs_and_costs_need_no_torch():
    code = (
        "import sys\nimport hybridlab\n"
        "from hybridlab.models.ledger.summary import summarize\nfrom hybridlab.config.resolve import resolve\n"
        "summarize(resolve('rule-swa', 'consa-0.6b'), 8192)\nhybridlab.Plan, hybridlab.AttentionMap\n"
        "print('torch' in sys.modules)"
    )
    assert run_python(code).strip() == "False"


def test_the_store_is_the_only_writer_into_the_folder_of_a_run():
    """Others write what is no run's: shards, exported models, results, and files that a user names."""
    for part in ("training", "methods", "evaluation", "analysis", "runs"):
        for path in (path for path in (PACKAGE / part).rglob("*.py") if "store" not in path.parts):
            code = path.read_text()
            if path.name == "record.py":
                code = code.replace("write_json(results_dir / record_name(", "")
                code = code.replace("import read_object, rounded_floats, write_json", "")
            for call in ("write_json", "write_text", "new_folder", "rmtree", ".unlink(", '.open("w', '.open("a'):
                assert call not in code, f"{path.name}: {call}"


def test_the_engine_knows_no_method_by_name():
    names = ("sgt", "consa", "spiral", "saobp", "midas", "lidas", "mask", "entropy", "belief", "lagrang")
    objectives = ("objective.py", "finetuning.py")  # what a model is trained to do is not the engine's concern
    for path in (path for path in (PACKAGE / "training").glob("*.py") if path.name not in objectives):
        code = path.read_text().lower().replace("masks.json", "").replace("cross_entropy", "")
        assert not [name for name in names if name in code], path


def test_files_and_functions_stay_short():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert len(text.splitlines()) <= 700, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 70, f"{path}: {node.name}"


# ---- reading paths ----


def reading_order():
    """The files that docs/architecture.md names, in its order."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"^\d+\. `(hybridlab/[\w/]+\.py)`", page, re.MULTILINE)
    assert len(named) >= 9
    return named


def test_the_files_to_read_are_as_long_as_architecture_says():
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`(hybridlab/[\w/]+\.py)` \((\d+) lines\)", page)
    assert {name for name, _ in named} >= {*reading_order()}
    for name, said in named:
        assert abs(len((ROOT / name).read_text().splitlines()) - int(said)) <= 15, name


def test_a_forward_pass_is_read_in_the_files_that_architecture_names():
    """Down to the attention of a visit: its functions stand in three files, and between `forward` and the call of the
    attention kinds lie five frames of the package."""
    deepest, files, stack = [], set(), []

    def watch(frame, event, _):
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(ROOT / "hybridlab")):
            stack.append((Path(name).relative_to(ROOT).as_posix(), frame.f_code.co_name))
            if stack[-1] == ("hybridlab/attention/heads.py", "attend"):
                deepest.append(tuple(stack))
        elif event == "return" and name.startswith(str(ROOT / "hybridlab")):
            stack.pop()

    model = hybridlab.build_model("vanilla", size="tiny")
    tokens = torch.zeros(1, 16, dtype=torch.long)
    model(tokens)
    sys.setprofile(watch)
    try:
        model(tokens)
    finally:
        sys.setprofile(None)
    assert len(deepest) == model.shape.layers
    for frames in deepest:
        assert [name for _, name in frames] == ["forward", "run", "visit", "visit", "forward", "attend"]
        files |= {file for file, _ in frames}
    order = reading_order()
    assert files <= {*order} and sorted(files, key=order.index) == [file for file in order if file in files]
