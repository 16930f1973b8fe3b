"""What the plugin registers; the method is imported inside the hook, so that discovery costs nothing."""

import vqx


@vqx.hookimpl
def vqx_methods() -> list[vqx.MethodSpec]:
    from vqx_snapkv.method import SnapKVConfig, build

    return [
        vqx.MethodSpec(
            name="snapkv",
            summary="rows that the end of the prompt attends to, and their neighbours",
            paper="arXiv 2404.14469",
            config=SnapKVConfig,
            build=build,
            windows=("window",),
            example={"window": 8},
        )
    ]


@vqx.hookimpl
def vqx_collapses() -> list[vqx.Collapse]:
    def snapkv(**options: object) -> vqx.Setting:
        return vqx.Setting("snapkv", {"window": 1, "pool": None, **options})

    morphkv = {"window": 3, "over": "all", "fuse": "sum"}
    return [
        *(
            vqx.Collapse(
                snapkv(heads=heads),
                vqx.Setting("tova", {"heads": heads, "keep_newest": True}),
                reason="the latest query alone is asked, and nothing is pooled",
            )
            for heads in ("each", "layer")
        ),
        vqx.Collapse(
            snapkv(window=3),
            vqx.Setting("morphkv", morphkv),
            engine={"queries": "model"},
            reason="morphkv lets keys that stand in for queries read the rows that came after them",
        ),
    ]
