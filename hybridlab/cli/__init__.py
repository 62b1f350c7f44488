"""The command line: one module per command, without logic of its own; torch is imported only inside commands."""
