"""The built-in probes, by subject: measurements and their reports. See hybridlab/analysis/probe.py."""
