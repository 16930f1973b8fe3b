"""What did happen: that rows were evicted, and which kernel scored them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from vqx import kernels

OPERATIONS = "MLX operations"


def rows_kept(caches: Sequence[Any], rows: int, bounded: bool) -> int:
    """Rows that a layer holds on average, once it is seen that a bounded cache did evict.

    Raises:
        RuntimeError: nothing was evicted, or more rows are held than were allowed.
    """
    # VeloxQuant-MLX's size() of some caches counts tokens, its tokens_kept rows
    held = [cache.tokens_kept if hasattr(cache, "tokens_kept") else cache.size() for cache in caches]
    kept: int = sum(held) // len(held)
    if bounded:
        slack = max((c.plan.options.interval for c in caches if hasattr(c, "plan")), default=1) - 1
        seen = min(c.tokens_seen if hasattr(c, "plan") else c.offset for c in caches)
        if not kept <= rows + slack < seen:
            raise RuntimeError(f"no eviction: {kept} rows held of {seen} tokens, where {rows} were allowed")
    return kept


@contextmanager
def scoring() -> Iterator[set[str]]:
    """Which kernels serve what is scored within; what none serves, MLX operations do."""
    served: set[str] = set()

    def seen(name: str, function: Any) -> Any:
        def called(*arguments: Any, **options: Any) -> Any:
            found = function(*arguments, **options)
            if found is not None:
                served.add(name)
            return found

        return called

    alone = ("step", "ranked", "exchange", "kept", "gained", "lowest", "highest")
    names = (*alone, "together", "kept_together")
    with patch.multiple(kernels, **{name: seen(name, getattr(kernels, name)) for name in names}):
        yield served


def named(served: set[str]) -> str:
    """The kernels of a ``scoring``, in words."""
    return f"{kernels.target()}: {', '.join(sorted(served))}" if served else OPERATIONS
