"""Which options a search uses: an engine that does not have one of them leaves the choice of tokens to `choose`."""

from dataclasses import fields

from regard.generation.config import DecodeConfig

# Options without any effect unless another one is set.
OF_SAMPLING = frozenset({"temperature", "top_k", "top_p", "min_p", "typical_p"})
OF_GROUPS = frozenset({"diversity_penalty"})
# Constraints that requests or the caller have, beside the keys of [decode].
CONSTRAINTS = frozenset({"required", "banned", "trace"})
DEFAULTS = tuple((each.name, each.default) for each in fields(DecodeConfig))


def options_in_use(config: DecodeConfig) -> frozenset[str]:
    """The keys of [decode] whose values differ from the default, and have an effect."""
    values = vars(config)
    changed = {name for name, default in DEFAULTS if values[name] != default}
    if not config.sample:
        changed -= OF_SAMPLING
    if config.beam_groups == 1:
        changed -= OF_GROUPS
    return frozenset(changed)
