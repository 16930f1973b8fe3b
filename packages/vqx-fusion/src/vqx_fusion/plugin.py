"""What the plugin registers; the method is imported inside the hook, so that discovery costs nothing."""

import vqx


@vqx.hookimpl
def vqx_methods() -> list[vqx.MethodSpec]:
    from vqx_fusion.method import FusionConfig, build

    return [
        vqx.MethodSpec(
            name="fusion",
            summary="rows that are attended to, and rows that are unlike the rest",
            paper="vqx's own",
            config=FusionConfig,
            build=build,
        )
    ]


@vqx.hookimpl
def vqx_collapses() -> list[vqx.Collapse]:
    return [
        vqx.Collapse(
            vqx.Setting("fusion", {"local": 1.0, "recent": 4}),
            vqx.Setting("h2o", {"normalise": "seen", "recent": 4}),
            reason="all free rows go by mean attention",
        ),
        vqx.Collapse(
            vqx.Setting("fusion", {"local": 0.0, "recent": 4}),
            vqx.Setting("keydiff", {"recent": 4}),
            engine={"queries": "model"},
            reason="all free rows go by their keys; beside keys as queries they stand in other slots",
        ),
        vqx.Collapse(
            vqx.Setting("fusion", {"local": 0.0, "recent": 4, "beyond": "expected"}),
            vqx.Setting("expected-attention", {"recent": 4}),
            engine={"queries": "model", "cadence": "block"},
            reason="all free rows go by expected attention",
        ),
    ]
