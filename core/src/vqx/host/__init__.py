"""The border to mlx-lm: the only part of the core that imports it."""

from vqx.host.caches import attach, detach, make_cache
from vqx.host.forecast import plan
from vqx.host.saved import load_cache, save_cache

__all__ = ["attach", "detach", "load_cache", "make_cache", "plan", "save_cache"]
