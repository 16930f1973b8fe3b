"""The adapted system's façade: its names and field names, its semantics, on absolute positions.

Code written for it runs with its import line changed. Keys stand in for queries, one eviction a token.
"""

import warnings
from typing import Any

import mlx.nn as nn

from vqx.build import chain_of, split_options
from vqx.host.caches import make_cache
from vqx.host.layers import ropes_of


class KVCacheConfig:
    """A method with the adapted system's prefixed options, for example ``keyformer_budget=512``.

    Args:
        method: the name of an installed method.
        head_dim: accepted for compatibility; the model's own is used.
        fields: the method's options, each with the method's name in front. ``…_rope_base`` is accepted
            and never used, since keys keep the model's own rotation. ``…_budget`` defaults to 512.

    Raises:
        ValueError: an unknown option, or one that belongs to another method.
    """

    def __init__(self, *, method: str, head_dim: int = 128, **fields: Any) -> None:
        self.method, self.head_dim = method, head_dim
        (self.spec,) = chain_of(method)
        prefix = method.replace("-", "_") + "_"
        foreign = [name for name in fields if not name.startswith(prefix)]
        if foreign:
            raise ValueError(
                f"{foreign[0]} does not belong to method={method!r}; its options start with {prefix!r}"
            )
        options = {name.removeprefix(prefix): value for name, value in fields.items()}
        self.rope_base: float | None = options.pop("rope_base", None)
        self.options: dict[str, Any] = {"budget": 512, **self.spec.adapted, **options}
        own, _ = split_options((self.spec,), self.options)
        self.spec.config(**own)


class KVCacheBuilder:
    """Builds caches from a :class:`KVCacheConfig`."""

    @staticmethod
    def for_model(model: nn.Module, config: KVCacheConfig) -> list[Any]:
        """One cache per layer of ``model``; see :func:`vqx.make_cache`.

        The list serves one conversation: ``model.make_cache = lambda *_a, **_k: caches`` hands the same
        caches to every call, so build a new list (or use :func:`vqx.attach`) for the next one.
        """
        base = next((rope.base for rope in ropes_of(model, 0) if hasattr(rope, "base")), None)
        if config.rope_base is not None and base is not None and config.rope_base != base:
            warnings.warn(
                f"rope_base={config.rope_base:g} is not used, and differs from the model's {base:g}:"
                " keys keep the rotation the model gave them",
                stacklevel=2,
            )
        return make_cache(model, config.method, **{"queries": "keys", "cadence": "token", **config.options})
