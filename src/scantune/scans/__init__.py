"""Scans: from a file to the volume that a network sees, and back."""
