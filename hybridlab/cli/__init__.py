"""The command line: one module per command, no logic of its own; torch is imported inside a command only."""
