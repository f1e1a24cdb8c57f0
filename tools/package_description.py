"""The description and the URLs of the package in an index, made from README.md and the address of the repository."""

import re

FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
# An image or a link whose target is neither absolute nor a place on the same page.
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?![a-z]+:|#)(?P<target>[^)\s]+)\)")


def description(readme: str, url: str | None, version: str) -> str:
    """README.md with absolute links to the files of this version; without a URL, their texts, and no images."""

    def absolute(found: re.Match[str]) -> str:
        if url is None:
            return "" if found["image"] else found["text"]
        view = "raw" if found["image"] else "blob"
        return (
            f"{found['image']}[{found['text']}]({_base(url)}/{view}/v{version}/{found['target']})"
        )

    parts = FENCED.split(readme)  # every second one is a block of code
    parts[::2] = [LINK.sub(absolute, part) for part in parts[::2]]
    return re.sub(r"\n{3,}", "\n\n", "".join(parts))


def urls(url: str, version: str) -> dict[str, str]:
    """The entries of Project-URL."""
    base = _base(url)
    return {
        "Homepage": base,
        "Documentation": f"{base}/blob/v{version}/README.md#documentation",
        "Source": base,
        "Issues": f"{base}/issues",
        "Changelog": f"{base}/blob/v{version}/CHANGELOG.md",
    }


def _base(url: str) -> str:
    if not re.fullmatch(r"https://[^\s/]+/\S+", url):
        raise ValueError(
            f"REGARD_REPOSITORY_URL: wanted the https address of a repository; got {url!r}"
        )
    return url.rstrip("/").removesuffix(".git")
