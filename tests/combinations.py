"""Cases of a test that has several parameters: some in the short suite, all of them in the long one.

    @combinations("family, plan, cuts", FAMILIES, PLANS, CUTS)

is `pytest.mark.parametrize` with every combination. Those without the mark `long` are such that every two values of
different parameters come together in one of them.
"""

from itertools import combinations as choose
from itertools import product

import pytest


def combinations(names, *axes, together=2, ids=str):
    """together: so many values of different parameters come together in the short suite; 1: each value once. An axis
    that is a mapping gives its values, under the names of its keys."""
    named = [list(axis.items()) if isinstance(axis, dict) else [(ids(value), value) for value in axis] for axis in axes]
    short = covering([len(axis) for axis in named], together)
    cases = []
    for places in product(*(range(len(axis)) for axis in named)):
        labels, values = zip(*(axis[i] for axis, i in zip(named, places, strict=True)), strict=True)
        cases.append(pytest.param(*values, id="-".join(labels), marks=() if places in short else pytest.mark.long))
    return pytest.mark.parametrize(names.replace(" ", "").split(","), cases)


def covering(sizes, together):
    """Few tuples of indices below these sizes, in which any `together` of the places have every combination."""
    groups = list(choose(range(len(sizes)), min(together, len(sizes))))
    missing = {(group, values) for group in groups for values in product(*(range(sizes[place]) for place in group))}
    chosen = set()
    while missing:
        best = max(product(*map(range, sizes)), key=lambda row: len(_parts(row, groups) & missing))
        chosen.add(best)
        missing -= _parts(best, groups)
    return chosen


def _parts(row, groups):
    return {(group, tuple(row[place] for place in group)) for group in groups}


def some(values, *short, rest=pytest.mark.long):
    """Cases of one parameter, of which these are in the short suite, and the others in the long or the full one. A
    mapping gives its keys."""
    assert all(value in [*values] for value in short), short
    return [value if value in short else pytest.param(value, marks=rest) for value in values]
