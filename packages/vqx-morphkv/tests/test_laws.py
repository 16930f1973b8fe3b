"""The laws of every method, at MorphKV's settings."""

from vqx.testing import MethodLaws


class TestLaws(MethodLaws):
    method = "morphkv"
    settings = (
        {},
        {"over": "old", "group": "max", "fuse": "max"},
        {"group": "logits", "n_sink": 0, "window": 3},
    )
