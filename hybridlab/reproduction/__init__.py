"""From experiment files to cells, from cells to runs, from runs to records and claims."""
