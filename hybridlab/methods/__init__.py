"""The methods of the papers: each registers its settings, which make its hook. No torch until a hook is made."""

from hybridlab.methods import consa, depth, saobp, sgt

__all__ = ["consa", "depth", "saobp", "sgt"]
