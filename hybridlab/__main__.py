"""`python -m hybridlab` is the command `hybridlab`."""

from hybridlab.lab.cli.main import run

run()
