"""The scales at which experiments are run: what each can show, and what it cannot. One place for README and pages."""

from __future__ import annotations

SAYS = {
    "smoke": "Models of 1M parameters, a few hundred steps and one seed, in minutes on two CPU cores: all parts work, "
    "and all tables and figures are made. It decides what the papers print and what can be counted, and no claim about "
    "trained models.",
    "desk": "Models of 0.4M to 1.4M parameters and five seeds or more with controls, in an evening on two CPU cores: "
    "it decides the claims whose effect is large enough at this size, and says what the others would take. It cannot "
    "speak of larger models or of the papers' benchmarks.",
    "small": "A model of 46M parameters on real text with three seeds, in hours on one GPU: it can decide claims about "
    "losses and retrieval at that size. It cannot speak of benchmarks, or of how an effect grows with size.",
    "paper": "The papers' own sizes, data and steps, for a cluster of GPUs: only here can a trained number be set "
    "beside a printed one. With one seed it decides no difference between arms.",
}
"""Two sentences for each scale."""
TUNING = 100
"""Seeds from here on are for tuning; reports leave them out, unless an experiment file names them."""
