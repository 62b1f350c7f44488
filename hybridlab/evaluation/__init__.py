"""What a trained model is worth: loss and perplexity, retrieval, and the causality probe that comes before any number."""
