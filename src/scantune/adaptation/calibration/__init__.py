"""Calibration of the assessment on degraded scans of held-out people whose truth is known."""
