"""Benchmarks: an experiment becomes jobs, jobs become rows."""
