"""For the tests of plugins: streams, a driver, and the laws that every eviction method keeps.

It needs the extra ``vqx[testing]``. A plugin's ``test_laws.py`` is a few lines:

    from vqx.testing import MethodLaws

    class TestLaws(MethodLaws):
        method = "h2o"
        settings = ({}, {"decay": 0.9})
"""

import pytest

pytest.register_assert_rewrite(*(f"vqx.testing.{kit}" for kit in ("laws", "functions", "kernels")))

from vqx.testing.driving import (  # noqa: E402
    Kept,
    Step,
    Walk,
    attending,
    cache_of,
    feed,
    forward,
    remaining,
    same_bits,
    walk,
)
from vqx.testing.functions import FunctionLaws  # noqa: E402
from vqx.testing.kernels import Decoded, decoded, kept_alike, same_bits_on  # noqa: E402
from vqx.testing.laws import MethodLaws  # noqa: E402
from vqx.testing.oracles import oracle  # noqa: E402
from vqx.testing.streams import STREAMS, Shape, Stream, stream  # noqa: E402

__all__ = [
    "STREAMS",
    "Decoded",
    "FunctionLaws",
    "Kept",
    "MethodLaws",
    "Shape",
    "Step",
    "Stream",
    "Walk",
    "attending",
    "cache_of",
    "decoded",
    "feed",
    "forward",
    "kept_alike",
    "oracle",
    "remaining",
    "same_bits",
    "same_bits_on",
    "stream",
    "walk",
]
