"""What the plugin registers; the method is imported inside the hook, so that discovery costs nothing."""

import vqx


@vqx.hookimpl
def vqx_methods() -> list[vqx.MethodSpec]:
    from vqx_cam.method import CamConfig, build, wrap

    return [
        vqx.MethodSpec(
            name="cam",
            summary="a row that goes is merged into the rows next to it, around any method",
            paper="ICML 2024",
            config=CamConfig,
            build=build,
            wrap=wrap,
            alone=("n_sink",),
        )
    ]


@vqx.hookimpl
def vqx_collapses() -> list[vqx.Collapse]:
    def unmerged(method: str, base: str) -> vqx.Collapse:
        setting = vqx.Setting(method, {"merge_budget": 0})
        return vqx.Collapse(setting, vqx.Setting(base, {}), reason="nothing is merged")

    return [unmerged("cam", "streaming-llm"), unmerged("cam(tova)", "tova")]
