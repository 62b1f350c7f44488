"""The execution plan (what runs, in which order) and the attention map (how heads mix tokens), without torch."""
