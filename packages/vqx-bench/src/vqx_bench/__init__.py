"""Benchmarks for vqx: what evicting caches cost in time and memory on your machine."""

from vqx_bench.contenders import Contender, evicting, peers, plain, rotating
from vqx_bench.measuring import Measured
from vqx_bench.shapes import Subject, subject

__all__ = ["Contender", "Measured", "Subject", "evicting", "peers", "plain", "rotating", "subject"]
