"""H2O's kernel keeps the rows that MLX operations keep, with the same bits on every target."""

from contextlib import nullcontext
from typing import Any

import mlx.core as mx
import pytest
from vqx.testing import Shape, kept_alike, same_bits_on
from vqx_h2o.kernel import SEEN
from vqx_kernels import Asked, Guard, Layers, Rule, attention, step
from vqx_kernels.testing import emulated, recorded

OPTIONS: list[dict[str, Any]] = [{}, {"normalise": None, "decay": 0.9, "recent": 8}]
CUTS: dict[str, Any] = {"interval": 5}
"""Several rows go at once, those that stay are moved over them."""


CASES = [
    *(("model", mx.float32, options) for options in OPTIONS),
    ("model", mx.float16, {**OPTIONS[0], "shape": Shape(64, group=5, width=80)}),
    ("model", mx.bfloat16, {**OPTIONS[0], "shape": Shape(64, group=1, width=256)}),
    ("keys", mx.float16, {**OPTIONS[0], "shape": Shape(64, width=96)}),
    ("model", mx.float32, CUTS),
]


@pytest.mark.parametrize(("queries", "dtype", "options"), CASES)
def test_the_kernel_keeps_what_mlx_operations_keep(
    queries: Any, dtype: mx.Dtype, options: dict[str, Any]
) -> None:
    chosen = kept_alike("h2o", queries, dtype=dtype, budget=32, **options)
    assert chosen == (0 if queries == "keys" else 4 if options is CUTS else 24)


@pytest.mark.parametrize("target", ["metal", "cuda"])
def test_an_emulated_device_has_the_bits_of_the_host(target: str) -> None:
    for options in (*OPTIONS, CUTS):
        same_bits_on(target, emulated(), "h2o", budget=32, **options)


def test_rows_of_many_blocks_have_the_bits_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, rows in (("WHOLE", 16), ("SPAN", 16), ("TOGETHER", 0)):
        monkeypatch.setattr(attention, name, rows)
    with recorded() as launches:
        same_bits_on("cuda", nullcontext(), "h2o", budget=32, **OPTIONS[0])
    blocks = [launch.grid[0] // launch.threadgroup[0] for _, launch in launches if "logits" in launch.name]
    assert set(blocks) == {3}


@pytest.mark.parametrize("rows", [40, 1100])
def test_layers_together_have_the_bits_that_each_has_alone(rows: int) -> None:
    """On CUDA, emulated: 3 layers of 2 sequences in one launch, or two where there are many rows."""
    layers, batch, heads, group, width = 3, 2, 2, 3, 16

    def drawn(seed: int, *shape: int) -> mx.array:
        return mx.random.normal(shape, key=mx.random.key(seed)).astype(mx.bfloat16)

    keys = [drawn(number, batch, heads, rows + 3, width) for number in range(layers)]
    queries = [drawn(9 + number, batch, heads * group, 1, width) for number in range(layers)]
    position = mx.contiguous(mx.broadcast_to(mx.arange(rows, dtype=mx.int32), (layers * batch, heads, rows)))
    mass = mx.random.uniform(shape=position.shape, key=mx.random.key(1))
    stats, rest = {"mass": mass, "seen": mx.floor(10 * mass) + 1}, (Guard(2, 5), (1.0,))
    how: Any = {"then": "exchange", "whole": True}
    asked = Layers(queries, keys, position, rows - 1, 0.25)
    with recorded() as launches:
        both = step("cuda", asked, Rule("nothing"), SEEN, stats, *rest, **how)
        mx.eval(both.slot, both.next, both.written)
    assert len(launches) == (1 if rows <= attention.WHOLE else 2)
    for number in range(layers):
        own = slice(number * batch, (number + 1) * batch)
        query = queries[number].reshape(batch, heads, group, 1, width)
        alone = Asked(query, keys[number][:, :, :rows], position[own], rows - 1, 0.25)
        held = {name: column[own] for name, column in stats.items()}
        one = step("host", alone, Rule("nothing"), SEEN, held, *rest, **how)
        assert mx.array_equal(both.slot[own, :, :, 0], one.slot)
        assert mx.array_equal(both.next[own], one.next)
        for name, column in one.written.items():
            assert mx.array_equal(both.written[name][own], column)
