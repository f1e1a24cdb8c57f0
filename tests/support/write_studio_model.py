"""Write the model of dates that the package has for the studio, from a run of the recipe `dates`.

    regard train dates --out runs/dates
    python tests/support/write_studio_model.py runs/dates

The best checkpoint of the run is copied without the state of training. tests/studio/test_studio.py holds its hash.
"""

import sys
from pathlib import Path

from regard.checkpoint import store
from regard.checkpoint.format import find_checkpoint

PLACE = Path(__file__).parents[2] / "src/regard/studio/example_model/dates"


def main() -> None:
    best = find_checkpoint(Path(sys.argv[1]))
    content = store.read(best)
    texts = {
        name: text.decode()
        for name, text in content.items()
        if name.endswith(".json") or name.endswith(".md")
    }
    texts.pop(store.TRAINING_STATE)
    store.write(
        PLACE, texts, {"model.safetensors": store.tensors(content, "model.safetensors", best)}
    )


if __name__ == "__main__":
    main()
