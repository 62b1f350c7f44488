"""Where plug-ins may import what an attention kind is made of, as before it had a package of its own."""

from hybridlab.attention.kinds import AttentionKind, Counting, check_width
from hybridlab.attention.registry import register_kind

__all__ = ["AttentionKind", "Counting", "check_width", "register_kind"]
