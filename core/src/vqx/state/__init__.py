"""The eviction state: the rows that a layer keeps, what is known of them, and the caches that hold them.

``cache`` is what mlx-lm is given; its ``layer`` takes rows in, shows them to attention and cuts; ``batch`` is
many sequences, ``reversible`` a cache that takes tokens back, ``saved`` a cache on disk.
"""
