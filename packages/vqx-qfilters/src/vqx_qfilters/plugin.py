"""What the plugin registers; the method is imported inside the hook, so that discovery costs nothing."""

import click
import vqx


@vqx.hookimpl
def vqx_methods() -> list[vqx.MethodSpec]:
    from vqx_qfilters.method import QFiltersConfig, build

    return [
        vqx.MethodSpec(
            name="qfilters",
            summary="rows along the queries' main direction",
            paper="arXiv 2503.02812",
            config=QFiltersConfig,
            build=build,
            example=None,
        )
    ]


@vqx.hookimpl
def vqx_commands() -> list[click.Command]:
    from vqx_qfilters.command import command

    return [command]
