"""The core's own commands: each module here is one, by its name, and brings it as ``command``.

Nothing is listed anywhere. ``vqx --help`` imports them all, so a module imports mlx-lm inside its function.
"""
