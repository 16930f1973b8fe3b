"""What makes a decode step cheap on a CPU: few exponentials, turns by tables, rows that are read once.

Prints nanoseconds a number, milliseconds for all keys of 3 heads of 64 channels at 512 and 2,048 rows, and
those of a token's attention where several query heads share rows, by the processor's clock (least of 20
calls).
"""

import platform
import time
from collections.abc import Callable
from importlib.metadata import version

import vqx  # noqa: F401  (before MLX: it shows MLX an optimised BLAS)

# isort: split
import mlx.core as mx
import mlx.nn as nn
from vqx.host.weighing import weighed
from vqx.state.positions import rotary_of

CALLS = 20


def spent(work: Callable[[], mx.array]) -> float:
    """Seconds of one call, with nothing kept from the one before."""
    found = []
    for _ in range(CALLS):
        start = time.process_time()
        mx.eval(work())
        found.append(time.process_time() - start)
    return min(found)


def main() -> None:
    """Measure and print."""
    print(f"mlx {version('mlx')}, {platform.platform()}")
    mx.set_default_device(mx.cpu)
    numbers = -mx.abs(mx.random.normal((300, 2000)))
    mx.eval(numbers)
    for name, work in (
        ("addition", lambda: numbers + numbers),
        ("exponential", lambda: mx.exp(numbers)),
        ("softmax", lambda: mx.softmax(numbers, axis=-1)),
    ):
        print(f"{name}: {1e9 * spent(work) / numbers.size:.1f} ns a number")
    rotary = rotary_of(nn.RoPE(64), 64)
    for rows in (512, 2048):
        keys = mx.random.normal((1, 3, rows, 64))
        steps = mx.random.randint(0, 1000, (1, 3, rows)).astype(mx.int32)
        mx.eval(keys, steps)
        tables = 1e3 * spent(lambda keys=keys, steps=steps: rotary.placed(keys, steps, 2000))
        module = 1e3 * spent(lambda keys=keys, steps=steps: rotary.turn_back(keys, steps))
        print(f"{rows} rows turned: by tables {tables:.2f} ms, by the module {module:.2f} ms")
    for heads, group, width in ((3, 3, 64), (8, 4, 64), (8, 4, 128)):
        queries = mx.random.normal((1, heads * group, 1, width))
        keys, values = mx.random.normal((2, 1, heads, 512, width))
        mx.eval(queries, keys, values)
        took = [
            1e3
            * spent(lambda grouped=grouped, of=(queries, keys, values): weighed(*of, 0.1, grouped=grouped)[0])
            for grouped in (False, True)
        ]
        told = f"{heads} heads of {width} for {group} each, 512 rows"
        print(f"attention, {told}: as MLX {took[0]:.2f} ms, heads at once {took[1]:.2f} ms")


if __name__ == "__main__":
    main()
