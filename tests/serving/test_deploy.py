"""The container file and the manifests: options, ports and routes that they name exist; nothing needs privileges."""

import json
import platform
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")
pytest.importorskip("yaml", reason="needs PyYAML")

import typer
import yaml

from regard.cli import app
from support.predictors import translator
from support.servers import Running, served

DEPLOY = Path(__file__).parents[2] / "deploy"
PROJECT = Path(__file__).parents[2] / "pyproject.toml"
PAGES = (DEPLOY / "Containerfile", *(DEPLOY.parent / "docs").rglob("*.md"))
MANIFESTS = ("kubernetes.yaml", "kserve.yaml")


def instructions() -> list[tuple[str, str]]:
    """Of the container file, with continued lines joined."""
    text = re.sub(
        r"^#.*\n", "", (DEPLOY / "Containerfile").read_text(), flags=re.MULTILINE
    ).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def last(name: str) -> str:
    return [rest for instruction, rest in instructions() if instruction == name][-1]


def containers() -> Iterator[tuple[str, dict, dict]]:
    """The name, the pod's specification and the container of each manifest that starts one."""
    for manifest in MANIFESTS:
        for document in yaml.safe_load_all((DEPLOY / manifest).read_text()):
            spec = document["spec"].get("template", document).get("spec", {})
            for container in spec.get("containers", ()):
                yield manifest, spec, container


def parsed(arguments: list[str]) -> dict:
    """Arguments of `regard serve` as it reads them; refused where it does not know one."""
    command = typer.main.get_command(app).commands["serve"]
    return command.make_context("serve", list(arguments)).params


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with served({"en-de": translator(decoder="rnn")}) as server:
        yield server


def test_the_container_runs_without_privileges_and_writes_nowhere_but_tmp():
    bases = [rest.split()[0] for name, rest in instructions() if name == "FROM"]
    assert all(base.endswith("-slim") for base in bases)
    user, group = last("USER").split(":")
    assert int(user) > 0
    assert int(group) > 0
    environment = dict(each.split("=", 1) for each in shlex.split(last("ENV")))
    assert (environment["HOME"], environment["XDG_CACHE_HOME"]) == ("/tmp", "/tmp/cache")
    assert last("STOPSIGNAL") == "SIGTERM"
    names = [name for name, _ in instructions()]
    assert names.index("USER") < names.index("ENTRYPOINT")


def test_the_container_installs_the_wheel_with_extras_that_there_are():
    (install,) = [rest for name, rest in instructions() if name == "RUN"]
    extras = re.search(r"regard\[([a-z0-9,]+)\] @ file://\$1\"", install)[1].split(",")
    assert {"serve", "http"} <= {*extras}
    for extra in extras:
        assert re.search(rf"^{extra} = \[", PROJECT.read_text(), re.MULTILINE), extra
    assert ("COPY", "dist/*.whl constraints.txt /wheels/") in instructions()
    assert "--constraint /wheels/constraints.txt" in install  # the versions that were tested
    ignored, *sent = (DEPLOY.parent / ".dockerignore").read_text().split()
    assert (ignored, sent) == (
        "*",
        ["!dist/*.whl", "!constraints.txt"],
    )  # no environment of gigabytes


def test_the_image_keeps_its_health_check():
    """Images of podman have none in their default format, OCI."""
    builds = [
        line for page in PAGES for line in page.read_text().splitlines() if "podman build" in line
    ]
    assert builds
    assert [line for line in builds if "--format docker" not in line] == []


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (
            ["py3-none-any", "py3-none-linux_MACHINE", "py3-none-linux_other"],
            "py3-none-linux_MACHINE",
        ),
        (["py3-none-any", "py3-none-manylinux_2_27_MACHINE.manylinux_2_28_MACHINE"], "28_MACHINE"),
        (["py3-none-any", "py3-none-linux_other"], "py3-none-any"),
    ],
)
def test_the_container_installs_the_wheel_with_the_engine_where_there_is_one(
    tmp_path, names, chosen
):
    (install,) = [rest for name, rest in instructions() if name == "RUN"]
    command = (
        install.partition("&& python -m venv")[0].replace("/wheels", str(tmp_path))
        + ' && echo "$1"'
    )
    for name in names:
        (tmp_path / f"regard-1.0-{name.replace('MACHINE', platform.machine())}.whl").touch()
    found = subprocess.check_output(["sh", "-c", command], text=True).split()
    assert len(found) == 1
    assert found[0].endswith(f"{chosen.replace('MACHINE', platform.machine())}.whl")


