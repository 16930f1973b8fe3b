"""What the plugin registers; the method is imported inside the hook, so that discovery costs nothing."""

import vqx


@vqx.hookimpl
def vqx_methods() -> list[vqx.MethodSpec]:
    from vqx_morphkv.method import MorphKVConfig, build

    return [
        vqx.MethodSpec(
            name="morphkv",
            summary="rows that the last few queries attend to",
            paper="arXiv 2503.00979",
            config=MorphKVConfig,
            build=build,
            windows=("window",),
        )
    ]


@vqx.hookimpl
def vqx_collapses() -> list[vqx.Collapse]:
    tova = vqx.Setting("tova", {"heads": "each", "keep_newest": True})
    reason = "one query has nothing to be fused with"
    return [
        vqx.Collapse(vqx.Setting("morphkv", {"window": 1}), tova, reason=reason),
        vqx.Collapse(vqx.Setting("morphkv", {"window": 1, "fuse": "max"}), tova, reason=reason),
    ]
