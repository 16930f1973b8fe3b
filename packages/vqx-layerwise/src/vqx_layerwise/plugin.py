"""What the plugin registers; the method is imported inside the hook, so that discovery costs nothing."""

import click
import vqx


@vqx.hookimpl
def vqx_methods() -> list[vqx.MethodSpec]:
    from vqx_layerwise.method import LayerwiseConfig, build, share

    return [
        vqx.MethodSpec(
            name="layerwise",
            summary="any method, with rows shared out among the layers by a measured profile",
            paper="vqx's own",
            config=LayerwiseConfig,
            build=build,
            share=share,
            example={"floor": 1.0},
        )
    ]


@vqx.hookimpl
def vqx_collapses() -> list[vqx.Collapse]:
    reason = "nothing is left to share out"
    return [
        vqx.Collapse(vqx.Setting("layerwise(h2o)", {"floor": 1.0}), vqx.Setting("h2o", {}), reason=reason),
        vqx.Collapse(
            vqx.Setting("layerwise", {"floor": 1.0}), vqx.Setting("h2o", {"n_sink": 4}), reason=reason
        ),
    ]


@vqx.hookimpl
def vqx_commands() -> list[click.Command]:
    from vqx_layerwise.command import command

    return [command]
