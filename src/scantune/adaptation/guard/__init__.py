"""The guard: which step of an adaptation is kept, if any."""
