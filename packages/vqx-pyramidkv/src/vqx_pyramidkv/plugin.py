"""What the plugin registers; the method is imported inside the hook, so that discovery costs nothing."""

import vqx


@vqx.hookimpl
def vqx_methods() -> list[vqx.MethodSpec]:
    from vqx_pyramidkv.method import PyramidKVConfig, build

    return [
        vqx.MethodSpec(
            name="pyramidkv",
            summary="rows that the end of the prompt attends to, more of them in the first layers",
            paper="arXiv 2406.02069",
            config=PyramidKVConfig,
            build=build,
        )
    ]


@vqx.hookimpl
def vqx_collapses() -> list[vqx.Collapse]:
    flat = vqx.Setting("pyramidkv", {"beta": 1, "window": 4})
    return [vqx.Collapse(flat, vqx.Setting("snapkv", {"window": 4}), reason="all layers have one budget")]
