"""H2O's own lines in the kernel: mass grows where the weights are, and ranks at once.

They equal ``vqx.scorers.accumulated``: ``factors[1]`` is the decay over the block's queries, ``at`` a row's
place in each ``[B, H, n]`` array. The least mass goes, of equal ones the oldest row.
"""

from vqx_kernels import Method

MASS = Method(
    "h2o_mass",
    """
    score = vqx_fma(mass[at], factors[1], gained);
    mass_out[at] = score;
    """,
    reads=("mass",),
    writes=("mass",),
)
"""The mass itself, as in the paper."""

SEEN = Method(
    "h2o_seen",
    """
    const float kept = vqx_fma(mass[at], factors[1], gained);
    // queries of the block that came with the row or after it; only after it, where none sees its own row
    const int late = position[at] - start + (HIDE == 2 && position[at] > 0 ? 1 : 0);
    const float sightings = seen[at] + float(S - (late > 0 ? late : 0));
    mass_out[at] = kept;
    seen_out[at] = sightings;
    score = kept / (sightings == 0.0f ? 1.0f : sightings);
    """,
    reads=("mass", "seen"),
    writes=("mass", "seen"),
)
"""The mass for each query that could see the row."""
