"""Data: sources of documents, tokenizers, memory-mapped shards, synthetic tasks, and the rows of training steps."""
