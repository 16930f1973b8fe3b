"""What did happen: that rows were evicted, and which kernel scored them."""

from collections.abc import Sequence
from typing import Any

OPERATIONS = "MLX operations"


def rows_kept(caches: Sequence[Any], rows: int, bounded: bool) -> int:
    """Rows that a layer holds on average, once it is seen that a bounded cache did evict.

    Raises:
        RuntimeError: nothing was evicted, or more rows are held than were allowed.
    """
    held = [cache.tokens_kept if hasattr(cache, "plan") else cache.size() for cache in caches]
    kept: int = sum(held) // len(held)
    if bounded:
        slack = max((c.plan.options.interval for c in caches if hasattr(c, "plan")), default=1) - 1
        seen = min(c.tokens_seen if hasattr(c, "plan") else c.offset for c in caches)
        if not kept <= rows + slack < seen:
            raise RuntimeError(f"no eviction: {kept} rows held of {seen} tokens, where {rows} were allowed")
    return kept


def kernels(caches: Sequence[Any]) -> str:
    """By what vqx's caches scored their rows; empty for others."""
    found = {OPERATIONS for cache in caches if hasattr(cache, "plan")}
    return ", ".join(sorted(found))
