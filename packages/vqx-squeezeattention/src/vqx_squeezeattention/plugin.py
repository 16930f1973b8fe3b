"""What the plugin registers; the method is imported inside the hook, so that discovery costs nothing."""

import vqx


@vqx.hookimpl
def vqx_methods() -> list[vqx.MethodSpec]:
    from vqx_squeezeattention.method import SqueezeConfig, build, wrap

    return [
        vqx.MethodSpec(
            name="squeezeattention",
            summary="budgets of the layers by how much their attention changes, around any method",
            paper="arXiv 2404.04793",
            config=SqueezeConfig,
            build=build,
            wrap=wrap,
            alone=("n_sink",),
        )
    ]


@vqx.hookimpl
def vqx_collapses() -> list[vqx.Collapse]:
    def whole(method: str) -> vqx.Setting:
        return vqx.Setting(method, {"percent": 1.0})

    reason = "no layer gives rows to others"
    return [
        vqx.Collapse(whole("squeezeattention"), vqx.Setting("streaming-llm", {}), reason=reason),
        vqx.Collapse(whole("squeezeattention(h2o)"), vqx.Setting("h2o", {}), reason=reason),
    ]
