"""Verdicts of the committed tables recomputed from the JSON of the records with scipy alone.

Nothing of hybridlab's statistics or claim code is used: only the experiment files (which pairs a claim compares), the
tables (which runs they name, and what they say), and the records.
"""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from hybridlab.files import read_object, write_json
from hybridlab.lab.papers.claims.judge import judge
from hybridlab.lab.papers.experiment import Claim
from hybridlab.lab.papers.pages import as_read
from tests.conftest import PUBLISHED
from tests.experiments import experiment_ids, load_experiment
from tests.pages import LADDERS
from tests.unit.verdicts.building import NOISE, record, table

RESULTS = PUBLISHED


_SIDE = r"(?P<m>[\w.|*-]+)?\[(?P<a>[^\]]*)\]"
_FORMS = {
    "pair": rf"(?:(?P<t>[\d.]+) \* )?{_SIDE} (?P<s>[<>]) (?:(?P<u>[\d.]+) \* )?\[(?P<b>[^\]]*)\]",
    "gap": rf"(?:(?P<t>[\d.]+) \* )?{_SIDE} - (?:(?P<u>[\d.]+) \* )?\[(?P<b>[^\]]*)\] (?P<s><=|<|>) (?P<v>-?[\d.]+)",
    "abs": rf"abs\({_SIDE} - \[(?P<b>[^\]]*)\]\) (?P<s>[<>]) (?P<v>[\d.]+)",
    "mean": rf"{_SIDE} (?P<s>[<>]) mean\(\[(?P<b>[^\]]*)\]\)",
}


