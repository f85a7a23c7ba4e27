"""The Field of Experts prior: its fit, its energy, its calibration."""