def test_the_container_listens_and_is_asked_on_one_port(running):
    program, verb, *arguments = json.loads(last("ENTRYPOINT"))
    options = parsed([*arguments, *json.loads(last("CMD"))])
    assert (program, verb, options["host"], options["models"]) == (
        "regard",
        "serve",
        "0.0.0.0",
        ["/models/model"],
    )
    assert int(last("EXPOSE")) == options["port"] == 8000
    host, port, path = re.search(r"http://([^:/]+):(\d+)(/[a-z/]+)", last("HEALTHCHECK")).groups()
    assert (host, int(port)) == ("127.0.0.1", 8000)
    assert running.ask(path)[0] == 200


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_manifests_are_of_known_kinds(manifest):
    kinds = {document["kind"] for document in yaml.safe_load_all((DEPLOY / manifest).read_text())}
    assert (
        kinds
        == {
            "kubernetes.yaml": {"Deployment", "Service", "PodDisruptionBudget"},
            "kserve.yaml": {"ServingRuntime", "InferenceService"},
        }[manifest]
    )


def test_containers_of_manifests_have_arguments_that_serve_takes():
    entry = json.loads(last("ENTRYPOINT"))[2:]
    found = [parsed([*entry, *container["args"]]) for _, _, container in containers()]
    assert [each["models"] for each in found] == [
        ["en-de=/models/en-de"],
        ["{{.Name}}=/mnt/models"],
    ]
    for (_, spec, _), options in zip(containers(), found, strict=True):
        assert spec.get("terminationGracePeriodSeconds", 60) > options["drain_seconds"] + 5


def test_containers_of_manifests_have_the_ports_and_probes_of_the_server(running):
    for manifest, _, container in containers():
        (port,) = container["ports"]
        assert port["containerPort"] == int(last("EXPOSE"))
        probes = [container[name]["httpGet"] for name in container if name.endswith("Probe")]
        assert len(probes) >= 2, manifest
        for probe in probes:
            assert probe["port"] in (port["name"], port["containerPort"])
            assert running.ask(probe["path"])[0] == 200, probe["path"]
        live = container["livenessProbe"]["httpGet"]["path"]
        assert live.endswith(
            "live"
        )  # a server that drains or loads is alive: it must not be killed


def test_containers_of_manifests_run_without_privileges():
    for _, spec, container in containers():
        own = {**spec.get("securityContext", {}), **container["securityContext"]}
        assert own["runAsNonRoot"]
        assert own["readOnlyRootFilesystem"]
        assert not own["allowPrivilegeEscalation"]
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert f"{own['runAsUser']}" == last("USER").split(":")[0]
        mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
        volumes = {each["name"] for each in spec["volumes"]}
        assert {each["name"] for each in mounts.values()} <= volumes
        assert [path for path, each in mounts.items() if not each.get("readOnly")] == ["/tmp"]


def test_manifests_name_each_other(running):
    deployment, service, budget = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for selector in (deployment["spec"]["selector"]["matchLabels"], service["spec"]["selector"]):
        assert selector.items() <= labels.items()
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert service["spec"]["ports"][0]["targetPort"] == "http"
    scraped = deployment["spec"]["template"]["metadata"]["annotations"]["prometheus.io/path"]
    assert running.ask(scraped)[0] == 200
    runtime, service = yaml.safe_load_all((DEPLOY / "kserve.yaml").read_text())
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["modelFormat"]["name"] in {
        each["name"] for each in runtime["spec"]["supportedModelFormats"]
    }
    body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["abc"]}]}
    assert running.ask(f"/v2/models/{service['metadata']['name']}/infer", body)[0] == 200
