"""Small experiments and records with figures chosen by hand, and the cases that verdicts are tested on."""

from dataclasses import dataclass

import yaml

from hybridlab.evaluation.results import LossResult, Results
from hybridlab.lab.papers.analytic import analytic
from hybridlab.lab.papers.claims.comparison import in_words
from hybridlab.lab.papers.claims.judge import judge
from hybridlab.lab.papers.experiment import Benchmark, Claim, Column, Experiment, Row
from hybridlab.lab.papers.formula import Measure
from hybridlab.lab.papers.ids import experiments_folder
from hybridlab.runs.record import Record, Speed, with_weights
from hybridlab.statistics import Measurement, mean_and_error
from tests.records import make_benchmark, make_record

CASES = []


@dataclass(frozen=True)
class Case:
    """A claim, what it is judged on, whether it holds, and parts of its evidence (`^…` stands for its start)."""

    kind: str
    word: str
    test: dict
    given: dict
    claim: dict
    evidence: tuple[str, ...] = ()
    fields: tuple[tuple[str, object], ...] = ()

    def verdict(self):
        test = {"kind": self.kind, **self.test}
        claim = Claim(text="a sentence", source="section 1", test=test, **self.claim)
        return judge(claim, **{**NOTHING, **self.given})

    def problem(self):
        """How the verdict differs from the expected one; None where it does not."""
        verdict = self.verdict()
        if verdict.as_json()["verdict"] != self.word:
            return f"{verdict.word} instead of {self.word}: {verdict.evidence}"
        text = said(verdict)
        missing = [part for part in self.evidence if part not in f"^{text}$"]
        if missing:
            return f"{missing} not in {text!r}"
        other = {name: found for name, value in self.fields if (found := _field(verdict, name)) != value}
        return f"{other} instead of {dict(self.fields)}" if other else None


def said(verdict):
    """All that a verdict says: a direction that is known alone, its comparisons, and its evidence."""
    if verdict.deciding is None:
        return verdict.evidence
    direction = verdict.direction if verdict.word == "open" else ""
    return "; ".join(filter(None, (direction, *map(in_words, verdict.comparisons), verdict.evidence)))


def _field(verdict, name):
    """A field of a verdict; `p_digits` is its p to four decimals, `metrics` what its comparisons are of, `controlled`
    the verdict on each control by what that asks."""
    if name == "controlled":
        return {control.in_words: control.verdict.word for control in verdict.controls}
    if name == "metrics":
        return [one["metric"] for one in verdict.comparisons]
    return round(verdict.p, 4) if name == "p_digits" else getattr(verdict, name)


WORDS = {True: "holds", False: "fails", None: "open"}


def case(kind, outcome, test=None, given=None, evidence="", claim=None, **fields):
    """Add a case. outcome: holds (True), fails (False), open (None), or another word. test: the claim's arguments.
    given: what `judge` gets; what is left out is empty. claim: further fields of the claim. evidence: a text, or
    several. fields: of the verdict."""
    parts = (evidence,) if isinstance(evidence, str) else tuple(evidence)
    word = outcome if isinstance(outcome, str) else WORDS[outcome]
    CASES.append(Case(kind, word, test or {}, given or {}, claim or {}, parts, tuple(fields.items())))


def says(outcome, holds, given=None, evidence="", claim=None, **fields):
    """Add a case of an expression."""
    case("says", outcome, {"holds": holds}, given, evidence, claim, **fields)


def judged_on(holds, given):
    """The verdict on an expression."""
    return judge(Claim(text="a sentence", source="section 1", test=holds), **{**NOTHING, **given})


# ---- experiments ----

SHARED = {
    name: Measure.model_validate(measure)
    for path in ("_curves.yaml", "consa/_masks.yaml", "sgt/_entropies.yaml", "spiral/_loops.yaml")
    for name, measure in yaml.safe_load((experiments_folder() / path).read_text())["measures"].items()
}
"""The measures that files of several experiments share; the experiments of cases have all of them."""


@analytic
def given_number(number: float) -> float:
    """The number of the row, so that tests of exact figures need no model."""
    return number


