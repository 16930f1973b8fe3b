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
    def by_its_plain_name(name: str, n_sink: int) -> vqx.Collapse:
        sinks = {"n_sink": n_sink}
        return vqx.Collapse(
            vqx.Setting(name, sinks),
            vqx.Setting("streaming-llm", sinks),
            reason="the rows beside the sinks are the newest",
        )

    return [
        by_its_plain_name("sink", 4),
        by_its_plain_name("sliding-window", 4),
        by_its_plain_name("sliding-window", 0),
    ]
