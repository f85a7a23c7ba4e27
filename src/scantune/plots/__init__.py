"""Figures and colours."""
