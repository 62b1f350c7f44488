"""`python -m hybridlab` is the command `hybridlab`."""

from hybridlab.cli.main import run

run()
