"""Hooks of the build: the description and the URLs of the package, and what wheels contain beside Python.

REGARD_REPOSITORY_URL   where the repository is: the package gets its URLs, and the description absolute links
REGARD_ENGINE           `native`, or the name of a machine (`aarch64`, with CXX set to a cross compiler): a wheel for
                        Linux with the C++ engine. Without it, the wheel is pure, and compiles the engine at first use
"""

import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

sys.path.insert(0, str(Path(__file__).parent / "tools"))
import build_engine
import package_description
import sbom


class MetadataHook(MetadataHookInterface):
    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        url = os.environ.get("REGARD_REPOSITORY_URL") or None
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = package_description.description(readme, url, metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = package_description.urls(url, metadata["version"]) if url else {}


class BuildHook(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self.temporary = tempfile.TemporaryDirectory()
        folder = Path(self.temporary.name)
        libraries = []
        if wanted := os.environ.get("REGARD_ENGINE"):
            machine = platform.machine() if wanted == "native" else wanted
            libraries = build_engine.build(machine, folder / "engine")
            build_data["force_include"] |= {
                str(path): f"regard/generation/engines/cpu/libraries/{path.name}"
                for path in libraries
            }
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-linux_{machine}"
        bill = folder / "regard.cdx.json"
        bill.write_text(sbom.bill_of_materials(self.metadata, libraries), encoding="utf-8")
        build_data["sbom_files"].append(str(bill))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self.temporary.cleanup()
