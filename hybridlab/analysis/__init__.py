"""Measurements of a model's attention and depth: entropies, loops, contributions."""
