"""What the plugin registers; the method is imported inside the hook, so that discovery costs nothing."""

import vqx


@vqx.hookimpl
def vqx_methods() -> list[vqx.MethodSpec]:
    from vqx_expected_attention.method import ExpectedAttentionConfig, build

    return [
        vqx.MethodSpec(
            name="expected-attention",
            summary="rows that queries to come will attend to",
            paper="arXiv 2510.00636",
            config=ExpectedAttentionConfig,
            build=build,
        )
    ]