def kind_of(test):
    """An expression that compares the runs of cells, as the kind that it is with its arguments, by a reader of its own;
    None for another one."""
    parts, kinds, pairs, metrics = test["holds"].split(" and "), set(), [], None
    more = {}
    for part in parts:
        form, found = next(((f, m) for f, one in _FORMS.items() if (m := re.fullmatch(one, part))), (None, None))
        if form is None or found["m"] in ("printed", "computed"):
            return None
        given = found.groupdict()
        metrics = metrics or ["results.validation.loss" if m == "loss" else m for m in given["m"].split("|")]
        left, right = (given[side].split(", ") for side in "ab")
        times = float(given.get("t") or given.get("u") or 1)
        if form == "mean":
            more |= {"cell": left[0], "over": right}
            kinds.add("lower_than_mean" if given["s"] == "<" else "higher_than_mean")
            continue
        count = max(len(left), len(right))
        pairs += zip(left * (count // len(left)), right * (count // len(right)), strict=True)
        value = float(given.get("v") or 0)
        if form == "abs":
            kinds.add("equivalent" if given["s"] == "<" else "differs")
            more["margin" if given["s"] == "<" else "by"] = value
        elif given["s"] == "<=":
            kinds.add("lower_or_equal")
            more["margin"] = value
        else:
            kinds.add("lower" if given["s"] == "<" else "higher")
            more |= {"times": times, "by": abs(value)}
    if "over" in more:
        kind = next(iter(kinds - {"lower", "higher"}))
        return {"kind": kind, **more, "also": [b for _, b in pairs], "metric": _whole(metrics[0])}
    if len(kinds) > 1:
        return None
    return {"kind": kinds.pop(), "pairs": [list(pair) for pair in pairs], "metrics": list(map(_whole, metrics)), **more}


def _whole(metric):
    return metric if metric.startswith("results.") or "." not in metric else f"results.{metric}"


def number(record, path):
    here = record
    for part in path.split("."):
        here = here.get(part) if isinstance(here, dict) else None
    return here["value"] if isinstance(here, dict) else here


def compared(test, cell_of):
    """(first cell, cells whose mean is the second, metric) of every comparison of a claim."""
    if test["kind"].endswith("_than_mean"):
        sides = [test["over"], *([other] for other in test.get("also", []))]
        return [(test["cell"], side, test.get("metric", "results.validation.loss")) for side in sides]
    metrics = test.get("metrics") or [test.get("metric", "results.validation.loss")]
    return [(left, [right], metric) for metric in metrics for left, right in test["pairs"]]


def lowest_and_highest(test, metric):
    """Between which numbers a difference, or one with a factor, must lie; losses have no highest one."""
    if re.search(r"\.loss\b", metric) or not re.search(r"tasks\.|accuracy|choices_mean", metric):
        return -math.inf, math.inf
    times = test.get("times", 1.0)
    ours, theirs = (times if test["kind"] == kind else 1.0 for kind in ("lower", "higher"))
    return -theirs, ours


def constant(value, bound, n, ends):
    """Markov: the largest chance that n seeds reach this value if the mean is at the bound."""
    room, way = (bound - ends[0], value - ends[0]) if value > bound else (ends[1] - bound, ends[1] - value)
    return (room / way) ** n if math.isfinite(way) else 1.0


def one(test, differences, metric=""):
    """(p, whether the mean is as claimed: 1, -1 or 0) of one comparison."""
    kind, n = test["kind"], len(differences)
    if kind == "differs":
        p, inside = one({"kind": "equivalent", "margin": test["by"]}, differences, metric)
        return p, -inside
    upwards = kind.startswith("higher")
    by = test.get("by", 0.0) * (-1 if upwards else 1)
    mean = np.mean(differences) + by
    error = np.std(differences, ddof=1) / math.sqrt(n)
    if not np.any(differences):
        return 1.0, 0
    alike = error * math.sqrt(n) <= 1e-9 * np.max(np.abs(differences))
    ends = lowest_and_highest(test, metric)
    if kind in ("lower", "higher", "lower_than_mean", "higher_than_mean"):
        side = int(np.sign(mean)) * (1 if upwards else -1)
        if alike:
            return min(1.0, 2 * constant(differences[0], -by, n, ends)), side
        return 2 * stats.t.sf(abs(mean) / error, n - 1), side
    high = test["margin"]
    low = -math.inf if kind == "lower_or_equal" else -high
    inside = low < mean < high
    if alike and inside:
        return max(constant(differences[0], bound, n, ends) for bound in (low, high) if math.isfinite(bound)), 1
    if alike:
        return min(1.0, 2 * constant(differences[0], high if mean >= high else low, n, ends)), -1
    to_high = stats.t.sf((high - mean) / error, n - 1)
    to_low = 0.0 if low == -math.inf else stats.t.sf((mean - low) / error, n - 1)
    p = max(to_high, to_low)
    return (p, 1) if inside else (min(1.0, 2 * (1 - p)), -1)


def word(test, samples, metrics=()):
    """The verdict on a claim whose comparisons have these differences of these metrics, one for each seed."""
    if not any(len(sample) for sample in samples):
        return "not run"
    of = metrics or [""] * len(samples)
    found = [one(test, *each) if len(each[0]) >= 3 else (1.0, 0) for each in zip(samples, of, strict=True)]
    order = sorted(range(len(found)), key=lambda i: found[i][0])
    resolved, rejecting = {}, True
    for rank, i in enumerate(order):
        rejecting = rejecting and found[i][0] * (len(found) - rank) < 0.05
        resolved[i] = rejecting and found[i][1] != 0
    if any(resolved[i] and found[i][1] < 0 for i in resolved):
        return "fails"
    return "holds" if all(resolved.values()) else "open"


def claims_of(results):
    """(id and scale, test, runs of the table, claim of the table, row → cell) of every claim of these kinds."""
    for identifier in experiment_ids():
        files = [*results.glob(f"{identifier}/*/table.json"), *results.glob(f"{identifier}/*/figure.json")]
        experiment = load_experiment(identifier) if files else None
        for path in files:
            data = as_read(json.loads(path.read_text()))
            said = {claim["text"]: claim for claim in data["claims"]}
            for claim in experiment.claims:
                test = kind_of(claim.test) if claim.test["kind"] == "says" else None
                if test is not None and claim.text in said:
                    cell_of = {row.short: row.cell for row in experiment.rows}
                    name = f"{identifier} at {path.parent.name}: {claim.text}"
                    other_rates = confounded(experiment, path.parent.name, compared(test, cell_of))
                    yield name, test, data, said[claim.text], cell_of, other_rates


def confounded(experiment, scale, comparisons):
    """Whether arms of one comparison have different values of a swept setting, of which one was chosen by another
    metric than that of the comparison, or a value at an end of its grid."""
    places = experiment.scales[scale].places if scale in experiment.scales else {}
    for left, right, metric in comparisons:
        values, own, ends = [], [], []
        for cell in (left, *right):
            owner, name = (experiment.other(places[cell][0]), places[cell][1]) if cell in places else (experiment, cell)
            chosen = owner.sweep.chosen if owner.sweep and owner.sweep.scale == scale else {}
            here = chosen.get(metric, {}).get(name)
            first = chosen.get(owner.sweep.metrics[0], {}).get(name) if chosen else None
            # A run of another experiment is the one that the first metric chose there.
            value = here if here is not None and cell not in places else first
            if value is not None:
                values.append(value)
                own.append(here == value)
                ends += [min(owner.sweep.grid), max(owner.sweep.grid)]
        if len(set(values)) > 1 and not all(own) or set(values) & set(ends):
            return True
    return False


def survives(data, said):
    """Whether a claim is resolved after Benjamini and Hochberg's correction over the tested claims of its page."""
    tested = {}
    for claim in data["claims"]:
        numbers = str([(one["values"], one["asked"]) for one in claim.get("comparisons", ()) if one["n"] >= 3])
        if claim.get("p") is not None and claim["verdict"] != "cannot tell here":
            tested.setdefault(numbers, claim["p"])
    own = str([(one["values"], one["asked"]) for one in said.get("comparisons", ()) if one["n"] >= 3])
    if own not in tested:
        return True
    return stats.false_discovery_control(list(tested.values()))[list(tested).index(own)] <= 0.05


def difference(test, first, rest):
    """What one seed says: the first arm less the mean of the others, with the factor of "far more"."""
    ours, theirs = (test.get("times", 1.0) if test["kind"] == kind else 1.0 for kind in ("lower", "higher"))
    return ours * first - theirs * np.mean(rest)


def samples_of(test, runs, cell_of, results, without=()):
    """The differences of every comparison, from the records of the seeds that all arms have, but those left out."""
    samples = []
    for left, right, metric in compared(test, cell_of):
        arms = [runs.get(cell, {}) for cell in (left, *right)]
        values = []
        for seed in sorted(set.intersection(*map(set, arms)) - {*without}, key=int):
            sides = [read_object(results / "records" / f"{arm[seed]}.json.zst", "record") for arm in arms]
            values.append([number(side, metric) for side in sides])
        samples.append([difference(test, first, rest) for first, *rest in values if None not in (first, *rest)])
    return samples


def unsettled(digest, results):
    """Whether a run, or one whose weights or masks it has, learned masks that had not settled at its end."""
    path = results / "records" / f"{digest}.json.zst"
    if not path.exists():
        return False
    found = read_object(path, "record")
    own = any(hook.get("settled") is False for hook in found.get("hooks", {}).values())
    return own or any(unsettled(parent, results) for parent in found.get("parents", ()))


def unsettled_seeds(arms, results):
    return {seed for arm in arms for seed, digest in arm.items() if unsettled(digest, results)}


def disagreements(results):
    """What the tables say that the records do not, and the number of claims with three seeds or more."""
    wrong, checked = [], 0
    for name, test, data, said, cell_of, other_rates in claims_of(results):
        samples = samples_of(test, data["runs"], cell_of, results)
        if max(map(len, samples)) < 3:
            continue
        checked += 1
        pairs = compared(test, cell_of)
        metrics, found = [metric for *_, metric in pairs], word(test, samples, [metric for *_, metric in pairs])
        arms = [data["runs"].get(cell, {}) for left, right, _ in pairs for cell in (left, *right)]
        silent = other_rates
        if left_out := unsettled_seeds(arms, results):
            rest = samples_of(test, data["runs"], cell_of, results, left_out)
            silent = silent or min(map(len, rest)) < 3 or word(test, rest, metrics) != found
        expected = "cannot tell here" if silent else on_its_page(found, data, said)
        if said["verdict"] != expected:
            wrong.append(f"{name}: {said['verdict']} in the table, {expected} from the records")
    return wrong, checked


def on_its_page(expected, data, said):
    """The verdict after the claim's controls and the correction over its page."""
    controls = [control["verdict"] for control in said["controls"]]
    if "fails" in controls or any(c["verdict"] == "open" and (c["n"] or 0) >= 3 for c in said["controls"]):
        return "cannot tell here"
    if any(control != "holds" for control in controls):
        expected = "open"
    return "open" if expected in ("holds", "fails") and not survives(data, said) else expected


def test_every_committed_verdict_follows_from_the_records():
    wrong, checked = disagreements(RESULTS)
    if not checked:
        pytest.skip("no record with three seeds is committed")
    assert not wrong, "\n".join(wrong)


TESTS = [
    "loss[a] < [b]",
    "loss[a] > [b]",
    "loss[a] < [b, c] and [b] < [c]",
    "loss[c, b] > [b, a]",
    "abs(loss[a] - [b]) < 0.02",
    "abs(loss[a] - [b, c]) < 0.05",
    "loss[a, b] - [b, c] <= 0.02",
    "loss[a, b] < [b, c]",
    "1.05 * loss[a] - [b] < -0.01",
    "loss[a, c] > 1.02 * [b]",
    "abs(loss[a] - [b]) > 0.02",
    "loss[a] < mean([b, c])",
    "loss[c] > mean([a, b]) and [c] > [b]",
]


def loss(made):
    return made.results.validation.loss.value


@pytest.mark.parametrize("seeds", [1, 2, 3, 5, 8])
def test_both_ways_agree_on_made_up_records(seeds, tmp_path):
    """Positive control: on 40 draws of three arms each, with every word among the verdicts from five seeds on."""
    chance, seen = np.random.default_rng(seeds), set()
    for _ in range(40):
        spread = chance.choice([0.0, 0.003, 0.03])
        losses = {
            cell: level + chance.normal(0, spread, seeds)
            for cell, level in zip("abc", chance.normal(3, 0.03, 3), strict=True)
        }
        records = {cell: {seed: record([float(x)]) for seed, x in enumerate(levels)} for cell, levels in losses.items()}
        for text in TESTS:
            verdict = judge(Claim(text="t", source="s", test=text), table(), records)
            test = kind_of({"holds": text})
            samples = [
                [
                    difference(test, loss(records[left][s]), [loss(records[one][s]) for one in right])
                    for s in range(seeds)
                ]
                for left, right, _ in compared(test, {})
            ]
            assert verdict.word == word(test, samples), (test, samples, verdict)
            seen.add(verdict.word)
    assert seen == ({"open"} if seeds < 3 else {"open", "holds", "fails"})


def test_a_table_that_says_something_else_is_found(tmp_path):
    """Positive control: a committed table whose verdict the records contradict."""
    identifier = "consa-fig3"
    shown = "loss[dense/2] < [layer-75/2]"
    claim = next(one for one in load_experiment(identifier).claims if one.test.get("holds") == shown)
    runs = {}
    (tmp_path / "records").mkdir()
    for cell, level in (("dense/2", 3.0), ("layer-75/2", 3.2)):
        for seed, by in enumerate(NOISE[:4] if level == 3.0 else NOISE[1:]):
            digest = f"{cell.replace('/', '-')}{seed}"
            made = record([level + by]).model_dump(mode="json")
            write_json(tmp_path / "records" / f"{digest}.json.zst", made)
            runs.setdefault(cell, {})[str(seed)] = digest
    folder = tmp_path / identifier / "desk"
    folder.mkdir(parents=True)
    for said, wrong in (("holds", 0), ("open", 1), ("fails", 1)):
        data = {"claims": [{"text": claim.text, "verdict": said, "controls": []}], "runs": runs}
        (folder / "figure.json").write_text(json.dumps(data))
        found, checked = disagreements(tmp_path)
        assert checked == 1 and len(found) == wrong


# ---- slopes along a ladder of sizes ----


def steps_above(record, flops):
    """How many doublings of the logged steps in percent, or of their FLOPs in 10¹², have a loss above 2.4 nats."""
    above = np.array(record["history"]["loss"]) > 2.4
    spent = np.diff(record["history"]["flops"], prepend=0.0) if flops else np.full(len(above), 100 / len(above))
    first = flops and not above[0]  # what the first logged step has cost is counted in any case
    return math.log2((spent[above].sum() + first * spent[0]) / (1e12 if flops else 1))


LEARNING = {
    "log_after": lambda record: steps_above(record, False),
    "log_cost": lambda record: steps_above(record, True),
}


def missed(text, runs, searched):
    """Whether an arm does better at the rate of another metric than at that of the one that is read, in every seed or
    on the whole (Student's t, paired by seed). searched: the metrics that chose rates; lower numbers are better."""
    metric, read, arms = read_in(text)
    for cell in {cell for cells in arms[:-1] for cell in cells} if metric in searched else ():
        own = f"{cell}@{metric}" if f"{cell}@{metric}" in runs else cell
        for other in (name for name in runs if name.partition("@")[0] == cell and name != own):
            seeds = sorted({*runs[own]} & {*runs[other]})
            records = [[RESULTS / "records" / f"{runs[arm][seed]}.json.zst" for seed in seeds] for arm in (own, other)]
            ours, theirs = ([read(read_object(path, "record")) for path in paths] for paths in records)
            gains = np.subtract(ours, theirs)
            if len(seeds) >= 3 and (all(gains > 0) or gains.mean() > 0 and stats.ttest_1samp(gains, 0).pvalue < 0.05):
                return True
    return False


def read_in(text):
    """The metric of a slope, what reads it from a record, and the cells: of each arm, and of the sizes."""
    form = re.fullmatch(r"slope\(([\w.]+)(\[.*\]) - .+, log2\(parameters\.total\[.*\]\)\) < 0", text)
    metric = _whole("validation.loss" if form[1] == "loss" else form[1])
    read = LEARNING.get(metric, lambda record: number(record, metric))
    return metric, read, [cells.split(", ") for cells in re.findall(r"\[([^\]]+)\]", text)]


def slopes_of(text, runs):
    """One slope for each seed that all runs have, of the arm's difference to the mean of the others over log2 N; and
    the seeds in which the masks of one had not settled."""
    metric, read, arms = read_in(text)
    chosen = [[runs.get(f"{cell}@{metric}", runs[cell]) for cell in cells] for cells in arms]
    slopes = {}
    for seed in sorted(set.intersection(*(set(of) for cells in chosen for of in cells)), key=int):
        paths = [[RESULTS / "records" / f"{of[seed]}.json.zst" for of in cells] for cells in chosen]
        *records, of_size = [[read_object(path, "record") for path in cells] for cells in paths]
        first, *rest = [[read(record) for record in cells] for cells in records]
        sizes = [math.log2(record["parameters"]["total"]) for record in of_size]
        slopes[seed] = float(np.polyfit(sizes, np.array(first) - np.mean(rest, axis=0), 1)[0])
    return slopes, unsettled_seeds([of for cells in chosen for of in cells], RESULTS)


@pytest.mark.parametrize("identifier", LADDERS)
def test_slopes_of_a_ladder_follow_from_the_records(identifier):
    data = as_read(json.loads((RESULTS / identifier / "desk" / "table.json").read_text()))
    said = {claim["text"]: claim for claim in data["claims"]}
    experiment = load_experiment(identifier)
    claims = experiment.claims
    for claim in claims:
        one, (shown,) = said[claim.text], said[claim.text]["comparisons"]
        slopes, left_out = slopes_of(claim.test["holds"], data["runs"])
        assert slopes == pytest.approx(shown["values"], rel=1e-7, abs=1e-9) and len(slopes) >= 3
        values = [*slopes.values()]
        low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
        assert [low, high] == pytest.approx(shown["interval"], rel=1e-6)
        expected, rest = word({"kind": "lower"}, [values]), [slopes[seed] for seed in slopes if seed not in left_out]
        other = left_out and (len(rest) < 3 or word({"kind": "lower"}, [rest]) != expected)
        silent = other or missed(claim.test["holds"], data["runs"], experiment.sweep.metrics)
        assert one["verdict"] == ("cannot tell here" if silent else on_its_page(expected, data, one)), claim.text
    assert len(claims) == len(said) >= 6


def test_the_path_of_the_results_is_the_repositorys():
    assert Path(RESULTS / "records").is_dir()
