"""TOVA's own line in the kernel: the last query's weight ranks, where every head ranks alone.

It equals ``vqx_tova.method``; the least weight goes, of equal ones the oldest row.
"""

from vqx_kernels import Method

LAST = Method("tova", "score = gained;")
