"""Evaluation for vqx: what every eviction method costs on your model and your text."""
