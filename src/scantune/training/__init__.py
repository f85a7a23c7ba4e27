"""Training: from a recipe to a network, its prior and its helpers."""
