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
            windows=("window",),
            example={"window": 8},
        )
    ]


@vqx.hookimpl
def vqx_collapses() -> list[vqx.Collapse]:
    reason = "each head keeps its whole budget"
    engine = {"queries": "model", "cadence": "block"}
    return [
        vqx.Collapse(vqx.Setting("ada(h2o)", {"floor": 1.0}), vqx.Setting("h2o", {}), engine, reason),
        vqx.Collapse(
            vqx.Setting("ada", {"floor": 1.0, "window": 4}),
            vqx.Setting("snapkv", {"window": 4}),
            engine,
            reason,
        ),
    ]
