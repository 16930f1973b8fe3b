"""What a layer's method and options cannot do together, refused when its cache is made."""

from vqx.options import Options
from vqx.scorers import Method
from vqx.state.layer import Plan


def refuse(plan: Plan, *, together: bool) -> None:
    """Raise what does not go together; ``together`` says that layers decide on their rows together.

    Raises:
        ValueError: says what, and what to do.
    """
    method, options = plan.method, plan.options
    if options.queries is None:
        raise ValueError("queries=None: a single cache needs 'model', 'keys' or 'centred-keys'")
    if (options.positions == "compact" or method.scorer.rotary) != (plan.rotary is not None):
        raise ValueError(
            "positions='compact', and a scorer that asks for it, need the layer's rotary embedding;"
            " others take none"
        )
    if options.cadence == "token" and (method.scorer.note is not None or method.merge is not None):
        raise ValueError(
            "cadence='token': this method sums up queries, or merges values, block by block;"
            " use cadence='block'"
        )
    if method.floor is not None:
        _refuse_shared(method, options)
    if (method.share is not None) != together:
        raise ValueError("layers that share their rows decide together: build them with vqx.make_cache")
    if plan.packing is not None and method.merge is not None:
        raise ValueError(
            f"bits={options.bits}: this method changes values, which rows in fewer bits do not allow; use"
            " a method that drops rows, or leave bits out"
        )


def _refuse_shared(method: Method, options: Options) -> None:
    """Refuse what heads that share a budget cannot do."""
    for name, allowed in (("queries", "model"), ("cadence", "block"), ("positions", "absolute")):
        if getattr(options, name) != allowed:
            raise ValueError(
                f"{name}={getattr(options, name)!r}: heads that share a budget need {name}={allowed!r}, and a"
                " model whose attention can be seen, since each head's rows are told apart by its mask"
            )
    if method.merge is not None or method.scorer.note is not None:
        raise ValueError(
            "heads share a budget where rows are ranked and dropped; this method merges values, or sums up"
            " queries: use it alone"
        )
