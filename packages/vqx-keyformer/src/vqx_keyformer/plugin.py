"""What the plugin registers; the method is imported inside the hook, so that discovery costs nothing."""

import vqx


@vqx.hookimpl
def vqx_methods() -> list[vqx.MethodSpec]:
    from vqx_keyformer.method import KeyformerConfig, build

    return [
        vqx.MethodSpec(
            name="keyformer",
            summary="accumulated attention with frozen Gumbel noise and a temperature",
            paper="arXiv 2403.09054",
            config=KeyformerConfig,
            build=build,
            adapted={"recent": 0, "tau_init": 1.0, "tau_end": 2.0, "anneal_steps": 256, "seed": 0},
        )
    ]


@vqx.hookimpl
def vqx_collapses() -> list[vqx.Collapse]:
    def without_noise(**options: object) -> vqx.Collapse:
        h2o = vqx.Setting("h2o", {"decay": 1.0, "grace": 0, "normalise": None})
        return vqx.Collapse(vqx.Setting("keyformer", options), h2o, reason="noise counts for nothing")

    return [
        without_noise(tau=0.0),
        without_noise(tau=0.0, seed=7, tau_end=9.0),
        without_noise(tau_init=0.0, tau_end=0.0, anneal_steps=3, seed=11),
    ]
