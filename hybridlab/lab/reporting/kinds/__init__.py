"""The built-in kinds of figures, each registered in FIGURE_KINDS by the module that draws it."""

from hybridlab.lab.reporting.kinds import attention, distributions, growing, lines, matrices

__all__ = ["attention", "distributions", "growing", "lines", "matrices"]
