"""The training engine: its loop, hooks, optimizer groups, schedules, checkpoints and run folders."""
