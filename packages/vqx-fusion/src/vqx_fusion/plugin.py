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
        )
    ]
