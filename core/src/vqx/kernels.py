"""Kernels in the place of MLX operations, where a package offers them (entry points ``vqx.kernels``).

The operations beside which they stand remain the definition; what no kernel serves, they compute.
"""

import functools
from importlib.metadata import entry_points
from typing import Any

import mlx.core as mx


@functools.cache
def offered() -> Any | None:
    """The module of kernels that is installed here, in the shape of ``vqx_kernels``; None: there is none."""
    found = sorted(entry_points(group="vqx.kernels"), key=lambda entry: entry.value)
    return found[0].load() if found else None


def target() -> str:
    """Where kernels run now: ``host``, ``metal`` or ``cuda``; ``reference`` where MLX operations do.

    Raises:
        ValueError: the environment's ``VQX_DEVICE`` names what cannot run here.
    """
    kernels = offered()
    return "reference" if kernels is None else str(kernels.choose().name)


def gained(
    block: Any, *, itself: bool = True, old: int = 0, causal: bool = True, **fused: Any
) -> mx.array | None:
    """The weights of a ``vqx.attention.Block`` fused into one number a row, ``[B, H, n]`` float32.

    None where no kernel serves it: a host's own mask, logits that came from elsewhere, too many queries.
    """
    kernels, where = offered(), target()
    if kernels is None or where == "reference":
        return None
    asked = _asked(kernels, block)
    if asked is None or not kernels.fits(asked):
        return None
    newest = block.length == 1
    hide = "newest" if old else "itself" if not itself else "later"
    if hide == "later" and (newest or not causal or block.mask is None):
        hide = "nothing"
    if old:
        asked = asked._replace(sinks=None)  # a learned sink is no row, and takes no share
    found: mx.array = kernels.gained(where, asked, kernels.Rule(hide=hide, old=old, **fused))
    return found


def _asked(kernels: Any, block: Any) -> Any | None:
    """The arrays of a block as a kernel takes them."""
    plain = block.mask is None or isinstance(block.mask, str)
    if block.keys is None or block.elsewhere or block.later or not plain:
        return None
    start = block.start if isinstance(block.start, int) else block.start.reshape(-1)
    return kernels.Asked(block.queries, block.keys, block.position, start, block.scale, block.sinks)
