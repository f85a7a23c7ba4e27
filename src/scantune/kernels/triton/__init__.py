"""Programs for GPUs."""
