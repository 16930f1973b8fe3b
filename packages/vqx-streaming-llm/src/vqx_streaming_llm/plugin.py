"""What the plugin registers; the method is imported inside the hook, so that discovery costs nothing."""

import vqx


@vqx.hookimpl
def vqx_methods() -> list[vqx.MethodSpec]:
    from vqx_streaming_llm.method import SlidingWindowConfig, StreamingConfig, build

    both = "the first rows and the newest"
    named = (
        ("streaming-llm", both, StreamingConfig),
        ("sink", f"{both}, by its plain name", StreamingConfig),
        ("sliding-window", "the newest rows", SlidingWindowConfig),
    )
    return [
        vqx.MethodSpec(name=name, summary=summary, paper="arXiv 2309.17453", config=config, build=build)
        for name, summary, config in named
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
