"""What the plugin registers; the method is imported inside the hook, so that discovery costs nothing."""

import vqx


@vqx.hookimpl
def vqx_methods() -> list[vqx.MethodSpec]:
    from vqx_keydiff.method import KeyDiffConfig, build

    return [
        vqx.MethodSpec(
            name="keydiff",
            summary="rows whose keys point away from the mean key",
            paper="arXiv 2504.15364",
            config=KeyDiffConfig,
            build=build,
        )
    ]
