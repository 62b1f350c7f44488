"""The built-in probes, a module for each: a measurement and its report. See hybridlab/analysis/probe.py."""
