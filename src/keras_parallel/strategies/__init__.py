"""The user's modes, each written once over planning and an engine."""
