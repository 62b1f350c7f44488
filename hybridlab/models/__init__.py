"""The models: blocks, attention and its kernels, the executor of plans, KV cache, import from Hugging Face folders."""
