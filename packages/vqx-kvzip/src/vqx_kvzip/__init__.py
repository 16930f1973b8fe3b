"""KVzip for vqx: rows that the model needs to repeat its context."""

from vqx_kvzip.method import KVzipConfig
from vqx_kvzip.repetition import compress

__all__ = ["KVzipConfig", "compress"]
