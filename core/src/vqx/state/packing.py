"""Rows in fewer bits: keys and values as MLX quantises them, a row as one string of words.

What moves rows (append, gather, overwrite, files) moves words and knows nothing of it; what reads them gets
them widened, one layer at a time.
"""

from typing import NamedTuple

import mlx.core as mx


class Packing(NamedTuple):
    """How one layer's rows are packed (``mx.quantize``: a scale and a bias for each group of channels)."""

    bits: int
    group_size: int
    dtype: mx.Dtype  # of keys and values as the model makes them
    width: int  # D
    value_width: int  # Dv

    def pack(self, rows: mx.array) -> mx.array:
        """Rows ``[..., D]`` as words ``[..., W]`` uint32: the numbers, then the scales and biases."""
        numbers, scales, biases = mx.quantize(rows, group_size=self.group_size, bits=self.bits)
        return mx.concatenate([numbers, mx.concatenate([scales, biases], axis=-1).view(mx.uint32)], axis=-1)

    def unpack(self, words: mx.array, width: int) -> mx.array:
        """The reverse, ``width`` channels wide."""
        numbers = width * self.bits // 32
        scales, biases = mx.split(words[..., numbers:].view(self.dtype), 2, axis=-1)
        return mx.dequantize(words[..., :numbers], scales, biases, group_size=self.group_size, bits=self.bits)

    def packed(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        return self.pack(keys), self.pack(values)

    def unpacked(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        return self.unpack(keys, self.width), self.unpack(values, self.value_width)


def packing_of(bits: int, group_size: int, keys: mx.array, values: mx.array) -> Packing:
    """How rows like these are packed, ``[B, H, n, D]`` and ``[B, H, n, Dv]``.

    Raises:
        ValueError: channels that make no whole groups.
    """
    for name, array in (("keys", keys), ("values", values)):
        if array.shape[3] % group_size:
            raise ValueError(
                f"bits={bits}: {name} of {array.shape[3]} channels make no whole groups of"
                f" group_size={group_size}; give a group_size that divides them (32, 64 or 128)"
            )
    if keys.dtype != values.dtype:
        raise ValueError(f"bits={bits}: keys of {keys.dtype} beside values of {values.dtype} are not packed")
    return Packing(bits, group_size, keys.dtype, keys.shape[3], values.shape[3])
