"""Attention kinds, how one head mixes tokens: each owns its mask, arithmetic, kernel, cache slot, cost and drawing."""
