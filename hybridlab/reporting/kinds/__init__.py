"""The built-in kinds of figures, each registered in FIGURE_KINDS by the module that draws it."""

from hybridlab.reporting.kinds import attention, entropy, growing, loops, masks, metrics

__all__ = ["attention", "entropy", "growing", "loops", "masks", "metrics"]
