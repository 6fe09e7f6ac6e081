"""The examples for containers: commands that the real command line understands, ports and volumes that fit together.

The image is built where a container engine is at hand; its file is linted in any case (hadolint), and so are compose's
(against its schema) and Kubernetes' manifests (against theirs). Commands are parsed by the
commands themselves, shell scripts are run by a real shell with programs in their places that write down what they were
called with. Compose's certificates, cloud, an edge, two devices and the operator are also run, as processes of this
machine.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from espalier.cli.main import main
from espalier.cli.node import one_run
from espalier.core.errors import TrainingError
from espalier.record.run import Run

EXAMPLES = Path(__file__).parents[2] / "examples"
KUBERNETES = EXAMPLES / "kubernetes"
NODES = {"cloud": 1, "edge": 3, "device": 12}


def parsed(words: list[str]) -> click.Context:
    """Let the command line read a command, as far as running it."""
    context = main.make_context("espalier", list(words))
    while isinstance(context.command, click.Group):
        name, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(name, rest, parent=context)
    return context


def calls(script: str, folder: Path, **variables: str) -> list[list[str]]:
    """Run a shell script where ``espalier`` and ``kubectl`` only write down what they are told; return that."""
    log = folder / "calls"
    for name in ("espalier", "kubectl"):
        program = folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nprintf "%s\\0" {name} "$@" >> "{log}"; printf "\\n" >> "{log}"\n')
        program.chmod(0o755)
    log.unlink(missing_ok=True)
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    subprocess.run(["/bin/sh", "-ec", script], env={"PATH": path, **variables}, cwd=folder, check=True)
    return [line.rstrip("\0").split("\0") for line in log.read_text().splitlines()]


def node(words: list[str], role: str, name: str) -> dict[str, Any]:
    """Check what all nodes have in common; return the options."""
    assert words[:2] == ["node", role], name
    options = parsed(words).params
    assert (options["certs"], options["directory"]) == (Path("/certs"), Path("/state")), name
    assert options["ops"].rpartition(":")[2] == "9100"
    return options


# -- compose -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((EXAMPLES / "compose.yaml").read_text())
    return found


def names(role: str) -> list[str]:
    return ["cloud"] if role == "cloud" else [f"{role}-{i}" for i in range(NODES[role])]


def test_compose_starts_every_node_as_the_command_line_has_it(compose: dict[str, Any]) -> None:
    services = compose["services"]
    everybody = [name for role in NODES for name in names(role)]
    assert list(services) == ["certificates", "operator", *everybody]
    options = {name: node(shlex.split(services[name]["command"]), role, name) for role in NODES for name in names(role)}
    cloud = options["cloud"]
    assert cloud["config"] is None, "the fleet stands: runs are submitted"
    reached = {f"{n}@{o['advertise']}" for n, o in options.items() if o.get("advertise")}
    for name, found in options.items():
        if name != "cloud":
            assert set(found["parents"]) <= reached, name
            assert found["number"] == int(name.rpartition("-")[2])
        if found["listen"] is not None:
            assert (found["listen"], found["advertise"]) == ("0.0.0.0:7700", f"{name}:7700")
    children = [options[n]["parents"][0].partition("@")[0] for n in names("device")]
    assert [children.count(edge) for edge in names("edge")] == [4, 4, 4]
    # the page is published on this machine only
    assert (cloud["status_page"], services["cloud"]["ports"]) == ("0.0.0.0:8650", ["127.0.0.1:8650:8650"])


def test_compose_has_an_operator_whose_commands_the_command_line_has(compose: dict[str, Any]) -> None:
    operator = compose["services"]["operator"]
    assert operator["profiles"] == ["operator"], "`up` does not start it"
    assert operator["environment"]["ESPALIER_CLOUD"] == "cloud@cloud:7700"
    text = (EXAMPLES / "compose.yaml").read_text().replace("\\\n#  ", "")
    commands = re.findall(r"run --rm operator (fleet .*)", text)
    assert len(commands) == 3
    submitted = parsed([*shlex.split(commands[0]), "--cloud", "x:1", "--certs", "y"]).params
    fleet = one_run(submitted["experiment"], submitted["method"], submitted["seed"], submitted["changes"]).fleet
    assert (fleet.devices, fleet.edges) == (12, 3)


def test_compose_gives_each_node_its_own_state_and_bundle(compose: dict[str, Any], tmp_path: Path) -> None:
    services, used = compose["services"], {"certs"}
    for name in ["operator", *(n for role in NODES for n in names(role))]:
        state, bundle = services[name]["volumes"]
        assert state == f"{name}:/state"
        assert (bundle["source"], bundle["target"], bundle["read_only"]) == ("certs", "/certs", True)
        assert bundle["volume"] == {"subpath": name}
        assert services[name]["depends_on"]["certificates"]["condition"] == "service_completed_successfully"
        used.add(name)
    assert set(compose["volumes"]) == used
    make = services["certificates"]
    assert (EXAMPLES / make["build"]["context"] / make["build"]["dockerfile"]).resolve() == EXAMPLES / "Containerfile"
    script = make["command"][0].replace("$$", "$").replace("/state", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    issued = check_certificates([c[1:] for c in calls(script, tmp_path) if c[0] == "espalier"])
    assert issued == {name: (role, (name,)) for role in ("cloud", "edge") for name in names(role)} | {
        name: ("device", ()) for name in names("device")
    } | {"operator": ("operator", ())}


def check_certificates(commands: list[list[str]]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return whom certificates are issued to: role and hosts by name."""
    assert commands[0][:2] == ["certs", "init"]
    found = {}
    for words in commands:
        options = parsed(words).params
        if words[1] == "issue":
            found[options["name"]] = (options["role"], options["hosts"])
    return found


