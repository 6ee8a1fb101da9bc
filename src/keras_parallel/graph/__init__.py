"""How Keras represents a graph: read here, and nowhere else."""
