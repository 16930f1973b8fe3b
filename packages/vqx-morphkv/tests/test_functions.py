"""MorphKV's public functions beside the mathematics: shapes, bytes, indices, types and refusals."""

from typing import Any, ClassVar

import vqx_morphkv
from vqx.testing import FunctionLaws


class TestFunctions(FunctionLaws):
    module = vqx_morphkv
    name = "morphkv"
    options: ClassVar[dict[str, Any]] = {"n_sink": 2, "budget": 9, "window": 3}
