"""What makes a decode step cheap on a CPU: an exponential against an addition, a turn by tables against none.

Prints nanoseconds a number, and milliseconds for all keys of 3 heads of 64 channels at 512 and 2,048 rows, by
the processor's clock (least of 20 calls).
"""

import platform
import time
from collections.abc import Callable
from importlib.metadata import version

import mlx.core as mx
import mlx.nn as nn
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


if __name__ == "__main__":
    main()
