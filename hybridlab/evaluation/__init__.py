"""Evaluation of a trained model: loss, perplexity, synthetic tasks, and the causality probe that precedes them."""
