"""MorphKV's own line in the kernel: the weights of the window's queries, fused, rank at once.

It equals ``vqx_morphkv.method``, whose options the shared body takes; the least goes, of equals the oldest.
"""

from vqx_kernels import Method

RELEVANCE = Method("morphkv", "score = gained;")
