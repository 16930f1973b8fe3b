"""What launches for many layers leave, beside what NumPy says of it: cases that ``vqx_kernels.verify`` tries.

Metal and the C loops have no such launches.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from vqx_kernels import gathering, probe, tensor
from vqx_kernels.attention import Asked, Rule

ERROR = 1e-6
"""Of a number, as far as a sum may be from the same one in another order; what is moved is equal."""


def picked(target: str) -> float:
    """Rows at slots of their own, and zeros behind them; of 16 bytes at a time, and of one number."""
    return max(_picked(target, width) for width in (64, 12))


def _picked(target: str, width: int) -> float:
    made = _drawn(width)
    arrays = made.standard_normal((6, 2, 3, 50, width)).astype(np.float32)
    slots = np.sort(made.permuted(np.tile(np.arange(50), (6, 3, 1)), axis=2)[..., :33], axis=2)
    found = gathering.picked(target, [*map(_bfloat, arrays)], mx.array(slots.astype(np.int32)), 77)
    far = 0.0
    for number, (array, one) in enumerate(zip(arrays, found, strict=True)):
        own = slots.reshape(3, 2, 3, 33)[number % 3]  # of three layers, keys and then values
        right = np.zeros((2, 3, 77, width))
        right[:, :, :33] = np.take_along_axis(_numbers(_bfloat(array)), own[..., None], axis=2)
        far = max(far, _apart(_numbers(one), right))
    return far


def put_together(target: str) -> float:
    """Rows of several arrays one after the other, and columns side by side."""
    made = _drawn(1)
    rows = made.standard_normal((6, 2, 3, 9, 16)).astype(np.float32)
    found = gathering.gathered(target, [*map(mx.array, rows)], 3, 2, 4)
    far = [_apart(_numbers(one), np.concatenate([*own[:, :, :, 2:6]], axis=2))
           for one, own in zip(found, (rows[:3], rows[3:]), strict=True)]  # fmt: skip
    columns = made.integers(99, size=(5, 2, 3, 70)).astype(np.int32)
    side = gathering.joined(target, [*map(mx.array, columns)])
    return max(*far, _apart(_numbers(side), np.concatenate([*columns])))


def nans(target: str) -> float:
    """NaN among rows, and none where it stands beside them; of arrays that lie row by row, and of views."""
    rows = _drawn(2).standard_normal((4, 2, 3, 40, 64)).astype(np.float32)
    rows[1, 1, 2, 31, 63] = rows[2, 0, 0, 3, 0] = rows[3, 0, 1, 8, 5] = np.nan
    right = np.array([False, True, False, True])  # the third's is behind or before what is looked at
    found = gathering.nans(target, [*map(_bfloat, rows)], 8, 32)
    turned = [_bfloat(each).swapaxes(1, 2) for each in rows.swapaxes(2, 3)]
    said = [np.array([bool(one.item()) for one in each])
            for each in (found, gathering.nans(target, turned, 8, 32))]  # fmt: skip
    return max(float(np.mean(each != right)) for each in said)


def summed(target: str) -> float:
    """A prompt's sums through a method's own lines: as the lines of what ``prompt_mass`` gives."""
    made, far = _drawn(3), 0.0
    for width, length in ((64, 300), (128, 40)):
        shape = (1, 2, 4, length, width), (1, 2, 300, width)
        queries, keys = (_bfloat(made.standard_normal(each).astype(np.float32)) for each in shape)
        position = mx.array(np.tile(np.arange(300, dtype=np.int32), (1, 2, 1)))
        mass = made.random((1, 2, 300), np.float32)
        asked, rule = Asked(queries, keys, position, 300 - length, width**-0.5), Rule("later")
        found = tensor.observed(target, asked, rule, probe.MASS, {"mass": mx.array(mass)}, (0.5,))
        right = mass * 0.5 + _numbers(tensor.prompt_mass(target, asked, rule))
        far = max(far, _apart(_numbers(found.written["mass"]), right), _apart(_numbers(found.score), right))
    return far


CASES: dict[str, Callable[[str], float]] = {
    "rows picked": picked,
    "rows put together": put_together,
    "NaN": nans,
    "sums through lines": summed,
}
"""How far each is from what it should be, of the number."""


def _drawn(number: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(number))


def _bfloat(numbers: Any) -> mx.array:
    return mx.array(numbers).astype(mx.bfloat16)


def _numbers(array: mx.array) -> Any:
    return np.array(array.astype(mx.float32), float)


def _apart(found: Any, right: Any) -> float:
    """Infinite where one is NaN."""
    far = np.abs(found - right) / np.maximum(np.abs(right), 1e-30)
    return float(np.max(np.where(np.isnan(far), np.inf, far)))
