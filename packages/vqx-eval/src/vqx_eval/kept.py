"""Which rows a cache kept: as figures for a record, and as a map of one sample for a picture."""

from typing import Any

import mlx.core as mx
import numpy as np
from vqx import EvictingCache
from vqx.state.settling import settle


def kept_rows(reading: Any) -> dict[str, float]:
    """Rows kept, a mean over layers; of ours also the most that a layer evicted, and the bytes kept."""
    caches = _caches(reading)
    evicting = [cache for cache in caches if isinstance(cache, EvictingCache)]
    sizes = [_rows(cache) for cache in caches if hasattr(cache, "size")]
    found: dict[str, float] = {"rows": sum(sizes) / len(sizes)} if sizes else {}
    if evicting:
        found["evicted"] = max(cache.tokens_seen - cache.tokens_kept for cache in evicting)
        found["kept_bytes"] = sum(cache.kept_bytes for cache in evicting)
    return found


def kept_map(reading: Any) -> list[str]:
    """For each layer a digit a token of the batch's first sample: 0 no head kept it, 9 all did."""
    return [_digits(cache) for cache in _caches(reading) if isinstance(cache, EvictingCache)]


def _caches(reading: Any) -> list[Any]:
    return [reading] if isinstance(reading, EvictingCache) else getattr(reading, "caches", [])


def _rows(cache: Any) -> int:
    return int(cache.tokens_kept if isinstance(cache, EvictingCache) else cache.size())


def _digits(cache: EvictingCache) -> str:
    if cache.layer is None:
        return ""
    # room for two rows: with room for one, settling names a slot instead of dropping its row
    layer = settle(cache.plan, cache.layer, room=2)[0]
    position = np.array(layer.rows.position[0].astype(mx.int32))
    count = np.zeros(cache.tokens_seen)
    np.add.at(count, position.ravel(), 1)  # heads that share a lane stand in it with equal positions
    return "".join(str(int(9 * share)) for share in count / (len(position) * layer.heads))
