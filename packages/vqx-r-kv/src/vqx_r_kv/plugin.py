"""What the plugin registers; the method is imported inside the hook, so that discovery costs nothing."""

import vqx


@vqx.hookimpl
def vqx_methods() -> list[vqx.MethodSpec]:
    from vqx_r_kv.method import RKVConfig, build

    return [
        vqx.MethodSpec(
            name="r-kv",
            summary="rows attended to, less those that repeat others",
            paper="arXiv 2505.24133",
            config=RKVConfig,
            build=build,
        )
    ]
