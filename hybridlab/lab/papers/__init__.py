"""The papers: experiment files, the runs behind their tables, analytic columns, benchmarks and claims."""
