"""Names and meaning of the tasks: what models, recipes and help share, without imports."""

from regard.core.registry import Registry

TASK_NAMES: Registry[str] = Registry(
    "task",
    {
        "generate": "a sequence of tokens, or the continuation of a text",
        "classify": "one label",
        "multi_label": "any number of labels",
        "regress": "one number, or several",
        "tag": "one tag for each word",
        "predict_masked": "tokens that were masked",
        "forecast": "the vectors after those of the source",
        "predict_vectors": "a vector for each vector of the source",
        "generate_vectors": "a sequence of vectors, each computed from those before it",
        "transcribe": "a text aligned with the source, such as speech, by CTC",
    },
)
