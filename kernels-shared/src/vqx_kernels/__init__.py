"""Kernel building for vqx."""
