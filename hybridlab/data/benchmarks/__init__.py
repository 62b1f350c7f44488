"""Files of benchmarks below a data root, as the rows that lm-eval's tasks read."""
