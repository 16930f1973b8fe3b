"""ChunkKV for vqx: whole chunks of rows stay or go."""

from vqx_chunkkv.method import ChunkKVConfig

__all__ = ["ChunkKVConfig"]