def table(printed=None, numbers=None, given=None, factor=1.0, benchmark=None):
    """An experiment of a table.

    printed: row → column → the paper's number. numbers: row → what column `exact` computes. given: row → its arguments.
    """
    printed = printed or {}
    numbers = numbers or {}
    names = list(dict.fromkeys(name for cells in printed.values() for name in cells))
    columns = [Column(name=name, title=name, kind="trained") for name in names if name != "exact"]
    call = {"function": "given_number"}
    columns.append(Column(name="exact", title="exact", kind="exact", factor=factor, compute=call if numbers else None))
    rows = [
        Row(
            name=short,
            short=short,
            cell=f"run {short}",
            paper=printed.get(short, {}),
            given=(given or {}).get(short, {}),
        )
        if short not in numbers
        else Row(name=short, short=short, paper=printed.get(short, {}), given={"number": numbers[short]})
        for short in dict.fromkeys([*printed, *numbers])
    ]
    made = Experiment(
        id="toy-table1", title="t", paper="toy", source="s", columns=columns, rows=rows, benchmark=benchmark
    )
    return made.model_copy(update={"measures": SHARED})


def measures_of(**measures):
    """An experiment with these measures: name → (formula, name in the formula → path), and a unit if it has one."""
    made = {
        name: {"title": f"title of {name}", "formula": formula, "of": of, "unit": "".join(unit)}
        for name, (formula, of, *unit) in measures.items()
    }
    return Experiment(id="toy-fig1", title="t", paper="toy", source="s", measures=made)


def speeds_of(models, sizes):
    """A benchmark's settings. models: name → arch."""
    return Benchmark(
        models={name: {"arch": arch} for name, arch in models.items()},
        sizes={"paper": sizes},
        batches=[1],
        prompt=8,
        new_tokens=8,
        rounds=2,
        machines={},
    )


NOTHING = {"experiment": table(), "records": {}}


# ---- records ----


def loss(windows):
    mean = mean_and_error(windows)
    return LossResult(loss=mean, perplexity=mean, bits_per_byte=mean, windows=windows)


def record(
    windows=(3.0, 3.1),
    extrapolation=None,
    probes=None,
    hooks=None,
    controller=None,
    flops=100.0,
    history=None,
    **changes,
):
    """The record of a finished run. windows: its validation losses. controller: (kind and settings, what it left)."""
    settings, left = controller or (None, None)
    hooks = dict(hooks or {}) | ({settings["kind"]: left} if settings else {})
    results = Results(
        causality={"largest_change": 0.0},
        validation=loss(list(windows)),
        extrapolation={factor: loss(list(longer)) for factor, longer in (extrapolation or {}).items()},
        probes=probes or {},
    )
    made = {"config": {"controller": settings}, "flops": flops, "history": history or {}, "results": results}
    return make_record(hooks=hooks, **made | changes)


def runs(**cells):
    """cell → seed → record. A cell is a list with one record or validation loss for each seed, or a single record."""
    built = {name: [made(run) for run in _listed(seeds)] for name, seeds in cells.items()}
    every = [run for listed in built.values() for run in listed]
    return {
        name: {seed: with_weights([*every, run])[run.hash] for seed, run in enumerate(listed)}
        for name, listed in built.items()
    }


def _listed(seeds):
    return [seeds] if isinstance(seeds, Record) else seeds


def made(run):
    """A record as it is, or the record of a validation loss."""
    return run if isinstance(run, Record) else record([run])


def measured(**cells):
    """What a claim about cells is judged on."""
    return {"records": runs(**cells)}


NOISE = (0.004, -0.003, 0.001, -0.002, 0.0)
"""How seeds differ; a difference of 0.1 is resolved with any three of them."""


def around(level, noise=NOISE, seeds=3):
    """Numbers of so many seeds around a level."""
    return [level + by for by in noise[:seeds]]


def benchmark(**groups):
    """What a benchmark has measured: group → model → part → seconds of each round, at batch 1."""

    def speed(seconds):
        one = Measurement(value=1.0)
        return Speed(tokens_per_second=one, ratio=one, time_ratio=one, seconds=seconds)

    results = {
        group: {model: {"1": {part: speed(s) for part, s in parts.items()}} for model, parts in models.items()}
        for group, models in groups.items()
    }
    return {"benchmark": make_benchmark(results)}
