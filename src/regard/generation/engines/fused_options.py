"""Which options of a search each engine carries out in steps that it takes without Python between them.

The names are keys of the [decode] table, and constraints of requests. A search that has any other option is stepped:
`choose` then chooses every token. So an option that is new is right with every engine before any engine has it.
"""

# What is decided before or after the steps: limits, which model computes and how, the order of finished outputs; and
# what belongs to outputs that are not searched for token by token.
OUTSIDE_STEPS = frozenset(
    {
        "batch_tokens",
        "coverage_penalty",
        "horizon",
        "language_model",
        "language_model_weight",
        "length_bonus",
        "max_length",
        "max_length_ratio",
        "max_source_length",
        "num_hypotheses",
        "precision",
        "quantization",
        "seed",
        "shortlist",
        "threshold",
        "thresholds",
    }
)
LENGTH_LIMITS = frozenset({"min_length", "min_length_ratio"})
BEAM_SEARCH = frozenset({"beam_size", "early_stopping", "length_penalty"})

# The loop in C++ (cpu/search.h).
CPU_LOOP = OUTSIDE_STEPS | LENGTH_LIMITS | BEAM_SEARCH | {"no_repeat_ngram_size"}
# Several greedy steps in one Triton kernel (cuda/kernels/persistent_step_triton). Its steps of a beam are single ones.
CUDA_STEPS = OUTSIDE_STEPS | LENGTH_LIMITS | {"length_penalty", "early_stopping"}
