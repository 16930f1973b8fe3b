"""Tensor cores on an emulated device: where a warp's numbers stand, and what they sum up to."""

import mlx.core as mx
import pytest
from vqx_kernels import Asked, Layers, Rule, prompts, tensor
from vqx_kernels.testing import Conditions, audited, emulated


@pytest.mark.parametrize("name", tensor.CASES)
def test_a_prompts_mass_is_that_of_float64(name: str) -> None:
    with emulated():
        assert tensor.apart("cuda", tensor.CASES[name]) < 2e-6  # float32 sums, as the emulated warp has them


def test_no_order_of_threads_and_no_memory_changes_a_bit() -> None:
    case = tensor.CASES["tensor cores, fading"]
    asked, noise, temperature = tensor.drawn(case)

    def call(target: str) -> None:
        rule = tensor.CASES["tensor cores, fading"].rule
        prompts.prompt_mass(target, asked, rule, noise, temperature, True)

    varied = Conditions(order="reverse"), Conditions(order="random", seed=3), Conditions(poison=0)
    report = audited(call, racing=False, targets=("cuda",), under=varied)
    assert report.launches == 2
    assert not report.found


def test_layers_together_have_the_bits_that_each_has_alone() -> None:
    layers, batch, heads, group, length, rows, width = 3, 2, 2, 3, 20, 150, 32

    def drawn(seed: int, *shape: int) -> mx.array:
        return mx.random.normal(shape, key=mx.random.key(seed)).astype(mx.bfloat16)

    queries = [drawn(number, batch, heads * group, length, width) for number in range(layers)]
    keys = [drawn(9 + number, batch, heads, rows + 5, width) for number in range(layers)]
    place = mx.broadcast_to(mx.arange(rows, dtype=mx.int32), (layers * batch, heads, rows))
    with emulated():
        both = tensor.prompt_mass("cuda", Layers(queries, keys, place, rows - length, 0.2), Rule(decay=0.9))
        mx.eval(both)
        assert both.shape == place.shape
        for number in range(layers):
            query = queries[number].reshape(batch, heads, group, length, width)
            own = slice(number * batch, (number + 1) * batch)
            asked = Asked(query, keys[number][:, :, :rows], place[own], rows - length, 0.2)
            assert mx.array_equal(both[own], tensor.prompt_mass("cuda", asked, Rule(decay=0.9)))
