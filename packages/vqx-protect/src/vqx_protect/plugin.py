"""What the plugin registers; the method is imported inside the hook, so that discovery costs nothing."""

import vqx


@vqx.hookimpl
def vqx_methods() -> list[vqx.MethodSpec]:
    from vqx_protect.method import ProtectConfig, build, wrap

    return [
        vqx.MethodSpec(
            name="protect",
            summary="spans of the text that are never evicted, around any method",
            paper="arXiv 2510.00231",
            config=ProtectConfig,
            build=build,
            wrap=wrap,
            alone=("n_sink",),
        )
    ]


@vqx.hookimpl
def vqx_collapses() -> list[vqx.Collapse]:
    why = "without spans it is its base"
    return [
        vqx.Collapse(vqx.Setting("protect", {}), vqx.Setting("streaming-llm", {}), reason=why),
        vqx.Collapse(vqx.Setting("protect(h2o)", {}), vqx.Setting("h2o", {}), reason=why),
        vqx.Collapse(
            vqx.Setting("protect(h2o)", {"n_sink": 0, "spans": ((0, 3),)}),
            vqx.Setting("h2o", {"n_sink": 3}),
            reason="sinks are a span at the start",
        ),
    ]
