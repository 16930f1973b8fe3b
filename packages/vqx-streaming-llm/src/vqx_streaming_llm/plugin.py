"""What the plugin registers; the method is imported inside the hook, so that discovery costs nothing."""

import vqx


@vqx.hookimpl
def vqx_methods() -> list[vqx.MethodSpec]:
    from vqx_streaming_llm.method import StreamingConfig, build

    return [
        vqx.MethodSpec(
            name="streaming-llm",
            summary="the first rows and the newest",
            paper="arXiv 2309.17453",
            config=StreamingConfig,
            build=build,
        )
    ]
