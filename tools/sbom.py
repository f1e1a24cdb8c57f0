"""The software bill of materials of a wheel (CycloneDX 1.6), which PEP 770 puts into .dist-info/sboms.

It names the compiled code in the wheel, with hashes, and what the wheel requires, with the ranges of versions and the
extra that asks for it. It has no time and no random number: two builds give the same bytes.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def bill_of_materials(metadata: Any, libraries: Iterable[Path]) -> str:
    """metadata: of hatchling; libraries: compiled code in the wheel."""
    core = metadata.core
    reference = f"pkg:pypi/{core.name}@{metadata.version}"
    required = [_dependency(line, None) for line in core.dependencies]
    optional = [
        _dependency(line, extra)
        for extra, lines in core.optional_dependencies.items()
        for line in lines
    ]
    own = f"pkg:pypi/{core.name}"
    components = {
        each["bom-ref"]: each for each in [*optional, *required] if each["bom-ref"] != own
    }
    files = [_file(path) for path in libraries]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": reference,
                "name": core.name,
                "version": metadata.version,
                "description": core.description,
                "purl": reference,
                "licenses": [{"expression": core.license_expression}],
                "components": files,
            }
        },
        "components": [components[name] for name in sorted(components)],
        "dependencies": [
            {"ref": reference, "dependsOn": sorted({each["bom-ref"] for each in required})}
        ],
    }
    if not files:
        del document["metadata"]["component"]["components"]  # type: ignore[attr-defined]
    return json.dumps(document, indent=1) + "\n"


def _dependency(line: str, extra: str | None) -> dict[str, Any]:
    requirement = Requirement(line)
    name = canonicalize_name(requirement.name)
    properties = [{"name": "regard:requires", "value": line}]
    if extra is not None:
        properties.append({"name": "regard:extra", "value": extra})
    return {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}",
        "name": name,
        "scope": "required" if extra is None else "optional",
        "purl": f"pkg:pypi/{name}",
        "properties": properties,
    }


def _file(path: Path) -> dict[str, Any]:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {
        "type": "file",
        "bom-ref": path.name,
        "name": f"regard/generation/engines/cpu/libraries/{path.name}",
        "hashes": [{"alg": "SHA-256", "content": digest}],
    }
