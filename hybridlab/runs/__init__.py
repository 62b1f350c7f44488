"""A single run from configuration to record, and queues of runs. Nothing here depends on a paper."""
