"""H2O's public functions beside the mathematics: shapes, bytes, indices, types and refusals."""

from typing import Any, ClassVar

import vqx_h2o
from vqx.testing import FunctionLaws, stream


class TestFunctions(FunctionLaws):
    module = vqx_h2o
    name = "h2o"
    options: ClassVar[dict[str, Any]] = {"n_sink": 2, "budget": 9, "recent": 3}


def test_rope_base_changes_nothing() -> None:
    rows = [array[0, 0] for array in stream("gaussian")[1:]]
    one, other = (
        vqx_h2o.h2o_update(vqx_h2o.init_h2o_state(2, 9, 16, rope_base=base), *rows) for base in (10000.0, 5.0)
    )
    assert one.positions is not None
    assert other.positions is not None
    assert one.positions.tolist() == other.positions.tolist()
