# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One model of what a process will see: one verdict, whatever carries a variable, and its place."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securetrain.audit.documents import facts_of
from securetrain.audit.engine.audit import audit
from securetrain.audit.facts import Location
from securetrain.audit.shell.environment import NOTHING, processes
from securetrain.audit.shell.evaluator import evaluate
from securetrain.audit.shell.values import script_text
from securetrain.audit.sources.catalogue import load_checks
from securetrain.audit.subjects.kubernetes.collect.collect import collect_manifests
from securetrain.core.vocabulary import State
from securetrain.policy.load import load_policy
from tests.audit.conftest import NOW
from tests.tables import each

CHECKS = load_checks()
BASELINE = load_policy("baseline").policy
GOOD = {State.PASS, State.NOT_APPLICABLE}

SETTINGS = {
    "ST-FAB-001": ("NCCL_SOCKET_IFNAME", "eth0", "=eth0"),
    "ST-FAB-004": ("NCCL_COMM_ID", "10.0.0.1:9999", None),
    "ST-FAB-006": ("NCCL_NET_PLUGIN", "libx.so", "none"),
    "ST-CKP-005": ("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1", "0"),
    "ST-SUP-012": ("LD_PRELOAD", "/tmp/x.so", ""),
    "ST-SUP-017": ("TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE", "1", "0"),
}
"""A check to a variable, a value that it fails on, and one that it passes; None: unset."""

POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: p}}
spec:
  containers:
  - name: c
    image: i
    command: [torchrun, t.py]
