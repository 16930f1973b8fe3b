"""vqx: bound the memory of a language model's key-value cache on MLX; keep the rows that matter."""

from typing import TYPE_CHECKING, Any

from vqx import blas as _blas

_blas.preload()  # before the first import of mlx

from vqx.hookspecs import hookimpl  # noqa: E402
from vqx.options import Options  # noqa: E402
from vqx.registry import PluginError, UnknownMethod  # noqa: E402
from vqx.registry import registry as _registry  # noqa: E402
from vqx.scorers import WHOLE, Arrivals, Held, Method, Scorer, accumulated  # noqa: E402
from vqx.spec import Collapse, LayerInfo, MethodSpec, Setting  # noqa: E402
from vqx.state.cache import EvictingCache  # noqa: E402

if TYPE_CHECKING:
    from vqx.adapted import KVCacheBuilder, KVCacheConfig
    from vqx.host import attach, detach, load_cache, make_cache, plan, save_cache

names = _registry.names
load = _registry.load
register = _registry.register

_LATE = {  # mlx-lm takes seconds to import, and listing methods does not need it
    "KVCacheBuilder": "vqx.adapted",
    "KVCacheConfig": "vqx.adapted",
    "attach": "vqx.host",
    "detach": "vqx.host",
    "load_cache": "vqx.host",
    "make_cache": "vqx.host",
    "plan": "vqx.host",
    "save_cache": "vqx.host",
}

__all__ = [
    "WHOLE",
    "Arrivals",
    "Collapse",
    "EvictingCache",
    "Held",
    "KVCacheBuilder",
    "KVCacheConfig",
    "LayerInfo",
    "Method",
    "MethodSpec",
    "Options",
    "PluginError",
    "Scorer",
    "Setting",
    "UnknownMethod",
    "accumulated",
    "attach",
    "detach",
    "hookimpl",
    "load",
    "load_cache",
    "make_cache",
    "names",
    "plan",
    "register",
    "save_cache",
]


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'vqx' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATE[name]), name)
