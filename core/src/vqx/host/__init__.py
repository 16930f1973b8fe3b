"""The border to mlx-lm: the only part of the core that imports it."""

from vqx.host.caches import attach, detach, make_cache

__all__ = ["attach", "detach", "make_cache"]
