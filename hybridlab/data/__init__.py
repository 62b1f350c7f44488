"""Data: sources of documents, tokenizers, memory-mapped shards, synthetic tasks, and batches as functions of a step."""
