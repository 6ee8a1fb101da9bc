"""What a user asks of a model: what is planned, compiled, and how fast."""
