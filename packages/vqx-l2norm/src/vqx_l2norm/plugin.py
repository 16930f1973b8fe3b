"""What the plugin registers; the method is imported inside the hook, so that discovery costs nothing."""

import vqx

NAMES = {"l2norm": "rows whose keys are shortest", "knorm": "rows whose keys are shortest, by its other name"}


@vqx.hookimpl
def vqx_methods() -> list[vqx.MethodSpec]:
    from vqx_l2norm.method import L2NormConfig, build

    return [
        vqx.MethodSpec(
            name=name,
            summary=summary,
            paper="arXiv 2406.11430",
            config=L2NormConfig,
            build=build,
            example={"skip": 0},
        )
        for name, summary in NAMES.items()
    ]


@vqx.hookimpl
def vqx_collapses() -> list[vqx.Collapse]:
    knorm, l2norm = (vqx.Setting(name, {"skip": 0}) for name in ("knorm", "l2norm"))
    return [vqx.Collapse(knorm, l2norm, reason="two names for one")]
