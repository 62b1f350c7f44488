"""Numbers that the docs state, as links to the page that they are from. The title of a link says which number it is:

    [0.037](../../results/published/sgt-selection/desk/table.md "low: probes without loops lost")

| title | number |
| --- | --- |
| `ROW / COLUMN` | a cell, by the short name of its row and the name of its column, or `parameters` |
| `LABEL`, `CLAIM: LABEL` | a comparison of a control or a claim, by its label, and by the claim's sentence |
| `verdict: CLAIM`, `seeds needed: CLAIM` | of a claim, by its sentence |
| `claims: fails` | how many claims about trained models have this verdict |
| `evidence: CLAIM`, `notes` | any number in a claim's sentence and evidence, or in a page's notes |
| `hours of seed 0`, `hours of the search`, `steps of CELL` | from the records: hours are of one core |
| `a.b.c` | in a file of results/published/bench, by its place |

`*` stands for any text, and ` or ` is between alternatives. Then comes, after a semicolon each,

- of a comparison: `low`, `high`, `half`, the ends of its interval and half its width, `asked`, the bound that it is
  tested against, `n`, its seeds, `each seed`, its numbers by seed;
- of several numbers: `least`, `most`, `median`, `below 0`, how many are. Without one, all are the same as printed.
"""

import json
import re
from fnmatch import fnmatchcase
from functools import cache
from statistics import median

from hybridlab.files import read_object
from hybridlab.lab.papers.ids import VERDICTS
from hybridlab.lab.papers.pages import as_read
from hybridlab.lab.papers.sweep import sweep_runs
from hybridlab.lab.reporting.claims import own_claims
from tests.conftest import PUBLISHED
from tests.experiments import load_experiment

