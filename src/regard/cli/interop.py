"""`regard import`, `export` and `convert`."""

import json
from pathlib import Path
from typing import Annotated

import regard
from regard.cli.options import Json, ModelFolder, argument, flag, option, show
from regard.core.errors import InvalidArgument


def import_(
    source: Annotated[
        str,
        argument("SOURCE", "A folder of transformers, or hf:owner/name of the Hugging Face Hub."),
    ],
    out: Annotated[Path, option("FOLDER", "A new folder for the checkpoint.", "--out", "-o")],
    dtype: Annotated[
        str | None, option("NAME", "float32, float16 or bfloat16 weights [default: as they are].")
    ] = None,
    pairs: Annotated[
        bool, flag("--pairs", "A classifier that reads pairs of texts, with a tab between them.")
    ] = False,
) -> None:
    """Write a model of Hugging Face's transformers as a checkpoint of Regard.

    Examples: regard import hf:Helsinki-NLP/opus-mt-en-de --out models/en-de

    regard import downloads/gpt2 --out models/gpt2
    """
    print(regard.import_model(source, out, dtype=dtype, pairs=pairs))


def export(
    model: ModelFolder,
    to: Annotated[str | None, option("FORMAT", "huggingface, ctranslate2, onnx or page.")] = None,
    out: Annotated[
        Path | None,
        option("FOLDER|FILE", "A new folder to write to; for page, an .html file.", "--out", "-o"),
    ] = None,
    dtype: Annotated[
        str | None, option("NAME", "float32, float16 or bfloat16 weights [default: as they are].")
    ] = None,
    quantization: Annotated[str | None, option("NAME", "int8: weights of eight bits.")] = None,
    attention: Annotated[
        bool, flag("--attention", "Also give attention weights as outputs (onnx).")
    ] = False,
    report: Annotated[
        Path | None,
        option("FILE", "Figures of `regard evaluate --json`, for the model card (huggingface)."),
    ] = None,
    examples: Annotated[
        Path | None,
        option("FILE", "Inputs, as `regard predict` reads them, to try in the page (page)."),
    ] = None,
    push: Annotated[
        str | None,
        option(
            "OWNER/NAME", "Also upload it to this repository of the Hugging Face Hub (huggingface)."
        ),
    ] = None,
    list_: Annotated[
        bool, flag("--list", "Only say which formats can express the model, and why others cannot.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a model in the format of another library (Hugging Face, CTranslate2, ONNX),
    or as a page that runs it.

    Examples: regard export runs/translation --to huggingface --out exported

    regard export runs/translation --to ctranslate2 --quantization int8 --out exported

    regard export runs/translation --to page --out translation.html

    regard export runs/translation --list
    """
    if list_:
        obstacles = regard.export_obstacles(model)
        if as_json:
            print(
                json.dumps(
                    {name: list(why) for name, why in obstacles.items()},
                    ensure_ascii=False,
                    indent=1,
                )
            )
            return
        for name, why in obstacles.items():
            if why:
                reasons = "\n".join(f"  {each}" for each in why)
                show(f"{name}: no\n{reasons}")
            else:
                show(f"{name}: yes")
        return
    if to is None or out is None:
        missing = "--to" if to is None else "--out"
        raise InvalidArgument(missing, wanted="a value", got="none", remedy="Give it, or --list.")
    options = {
        "dtype": dtype,
        "quantization": quantization,
        "attention": attention,
        "report": None if report is None else str(report),
        "examples": None if examples is None else str(examples),
        "push": push,
    }
    print(regard.export(model, to, out, **options))


def convert(
    config: Annotated[
        Path, argument("CONFIG", "A YAML file, or a shell script with the commands of fairseq.")
    ],
    source: Annotated[str, option("TOOLKIT", "joeynmt, opennmt or fairseq.", "--from")],
    as_json: Json = False,
) -> None:
    """Print the recipe of a configuration of Joey NMT, OpenNMT-py or fairseq,
    with what it could not take over.

    Examples: regard convert transformer.yaml --from joeynmt > my.toml

    regard convert train.sh --from fairseq > my.toml
    """
    converted = regard.convert(config, source)
    if as_json:
        print(
            json.dumps(
                {"recipe": converted.tables, "notes": converted.notes}, ensure_ascii=False, indent=1
            )
        )
        return
    show(converted.toml().rstrip("\n"))
