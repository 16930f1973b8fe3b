"""What the plugin registers; the method is imported inside the hook, so that discovery costs nothing."""

import vqx


@vqx.hookimpl
def vqx_methods() -> list[vqx.MethodSpec]:
    from vqx_tova.method import TovaConfig, build

    return [
        vqx.MethodSpec(
            name="tova",
            summary="rows that the latest query attends to",
            paper="arXiv 2401.06104",
            config=TovaConfig,
            build=build,
            adapted={"heads": "each"},
        )
    ]