"""
CARRIERS = {
    "env of a pod": ("p.yaml", POD + "    env:\n    - name: {n}\n      value: '{v}'  #@\n"),
    "envFrom a ConfigMap": (
        "p.yaml",
        POD + "    envFrom:\n    - configMapRef: {{name: m}}\n"
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m}}\ndata:\n  {n}: '{v}'  #@\n",
    ),
    "a key of a ConfigMap": (
        "p.yaml",
        POD
        + "    env:\n    - name: {n}\n      valueFrom: {{configMapKeyRef: {{name: m, key: k}}}}\n"
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m}}\ndata:\n  k: '{v}'  #@\n",
    ),
    "compose": (
        "c.yaml",
        "services:\n  t:\n    image: i\n    environment:\n      {n}: '{v}'  #@\n",
    ),
    "compose, a list": (
        "c.yaml",
        "services:\n  t:\n    image: i\n    environment:\n    - '{n}={v}'  #@\n",
    ),
    "SkyPilot": (
        "s.yaml",
        "resources: {{cpus: 2}}\nenvs:\n  {n}: '{v}'  #@\nrun: torchrun t.py\n",
    ),
    "Ansible": (
        "a.yaml",
        "- tasks:\n  - shell: torchrun t.py\n    environment:\n      {n}: '{v}'  #@\n",
    ),
    "ENV of an image": ("Dockerfile", 'FROM x\nENV {n}=\'{v}\'  #@\nCMD ["torchrun", "t.py"]\n'),
    "%environment": ("i.def", "Bootstrap: docker\nFrom: x\n%environment\nexport {n}='{v}'  #@\n"),
    "export": ("r.sh", "set -e\nexport {n}='{v}'  #@\ntorchrun t.py\n"),
    "export of a name": ("r.sh", "{n}='{v}'  #@\nexport {n}\ntorchrun t.py\n"),
    "before the command": ("r.sh", "set -e\n{n}='{v}' torchrun t.py  #@\n"),
    "env": ("r.sh", "env A=b {n}='{v}' torchrun t.py  #@\n"),
    "mpirun": ("r.sh", "mpirun -np 2 -x {n}='{v}' python t.py  #@\n"),
    "srun": ("r.sh", "srun --export=ALL,{n}='{v}' python t.py  #@\n"),
    "sbatch": ("r.sh", "sbatch --export={n}='{v}' --wrap 'python t.py'  #@\n"),
    "#SBATCH": ("r.sbatch", "#!/bin/bash\n#SBATCH --export=ALL,{n}={v}  #@\npython t.py\n"),
    "docker": ("r.sh", "docker run --rm -e {n}='{v}' i python t.py  #@\n"),
    "docker, without a command": ("r.sh", "docker run --rm -e {n}='{v}' i  #@\n"),
    "apptainer": ("r.sh", "apptainer exec --env {n}='{v}' i.sif python t.py  #@\n"),
    "user data": ("m.tf", "user_data = <<-EOT\n#!/bin/bash\nexport {n}='{v}'  #@\nt\nEOT\n"),
}
OPAQUE = {
    "envFrom": POD + "    envFrom:\n    - configMapRef: {{name: elsewhere}}\n",
    "env_file": "services:\n  t:\n    image: i\n    env_file: gone.env\n",
    "srun": "srun --export=$X python t.py\n",
    "mpirun": "mpirun -x $X python t.py\n",
    "docker": "docker run --env-file gone.env i python t.py\n",
    "env": "env $X python t.py\n",
}


_KEY = "    env:\n    - name: NCCL_COMM_ID\n      valueFrom: {configMapKeyRef: {name: m, key: k}}\n"
_MAP = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: m, namespace: %s}\ndata:\n  %s\n"


@each(
    "id, maps, known",
    ("in the set", _MAP % ("default", "k: '10.0.0.1:9'"), True),
    ("twice the same", 2 * (_MAP % ("default", "k: '10.0.0.1:9'")), True),
    ("not there", "", False),
    ("another namespace", _MAP % ("other", "k: '10.0.0.1:9'"), False),
    ("another key", _MAP % ("default", "j: '10.0.0.1:9'"), False),
    ("two that differ", "".join(_MAP % ("default", f"k: '10.0.0.{n}:9'") for n in "12"), False),
    ("too long", _MAP % ("default", "k: '%s'" % ("9" * 5000)), False),
    ("a template", _MAP % ("default", "k: {{ .Values.id }}"), False),
    ("a template adds", _MAP % ("default", "k: '1:9'\n  {{- include \"x\" . }}"), False),
    ("under a condition", _MAP % ("default", "{{ if .x }}\n  k: '1:9'\n  {{ end }}"), False),
    ("a key twice", _MAP % ("default", "k: '1:9'\n  k: '1:9'"), False),
    (
        "long beside short",
        _MAP % ("default", "k: '1:9'") + _MAP % ("default", f"k: {5000 * '9'}"),
        False,
    ),
    ("a Secret", (_MAP % ("default", "k: '10.0.0.1:9'")).replace("ConfigMap", "Secret"), False),
)
def test_a_key_of_a_configmap_is_known_where_it_is_in_the_set(tmp_path, maps, known):
    text = POD.format() + _KEY + maps
    found = judged(tmp_path / "x", "p.yaml", text)["ST-FAB-004"]
    assert {state for state, _ in found} == {State.FAIL if known else State.UNKNOWN}


@pytest.mark.parametrize(
    "text",
    [
        "docker run --env-file job.env i python t.py\n",
        "services:\n  t:\n    image: i\n    env_file:\n    - path: job.env\n",
    ],
)
def test_a_file_of_variables_in_the_folder_is_read(tmp_path, text):
    folder = tmp_path / "x"
    folder.mkdir()
    (folder / "job.env").write_text("A=1\n# none\nexport NCCL_COMM_ID='10.0.0.1:9'\n")
    found = judged(folder, "x.sh" if text.startswith("docker") else "x.yaml", text)
    assert found["ST-FAB-004"] == {(State.FAIL, 3)}
    assert {state for state, _ in found["ST-CKP-005"]} <= GOOD


@pytest.mark.parametrize(
    ("text", "variables", "opens"),
    [
        ("env $X A=1 t", {"A": ["1"]}, ["$X"]),
        ("export A=1; env -u A bash -c t", {"A": []}, []),
        ("env $X sudo --preserve-env=B t", {}, ["$X"]),
        ("sudo --preserve-env=$X,B t", {}, ["$X"]),
        ("export A=1; env - B=2 t", {"B": ["2"]}, []),
        ("export A=1; env -i B=2 t", {"B": ["2"]}, []),
        ("docker run --label=A=1 -e B=2 --env C=3 i t", {"B": ["2"], "C": ["3"]}, []),
        ("docker run -e", {}, []),
        ("watch A=1 t", {"A": ["1"]}, []),
        ("declare -x A=1; t", {"A": ["1"]}, []),
    ],
)
def test_what_a_program_sees_by_name(text, variables, opens):
    commands = evaluate(script_text(text, lambda _: Location(path="x")))
    seen = list(processes(commands, NOTHING))[-2][1]
    found = {name: [one.text for one in values] for name, values in seen.variables.items()}
    assert (found, [one.why for one in seen.opens]) == (variables, opens)


def judged(folder, file, text):
    """Check to the states and lines of its findings about launches."""
    folder.mkdir(exist_ok=True)
    for one in folder.iterdir():
        if one.suffix != ".env":
            one.unlink()
    (folder / file).write_text(text.replace("  #@", ""))
    result = audit(facts_of(collect_manifests([folder], now=NOW)), CHECKS, BASELINE, NOW)
    found: dict[Any, Any] = {}
    for one in result.findings:
        if one.asset.startswith("launch:"):
            line = one.location.line if one.location else 0
            found.setdefault(one.check, set()).add((one.state, line))
    return found


def marked(text):
    return next(n for n, line in enumerate(text.splitlines(), 1) if line.endswith("#@"))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(CARRIERS)), st.sampled_from(sorted(SETTINGS)), st.booleans())
def test_one_verdict_for_a_variable_whatever_carries_it(tmp_path_factory, carrier, check, is_bad):
    name, bad, good = SETTINGS[check]
    value = bad if is_bad else good
    file, text = CARRIERS[carrier]
    text = text.format(n="UNRELATED" if value is None else name, v=value)
    found = judged(tmp_path_factory.getbasetemp() / "environment", file, text)[check]
    if is_bad:
        assert (State.FAIL, marked(text)) in found, text
    else:
        assert {state for state, _ in found} <= GOOD, text


@pytest.mark.parametrize("carrier", sorted(OPAQUE))
def test_what_a_carrier_hides_is_unknown(tmp_path, carrier):
    file = "x.sh" if OPAQUE[carrier].endswith("t.py\n") else "x.yaml"
    found = judged(tmp_path / "x", file, OPAQUE[carrier].replace("{{", "{").replace("}}", "}"))
    for check in SETTINGS:
        assert State.UNKNOWN in {state for state, _ in found[check]}, check


def test_a_file_of_nccl_may_set_what_the_launch_does_not(tmp_path):
    text = "export NCCL_CONF_FILE=/x/nccl.conf NCCL_COMM_ID=\n{}torchrun t.py\n"
    states = [
        {state for state, _ in judged(tmp_path / "x", "r.sh", text.format(own))["ST-FAB-006"]}
        for own in ("", "export NCCL_NET_PLUGIN=none\n", "NCCL_CONF_FILE=/dev/null ")
    ]
    assert states == [{State.UNKNOWN}, {State.UNKNOWN}, {State.PASS}]


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("export {V}=1\n{V}=0 torchrun t.py\n", False),
        ("export {V}=0\n{V}=1 torchrun t.py\n", True),
        ("export {V}=1\nunset {V}\ntorchrun t.py\n", False),
        ("export {V}=1\nenv -i torchrun t.py\n", False),
        ("export {V}=1\nenv -u {V} torchrun t.py\n", False),
        ("export {V}=1\nsrun --export=NONE python t.py\n", False),
        ("export {V}=1\nsrun --export=A=2 python t.py\n", False),
        ("export {V}=1\nsrun --export={V} python t.py\n", True),
        ("export {V}=1\nssh host python t.py\n", False),
        ("export {V}=1\noc exec p -- python t.py\n", False),
        ("export {V}=1\nclush -w a python t.py\n", False),
        ("export {V}=1\ndocker run i python t.py\n", False),
        ("export {V}=1\ndocker run -e {V} i python t.py\n", True),
        ("{V}=1\ntorchrun t.py\n", False),
        ("{V}=1\nexport {V}\ntorchrun t.py\n", True),
        ("export SINGULARITYENV_{V}=1\nsingularity exec i.sif python t.py\n", True),
        ("export {V}=1\nsingularity exec --cleanenv i.sif python t.py\n", False),
        ("X=1\nexport {V}=$X\ntorchrun t.py\n", True),
    ],
)
def test_what_applies_later_decides(tmp_path, text, fails):
    text = text.replace("{V}", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
    found = judged(tmp_path / "x", "r.sh", text)["ST-CKP-005"]
    assert {state for state, _ in found} <= ({State.FAIL} if fails else GOOD)
