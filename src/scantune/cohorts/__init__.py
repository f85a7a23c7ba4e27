"""Simulated cohorts, written as folders."""
