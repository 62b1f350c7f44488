"""Means, standard errors, tests, power, and the rule by which trained numbers decide claims. No torch.

estimates.py has what is measured, paired.py the single tests, power.py the seeds that they need, rule.py the rule.
"""

from hybridlab.statistics.estimates import (
    NOT_MEASURED,
    Measurement,
    block_mean,
    clustered_mean,
    correlation,
    evenness,
    known,
    mean_and_error,
    paired_difference,
    paired_ratio,
    proportion,
    rank_correlation,
    resolved,
)
from hybridlab.statistics.paired import (
    FEWEST_SEEDS,
    LEVEL,
    PairedTest,
    holm,
    mean_interval,
    paired_t,
    sign_p,
)
from hybridlab.statistics.power import (
    MOST_SEEDS,
    POWER,
    seeds_for_difference,
    seeds_for_equivalence,
    seeds_for_signs,
)
from hybridlab.statistics.rule import (
    Above,
    Always,
    Asked,
    Below,
    Between,
    Decision,
    FewerShared,
    Finding,
    decide,
)

__all__ = [
    "Above",
    "Always",
    "Asked",
    "Below",
    "Between",
    "Decision",
    "FEWEST_SEEDS",
    "FewerShared",
    "LEVEL",
    "MOST_SEEDS",
    "Measurement",
    "NOT_MEASURED",
    "POWER",
    "PairedTest",
    "Finding",
    "block_mean",
    "clustered_mean",
    "correlation",
    "decide",
    "evenness",
    "holm",
    "known",
    "mean_and_error",
    "mean_interval",
    "paired_difference",
    "paired_ratio",
    "paired_t",
    "proportion",
    "rank_correlation",
    "resolved",
    "seeds_for_difference",
    "seeds_for_equivalence",
    "seeds_for_signs",
    "sign_p",
]