class Here:
    """Compose's services as processes: its volumes are folders, its hosts and ports are of this machine."""

    def __init__(self, compose: dict[str, Any], folder: Path) -> None:
        self.services, self.folder = compose["services"], folder
        self._ports: dict[str, int] = {}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        program = folder / "bin" / "espalier"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'from espalier.cli.main import main; main()' \"$@\"\n")
        program.chmod(0o755)

    def port(self, place: str) -> int:
        """Return the port of this machine that stands for one of a service's."""
        if place not in self._ports:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self._ports[place] = free.getsockname()[1]
        return self._ports[place]

    def text(self, name: str, text: str) -> str:
        """Return a service's words as they are meant here."""
        text = re.sub(r"\b0\.0\.0\.0:(\d+)", lambda m: f"127.0.0.1:{self.port(f'{name}:{m[1]}')}", text)
        hosts = "|".join(self.services)
        text = re.sub(rf"(?<![\w-])({hosts}):(\d+)", lambda m: f"127.0.0.1:{self.port(m[0])}", text)
        text = re.sub(r"(--ops |127\.0\.0\.1:)9100", lambda m: f"{m[1]}{self.port(f'{name}:9100')}", text)
        state = "certs" if name == "certificates" else f"state-{name}"
        return text.replace("/certs", f"{self.folder}/certs/{name}").replace("/state", f"{self.folder}/{state}")

    def call(self, name: str, words: list[str]) -> subprocess.Popen[bytes]:
        """Start a service's command."""
        told = {key: self.text(name, value) for key, value in self.services[name].get("environment", {}).items()}
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(words, env={**os.environ, "PATH": path, **told}, stdout=log, stderr=log)

    def espalier(self, name: str, command: str) -> subprocess.Popen[bytes]:
        """Start what the image's entry point does with a command."""
        return self.call(name, ["espalier", *shlex.split(self.text(name, command))])

    def is_healthy(self, name: str) -> bool:
        """Ask as compose does."""
        _, program, *rest = self.services[name]["healthcheck"]["test"]
        assert program == "python"
        return self.call(name, [sys.executable, *(self.text(name, word) for word in rest)]).wait() == 0


