"""TOVA's public functions beside the mathematics: shapes, bytes, indices, types and refusals."""

from typing import Any, ClassVar

import vqx_tova
from vqx.testing import FunctionLaws


class TestFunctions(FunctionLaws):
    module = vqx_tova
    name = "tova"
    options: ClassVar[dict[str, Any]] = {"n_sink": 2, "budget": 9}
