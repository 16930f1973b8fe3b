"""Keyformer's own lines in the kernel: H2O's mass, with noise at the ranking or inside the softmax.

They equal ``vqx_keyformer.method``: ``factors[1]`` is tau, ``at`` a row's place in each array. At tau 0
the bits are those of H2O's mass. The least score goes, of equal ones the oldest row.
"""

from vqx_kernels import Method

RANK = Method(
    "keyformer_rank",
    """
    const float kept = mass[at] + gained;
    mass_out[at] = kept;
    score = vqx_fma(factors[1], noise[at], kept);
    """,
    reads=("mass", "noise"),
    writes=("mass",),
)
"""The mass stays clean, and noise joins the ranking."""

LOGIT = Method(
    "keyformer_logit",
    """
    score = mass[at] + gained;
    mass_out[at] = score;
    """,
    reads=("mass", "noise"),
    writes=("mass",),
    adjust="((logit + noise[at]) / factors[1])",
)
"""Noise and temperature stand inside the softmax that is accumulated."""
