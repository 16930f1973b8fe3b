"""What the plugin registers; the method is imported inside the hook, so that discovery costs nothing."""

import vqx


@vqx.hookimpl
def vqx_methods() -> list[vqx.MethodSpec]:
    from vqx_chunkkv.method import ChunkKVConfig, build, wrap

    return [
        vqx.MethodSpec(
            name="chunkkv",
            summary="whole chunks of rows stay or go, by the scores of any method",
            paper="arXiv 2502.00299",
            config=ChunkKVConfig,
            build=build,
            wrap=wrap,
            alone=("n_sink", "window"),
            windows=("window",),
            example={"window": 8, "chunk": 3},
        )
    ]


@vqx.hookimpl
def vqx_collapses() -> list[vqx.Collapse]:
    reason = "a chunk of one row has that row's score"
    return [
        vqx.Collapse(
            vqx.Setting("chunkkv", {"chunk": 1, "window": 4}),
            vqx.Setting("snapkv", {"pool": None, "window": 4}),
            reason=reason,
        ),
        vqx.Collapse(
            vqx.Setting("chunkkv", {"chunk": 1, "window": 4, "heads": "layer"}),
            vqx.Setting("snapkv", {"pool": None, "window": 4, "heads": "layer"}),
            reason=reason,
        ),
        vqx.Collapse(vqx.Setting("chunkkv(h2o)", {"chunk": 1}), vqx.Setting("h2o", {}), reason=reason),
    ]