LINK = re.compile(r'\[([^\[\]]+)\]\(([^()\s]+) "([^"]+)"\)')
NUMBER = re.compile(r"(?<![\w.])[+−-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
UNITS = {"M": 1e6, " %": 0.01, " ms": 1e-3, "": 1.0}
OF_ONE = ("low", "high", "half", "asked", "n")
OF_SEVERAL = {"least": min, "most": max, "median": median, "below 0": lambda values: sum(one < 0 for one in values)}


def problem(text, path, title):
    """What is wrong with a stated number or verdict; None where it is the page's. path: that the link leads to."""
    try:
        found = looked_up(path, title)
    except (KeyError, ValueError, TypeError, FileNotFoundError) as error:
        return f"[{text}]: {error}"
    return next((f"[{text}]: it is {one} in {path} ({title})" for one in found if not is_stated(text, one)), None)


def is_stated(text, value):
    """Whether a text states a number at its printed digits, one of several, or a verdict."""
    if isinstance(value, tuple):
        return any(is_stated(text, one) for one in value)
    if isinstance(value, str) or value is None:
        return text == (value or "not run")
    if text.lower() in WORDS:
        return WORDS.index(text.lower()) == value
    if (number := re.fullmatch(r"([+−]?)([\d,]+(?:\.(\d+))?)(M| %| ms|)", text)) is None:
        return False
    sign, digits, decimals, unit = number.groups()
    stated = float((sign + digits).replace("−", "-").replace(",", ""))
    # A number without a sign is a size: "lower by 0.155".
    value = (value if sign else abs(value)) / UNITS[unit]
    return abs(value - stated) <= 0.5 * 10.0 ** -len(decimals or "") + 1e-9


def looked_up(path, title):
    """All numbers, or verdicts, that a title names."""
    where, *parts = title.split("; ")
    place = str(path.resolve().relative_to(PUBLISHED))
    if where.startswith("hours of "):
        found = hours(place, where)
    elif where.startswith("steps of "):
        found = steps(place, where.removeprefix("steps of "))
    else:
        numbers = bench(place) if path.suffix == ".json" else of_page(place.removesuffix(".md"))
        patterns = [pattern.replace("[", "[[]") for pattern in where.split(" or ")]
        found = [value for name, value in numbers.items() if any(fnmatchcase(name, one) for one in patterns)]
    for part in parts:
        if part in OF_ONE:
            found = [one[part] for one in found if isinstance(one, dict)]
        elif part == "each seed":
            found = [value for one in found for value in one["values"]]
        elif part in OF_SEVERAL:
            measured = [one for one in map(plain, found) if one is not None]
            found = [OF_SEVERAL[part](measured) if measured else None]
        else:
            raise ValueError(f"{part!r} is none of {', '.join((*OF_ONE, 'each seed', *OF_SEVERAL))}")
    if not found:
        raise KeyError(f"{path} has no {title!r}")
    return [*map(plain, found)]


def plain(one):
    return one["value"] if isinstance(one, dict) else one


@cache
def bench(place):
    """The numbers of a file by their place."""
    found = {}

    def visit(value, name):
        if isinstance(value, dict | list):
            for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
                visit(inner, f"{name}.{key}" if name else str(key))
        else:
            found[name] = value

    visit(json.loads((PUBLISHED / place).read_text()), "")
    return found


@cache
def of_page(place):
    """All names of a page with what they stand for."""
    data = as_read(json.loads((PUBLISHED / f"{place}.json").read_text()))
    found, claims = {"notes": numbers_in(" ".join(data["notes"]))}, own_claims(data)
    for row in data.get("rows", ()):
        found[f"{row['short']} / parameters"] = row["model"] and row["model"]["parameters"]
        found |= {f"{row['short']} / {column}": cell["measured"] for column, cell in row["cells"].items()}
    for word in VERDICTS:
        found[f"claims: {word}"] = sum(one["verdict"] == word and bool(one["comparisons"]) for _, one in claims)
    compared = [one for control in data["controls"].values() for one in control["comparisons"]]
    for _, claim in claims:
        text = claim["text"]
        found |= {f"verdict: {text}": claim["verdict"], f"seeds needed: {text}": claim["n_needed"]}
        found |= {f"evidence: {text}": numbers_in(f"{text} {claim['evidence']}")}
        found |= {f"{text}: {one['label']}": comparison(one) for one in claim["comparisons"]}
        compared += claim["comparisons"]
    # A label that stands for two numbers, of two claims, names neither.
    values: dict[str, set[float]] = {}
    for one in compared:
        values.setdefault(one["label"], set()).add(one["value"])
    found |= {one["label"]: comparison(one) for one in compared if len(values[one["label"]]) == 1}
    return found


def numbers_in(text):
    """The numbers of a text, in their order."""
    return tuple(float(number.replace(",", "").replace("−", "-")) for number in NUMBER.findall(text))


def comparison(one):
    low, high = one["interval"] or (None, None)
    values = one["values"].values() if isinstance(one["values"], dict) else one["values"]
    return {
        "value": one["value"],
        "low": low,
        "high": high,
        "half": None if low is None else (high - low) / 2,
        "asked": next((bound for bound in one["asked"] or () if bound is not None), None),
        "n": one["n"],
        "values": [*values],
    }


@cache
def hours(place, where):
    """Hours of one core that the runs of a page's seeds took, or of its search."""
    identifier, _, _ = place.split("/")
    if where == "hours of the search":
        experiment = load_experiment(identifier)
        groups = [[*sweep_runs(experiment, experiment.sweep)]]
    else:
        seeds = runs_of(place.removesuffix(".md")).items()
        found = {f"hours of seed {seed}": [run for run, of in seeds if of == seed] for seed in {of for _, of in seeds}}
        groups = [runs for name, runs in found.items() if fnmatchcase(name, where)]
    return [sum(map(hours_of, runs)) for runs in groups]


@cache
def steps(place, cell):
    """The steps of the runs of a cell."""
    by_seed = json.loads((PUBLISHED / place).with_suffix(".json").read_text())["runs"][cell]
    return [read_object(PUBLISHED / f"records/{digest}.json.zst", "record")["steps"] for digest in by_seed.values()]


def runs_of(place):
    """The hash of every run of a page, with its seed."""
    cells = json.loads((PUBLISHED / f"{place}.json").read_text())["runs"].values()
    return {digest: seed for by_seed in cells for seed, digest in by_seed.items()}


def hours_of(digest):
    return read_object(PUBLISHED / f"records/{digest}.json.zst", "record")["seconds"] / 3600