def test_composes_services_take_a_run(compose: dict[str, Any], tmp_path: Path) -> None:
    here = Here(compose, tmp_path)
    (tmp_path / "certs").mkdir()
    make = here.services["certificates"]
    script = here.text("certificates", make["command"][0].replace("$$", "$"))
    # of the twelve devices those of the first edge that take part here
    script = script.replace("0 1 2 3 4 5 6 7 8 9 10 11", "0 3").replace("0 1 2;", "0;")
    assert here.call("certificates", [*make["entrypoint"], script]).wait() == 0
    nodes = ["cloud", "edge-0", "device-0", "device-3"]
    try:
        for name in nodes:
            here.running[name] = here.espalier(name, here.services[name]["command"])
        text = (EXAMPLES / "compose.yaml").read_text().replace("\\\n#  ", "")
        submit = re.findall(r"run --rm operator (fleet submit .*)", text)[0]
        smaller = " --set fleet.devices=2 --set fleet.edges=1 --set stop.rounds=2"
        until = time.monotonic() + 120
        while not here.is_healthy("cloud"):
            assert time.monotonic() < until, (tmp_path / "cloud.log").read_text()
        # the demo's data cannot be dealt to so few: whoever waits is told why it failed
        assert here.espalier("operator", submit + smaller).wait(60) == TrainingError.exit_code
        assert "cannot cover 10 cells" in (tmp_path / "operator.log").read_text()
        smaller += " --set \"partition={kind='iid'}\""
        operator = here.running["operator"] = here.espalier("operator", submit + smaller)
        assert operator.wait(180) == 0, (tmp_path / "operator.log").read_text()
        assert all(here.is_healthy(name) for name in nodes)
        status = here.espalier("cloud", "fleet status /state")
        assert status.wait(60) == 0
        shown = (tmp_path / "cloud.log").read_text()
        assert re.search(r"page: http://\S+token=", shown), shown
    finally:
        for process in here.running.values():
            process.kill()
            process.wait()
    assert Run(tmp_path / "state-operator" / "first").status["state"] == "finished"


# -- Kubernetes ----------------------------------------------------------------------------------------------------


def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    wanted = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    assert {p.name for p in KUBERNETES.glob("*.yaml")} == {"kustomization.yaml", *wanted}
    found = [d for name in wanted for d in yaml.safe_load_all((KUBERNETES / name).read_text())]
    assert all(d["apiVersion"] in ("v1", "apps/v1") for d in found)
    return {(d["kind"], d["metadata"]["name"]): d for d in found}


def test_the_manifests_keep_to_kubernetes_schemas() -> None:
    for found in manifests().values():
        kubernetes_validate.validate(found, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("role", NODES)
def test_every_pod_starts_a_node_that_the_command_line_has(role: str, tmp_path: Path) -> None:
    spec = manifests()["StatefulSet", role]["spec"]
    assert spec["replicas"] == NODES[role]
    container = spec["template"]["spec"]["containers"][0]
    assert container["command"] == ["/bin/sh", "-ec"]
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    for number in range(NODES[role]):
        ((_, *words),) = calls(container["args"][0], tmp_path, HOSTNAME=f"{role}-{number}")
        options = node(words, role, f"{role}-{number}")
        assert int(options["ops"].rpartition(":")[2]) == ports["ops"]
        if role == "cloud":
            assert int(options["status_page"].rpartition(":")[2]) == ports["page"]
            assert options["advertise"] == "cloud:7700"
        else:
            above = f"edge-{number % 3}@edge-{number % 3}.edge:7700" if role == "device" else "cloud@cloud:7700"
            assert (options["parents"], options["number"]) == ((above,), number)
        if role == "edge":
            assert options["advertise"] == f"edge-{number}.edge:7700"
        if options["listen"] is not None:
            assert int(options["listen"].rpartition(":")[2]) == ports["link"]


@pytest.mark.parametrize("role", NODES)
def test_ports_probes_volumes_and_labels_fit_together(role: str) -> None:
    known = manifests()
    spec, service = known["StatefulSet", role]["spec"], known["Service", role]["spec"]
    pod = spec["template"]["spec"]
    container = pod["containers"][0]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["serviceName"] == role
    assert service["selector"] == spec["selector"]["matchLabels"] == labels
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert {p["targetPort"]: p["port"] for p in service["ports"]} == ports
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        (how,) = (container[probe][k] for k in ("tcpSocket", "httpGet") if k in container[probe])
        assert how["port"] in ports
    volumes = {v["name"] for v in pod["volumes"]} | {c["metadata"]["name"] for c in spec["volumeClaimTemplates"]}
    mounted = {m["name"] for c in (*pod["initContainers"], container) for m in c["volumeMounts"]}
    assert mounted == volumes
    assert "bundles" not in {m["name"] for m in container["volumeMounts"]}, "a node sees its own key only"


def test_the_clusters_certificates_are_those_that_its_pods_look_for(tmp_path: Path) -> None:
    # the authority's work, done beforehand: the stand-in for espalier writes no files
    for name in ("cloud", *names("edge"), *names("device"), "operator"):
        (tmp_path / "ca" / name).mkdir(parents=True)
        for file in ("ca.pem", "crl.pem", "node.key", "node.pem"):
            (tmp_path / "ca" / name / file).write_text(name)
    script = (KUBERNETES / "bundles.sh").read_text().replace("rm -r", "true")
    called = calls(script, tmp_path)
    issued = check_certificates([c[1:] for c in called if c[0] == "espalier"])
    assert issued == {
        "cloud": ("cloud", ("cloud",)),
        **{name: ("edge", (f"{name}.edge",)) for name in names("edge")},
        **{name: ("device", ()) for name in names("device")},
        "operator": ("operator", ()),
    }
    secrets = [c[c.index("generic") + 1] for c in called if c[0] == "kubectl"]
    for role, count in NODES.items():
        assert f"{role}-bundles" in secrets
        volumes = manifests()["StatefulSet", role]["spec"]["template"]["spec"]["volumes"]
        assert {"name": "bundles", "secret": {"secretName": f"{role}-bundles"}} in volumes
        pods = {f"{role}-{i}.tar" for i in range(count)}
        assert {p.name for p in (tmp_path / f"bundles-{role}").iterdir()} == pods
    listed = subprocess.run(
        ["tar", "-tf", tmp_path / "bundles-cloud" / "cloud-0.tar"], capture_output=True, text=True, check=True
    )
    assert sorted(listed.stdout.split()) == ["ca.pem", "crl.pem", "node.key", "node.pem"]


def engine() -> str | None:
    """Return a container engine of this machine that works."""
    for name in ("podman", "docker"):
        if shutil.which(name) and subprocess.run([name, "info"], capture_output=True).returncode == 0:
            return name
    return None


def instructions(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a Containerfile: continued lines joined, comments left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    whole = re.sub(r"\\\n", " ", "\n".join(lines))
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in whole.splitlines() if line)]


