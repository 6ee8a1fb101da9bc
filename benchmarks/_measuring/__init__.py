"""How all scripts measure: conditions, turns, ratios and their intervals."""
