"""Rules about the code itself: imports go one way, help is light, the engine knows no method."""

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "hybridlab"
LEVELS = [
    {"errors", "files"},
    {"config", "plan"},
    {"models", "data", "accounting"},
    {"training"},
    {"structure", "evaluation", "analysis"},
    {"reproduction", "reporting"},
    {"cli"},
]
LEVEL_OF = {name: number for number, names in enumerate(LEVELS) for name in names}


def imports(path):
    """Every module of ours that a file imports, whether at the top or inside a function, except for type checking."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("hybridlab."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("hybridlab."))


def test_imports_go_one_way():
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if part in LEVEL_OF:
            wrong += [f"{path.name}: {part} → {i}" for i in imports(path) if LEVEL_OF[i] > LEVEL_OF[part]]
    assert not wrong, wrong
    assert {p.parts[len(PACKAGE.parts)].removesuffix(".py") for p in PACKAGE.rglob("*.py")} <= {*LEVEL_OF, "__init__"}


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_help_and_import_load_no_torch():
    heavy = "[m for m in ('torch', 'transformers', 'datasets', 'pandas', 'matplotlib', 'lm_eval') if m in sys.modules]"
    assert run_python(f"import sys, hybridlab; print({heavy})").strip() == "[]"
    for arguments in (["--help"], ["pretrain", "--help"], ["data", "prepare", "--help"]):
        code = (
            f"import sys; sys.argv = ['hybridlab', *{arguments}]\n"
            "from hybridlab.cli.main import run\n"
            f"try: run()\nexcept SystemExit: pass\nprint({heavy})"
        )
        assert run_python(code).strip().endswith("[]")


def test_plans_maps_configs_and_costs_need_no_torch():
    code = (
        "import sys\nimport hybridlab\n"
        "from hybridlab.accounting.summary import summarize\nfrom hybridlab.config.resolve import resolve\n"
        "summarize(resolve('rule-swa', 'consa-0.6b'), 8192)\nhybridlab.Plan, hybridlab.AttentionMap\n"
        "print('torch' in sys.modules)"
    )
    assert run_python(code).strip() == "False"


def test_the_engine_knows_no_method_by_name():
    names = ("sgt", "consa", "spiral", "saobp", "midas", "lidas", "mask", "entropy", "belief", "lagrang")
    for path in (PACKAGE / "training").glob("*.py"):
        code = path.read_text().lower().replace("masks.json", "").replace("cross_entropy", "")
        assert not [name for name in names if name in code], path


def test_files_and_functions_stay_short():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert len(text.splitlines()) <= 420, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 70, f"{path}: {node.name}"
