"""Settings, recipes and assignments."""
