"""What the plugin registers; the method is imported inside the hook, so that discovery costs nothing."""

import vqx


@vqx.hookimpl
def vqx_methods() -> list[vqx.MethodSpec]:
    from vqx_ada.method import AdaConfig, build, wrap

    return [
        vqx.MethodSpec(
            name="ada",
            summary="the heads of a layer share one budget, around any method",
            paper="arXiv 2407.11550",
            config=AdaConfig,
            build=build,
            wrap=wrap,
            alone=("n_sink", "window", "kernel"),
            example={"window": 8},
        )
    ]
