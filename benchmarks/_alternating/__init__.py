"""Models that share layers, trained in turn: what is measured, and how."""
