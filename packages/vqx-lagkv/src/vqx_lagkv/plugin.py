"""What the plugin registers; the method is imported inside the hook, so that discovery costs nothing."""

import vqx


@vqx.hookimpl
def vqx_methods() -> list[vqx.MethodSpec]:
    from vqx_lagkv.method import LagKVConfig, build

    return [
        vqx.MethodSpec(
            name="lagkv",
            summary="rows that spread most against the next block",
            paper="arXiv 2504.04704",
            config=LagKVConfig,
            build=build,
        )
    ]
