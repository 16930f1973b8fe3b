"""What the plugin registers; the method is imported inside the hook, so that discovery costs nothing."""

import vqx


@vqx.hookimpl
def vqx_methods() -> list[vqx.MethodSpec]:
    from vqx_critical.method import CriticalConfig, build, wrap

    return [
        vqx.MethodSpec(
            name="critical",
            summary="attention weighed by what a row's value does to the output, around any method",
            paper="arXiv 2502.03805",
            config=CriticalConfig,
            build=build,
            wrap=wrap,
            alone=("n_sink", "window", "kernel"),
            windows=("window",),
            example={"window": 8},
        )
    ]


@vqx.hookimpl
def vqx_collapses() -> list[vqx.Collapse]:
    reason = "the whole budget goes by the base's score"
    return [
        vqx.Collapse(
            vqx.Setting("critical(h2o)", {"first_stage": 1.0}), vqx.Setting("h2o", {}), reason=reason
        ),
        vqx.Collapse(
            vqx.Setting("critical", {"first_stage": 1.0, "window": 4}),
            vqx.Setting("snapkv", {"window": 4}),
            reason=reason,
        ),
    ]
