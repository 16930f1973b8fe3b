"""vqx: bound the memory of a language model's key-value cache on MLX; keep the rows that matter."""

from vqx import blas as _blas

_blas.preload()  # before the first import of mlx

from vqx.adapted import KVCacheBuilder, KVCacheConfig  # noqa: E402
from vqx.cache import EvictingCache  # noqa: E402
from vqx.hookspecs import hookimpl  # noqa: E402
from vqx.host import attach, detach, make_cache  # noqa: E402
from vqx.options import Options  # noqa: E402
from vqx.registry import PluginError, UnknownMethod, registry  # noqa: E402
from vqx.scorers import Arrivals, Method, Scorer, accumulated  # noqa: E402
from vqx.spec import Collapse, LayerInfo, MethodSpec, Setting  # noqa: E402

names = registry.names
load = registry.load
register = registry.register

__all__ = [
    "Arrivals",
    "Collapse",
    "EvictingCache",
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
    "make_cache",
    "names",
    "register",
]
