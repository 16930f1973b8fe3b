"""The laws of every method, at Q-Filters' settings: filters name their heads, so none is seen alone."""

from pathlib import Path

from vqx.testing import MethodLaws

FILTERS = str(Path(__file__).with_name("two_heads.safetensors"))
"""Random directions for one layer of two heads of 16."""


class TestLaws(MethodLaws):
    method = "qfilters"
    settings = ()
    pooled_settings = ({"filters": FILTERS}, {"filters": FILTERS, "n_sink": 0, "recent": 5})
