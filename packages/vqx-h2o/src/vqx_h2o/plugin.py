"""What the plugin registers; the method is imported inside the hook, so that discovery costs nothing."""

import vqx


@vqx.hookimpl
def vqx_methods() -> list[vqx.MethodSpec]:
    from vqx_h2o.method import H2OConfig, build

    return [
        vqx.MethodSpec(
            name="h2o",
            summary="rows that gathered most attention, and the recent ones",
            paper="arXiv 2306.14048",
            config=H2OConfig,
            build=build,
            adapted={"recent": 0, "grace": 16, "decay": 0.98, "normalise": None},
        )
    ]
