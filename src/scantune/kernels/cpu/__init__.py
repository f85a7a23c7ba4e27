"""Faster renderings of layers for CPUs."""
