"""The model zoo: blocks, attention kinds and kernels, the executor of plans, import from Hugging Face folders."""
