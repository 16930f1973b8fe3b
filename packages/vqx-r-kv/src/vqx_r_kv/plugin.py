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
            windows=("window",),
        )
    ]


@vqx.hookimpl
def vqx_collapses() -> list[vqx.Collapse]:
    attention = {"mix": 1.0, "kernel": 1, "group": "mean", "window": 3}
    return [
        vqx.Collapse(
            vqx.Setting("r-kv", attention),
            vqx.Setting("morphkv", {"over": "old", "fuse": "sum", "window": 3}),
            engine={"queries": "model"},
            reason="redundancy takes nothing off, and attention is not pooled",
        )
    ]
