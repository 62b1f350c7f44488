"""What a model does with its attention and its depth, measured: entropies, loops, contributions."""
