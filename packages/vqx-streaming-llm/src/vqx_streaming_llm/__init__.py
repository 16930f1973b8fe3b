"""StreamingLLM for vqx: keep the first rows and the newest."""

from vqx_streaming_llm.method import SlidingWindowConfig, StreamingConfig

__all__ = ["SlidingWindowConfig", "StreamingConfig"]
