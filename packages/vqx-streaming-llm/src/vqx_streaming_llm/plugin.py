"""What the plugin registers; the method is imported inside the hook, so that discovery costs nothing."""

import vqx


@vqx.hookimpl
def vqx_methods() -> list[vqx.MethodSpec]:
    from vqx_streaming_llm.method import SlidingWindowConfig, StreamingConfig, build

    paper = "arXiv 2309.17453"
    return [
        vqx.MethodSpec(
            name="streaming-llm",
            summary="the first rows and the newest",
            paper=paper,
            config=StreamingConfig,
            build=build,
        ),
        vqx.MethodSpec(
            name="sink",
            summary="the first rows and the newest, by its plain name",
            paper=paper,
            config=StreamingConfig,
            build=build,
        ),
        vqx.MethodSpec(
            name="sliding-window",
            summary="the newest rows",
            paper=paper,
            config=SlidingWindowConfig,
            build=build,
        ),
    ]


@vqx.hookimpl
def vqx_collapses() -> list[vqx.Collapse]:
    def streaming(n_sink: int) -> vqx.Setting:
        return vqx.Setting("streaming-llm", {"n_sink": n_sink})

    return [
        vqx.Collapse(vqx.Setting("sink", {"n_sink": 4}), streaming(4)),
        vqx.Collapse(vqx.Setting("sliding-window", {"n_sink": 4}), streaming(4)),
        vqx.Collapse(vqx.Setting("sliding-window", {"n_sink": 0}), streaming(0)),
    ]