def linter(name: str) -> str:
    """Return where a linter of the development tools is: beside this interpreter, or on the path."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found is not None, f"{name} is not installed: pip install -e '.[dev]'"
    return found


def test_the_containerfile_and_compose_pass_their_linters() -> None:
    subprocess.run([linter("hadolint"), EXAMPLES / "Containerfile"], check=True)
    schema = [linter("check-jsonschema"), "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*schema, EXAMPLES / "compose.yaml"], check=True)


def test_the_image_is_built_and_runs_or_at_least_holds_together() -> None:
    found = engine()
    if found is not None:
        build = [found, "build", "-f", EXAMPLES / "Containerfile", "-t", "espalier:test", EXAMPLES.parent]
        subprocess.run(build, check=True, timeout=1800)
        run = [found, "run", "--rm", "espalier:test", "--version"]
        assert "espalier" in subprocess.run(run, check=True, capture_output=True, text=True).stdout
    steps = instructions((EXAMPLES / "Containerfile").read_text())
    known = {"FROM", "RUN", "COPY", "ENV", "USER", "VOLUME", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in steps} <= known
    assert steps[0][0] == "FROM"
    stages = {rest.partition(" AS ")[2] for name, rest in steps if name == "FROM"}
    for name, rest in steps:
        if name == "FROM":
            assert re.fullmatch(r"[\w./]+:[\w.-]+( AS \w+)?", rest), "an image of a version"
        elif name == "COPY" and rest.startswith("--from="):
            assert rest[len("--from=") :].split()[0] in stages
        elif name == "COPY":
            assert (EXAMPLES.parent / rest.split()[0]).exists()
        elif name == "RUN" and "apt-get install" in rest:
            assert all(
                part in rest for part in ("apt-get update", " -y ", "--no-install-recommends", "rm -rf /var/lib/apt")
            )
        elif name in ("ENTRYPOINT", "CMD"):
            assert all(isinstance(word, str) for word in json.loads(rest)), "a list: signals reach the node"
    assert [rest for name, rest in steps if name == "USER"][-1] == "1000", "as the manifests' runAsUser"
    installed = " ".join(rest for name, rest in steps if name == "RUN")
    (extra,) = re.findall(r"/src\[(\w+)\]", installed)
    assert extra in tomllib.loads((EXAMPLES.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for file in re.findall(r"-c /src/(\S+)", installed):
        assert (EXAMPLES.parent / file).is_file()


def test_the_image_has_the_command_on_its_path() -> None:
    text = (EXAMPLES / "Containerfile").read_text()
    assert re.search(r"^ENV PATH=/opt/espalier/bin:\$PATH$", text, flags=re.MULTILINE)
    assert "--uid 1000" in text, "as the manifests' runAsUser"
