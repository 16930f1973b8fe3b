"""What the plugin registers; the method is imported inside the hook, so that discovery costs nothing."""

import vqx


@vqx.hookimpl
def vqx_methods() -> list[vqx.MethodSpec]:
    from vqx_kvzip.method import KVzipConfig, build

    return [
        vqx.MethodSpec(
            name="kvzip",
            summary="rows that the model needs to repeat its context; needs vqx_kvzip.compress",
            paper="arXiv 2505.23416",
            config=KVzipConfig,
            build=build,
            example=None,
        )
    ]
