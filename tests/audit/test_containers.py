# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One container in the forms in which it is started: the same findings, at their lines."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securetrain.audit.documents import facts_of
from securetrain.audit.engine.audit import audit
from securetrain.audit.sources.catalogue import load_checks
from securetrain.audit.subjects.kubernetes.collect.collect import collect_manifests
from securetrain.audit.subjects.launches.collect.images import scripts
from securetrain.core.vocabulary import State
from securetrain.policy.load import load_policy
from tests.audit.conftest import NOW

CHECKS = load_checks()
BASELINE = load_policy("baseline").policy

WANTED = {
    *("ST-K8S-001", "ST-K8S-002", "ST-K8S-003", "ST-K8S-004", "ST-K8S-005", "ST-K8S-006"),
    *("ST-K8S-007", "ST-K8S-008", "ST-K8S-009", "ST-K8S-010", "ST-RDZ-003", "ST-RDZ-009"),
}
RUN = """\
 \\
  --privileged \\  #@ 001, 009
  --network host \\  #@ 002
  --ipc=host --pid host \\  #@ 003, 004
  -v /:/host:ro \\  #@ 005
  -v /var/run/docker.sock:/var/run/docker.sock \\  #@ 006
  --cap-add SYS_ADMIN \\  #@ 007
  -u root \\  #@ 008
  registry.example.com/team/trainer:1.4 \\  #@ 010
  torchrun --nnodes 2 --rdzv-backend c10d t.py  #@ RDZ-003, RDZ-009
"""
SERVICE = """\
services:
  trainer:
    privileged: true  #@ 001, 009
    network_mode: host  #@ 002
    ipc: host  #@ 003
    pid: host  #@ 004
    volumes:
    - "/:/host:ro"  #@ 005
    - type: bind  #@ 006
      source: /var/run/docker.sock
      target: /var/run/docker.sock
    cap_add: [SYS_ADMIN]  #@ 007
    user: root  #@ 008
    image: registry.example.com/team/trainer:1.4  #@ 010
    command: torchrun --nnodes 2 --rdzv-backend c10d t.py  #@ RDZ-003, RDZ-009
"""
EXTENDED = SERVICE.replace("  trainer:", "  job: {extends: trainer}\n  trainer:")
MODULE = """\
- hosts: all
  tasks:
  - community.docker.docker_container:
      privileged: true  #@ 001, 009
      network_mode: host  #@ 002
      ipc_mode: host  #@ 003
      pid_mode: host  #@ 004
      volumes:
      - /:/host:ro  #@ 005
      - /var/run/docker.sock:/var/run/docker.sock  #@ 006
      capabilities: [SYS_ADMIN]  #@ 007
      user: root  #@ 008
      image: registry.example.com/team/trainer:1.4  #@ 010
      command: torchrun --nnodes 2 --rdzv-backend c10d t.py  #@ RDZ-003, RDZ-009
"""


def inside(head, spaces=0):
    return head + re.sub("(?m)^(?=.)", " " * spaces, f"docker run{RUN}")


FORMS = {
    "docker.sh": f"docker run{RUN}",
    "podman.sh": f"set -e\npodman container run{RUN}",
    "nerdctl.sh": f"nerdctl create{RUN.replace('--pid host', '--pid=host')}",
    "srun.sh": f"srun -N 2 docker run --rm -it{RUN.replace('-u root', '-uroot')}",
    "shell.sh": "bash -c '"
    + inside("")[:-1].replace("  #@ RDZ-003, RDZ-009", "'  #@ RDZ-003, RDZ-009\n"),
    "skypilot.yaml": inside("resources: {cpus: 2}\nrun: |\n", 2),
    "ansible.yaml": inside("- hosts: all\n  tasks:\n  - shell: |\n", 6),
    "main.tf": inside("user_data = <<-EOT\n  #!/bin/bash\n", 2) + "EOT\n",
    "compose.yaml": SERVICE,
    "extends.yaml": EXTENDED,
    "module.yaml": MODULE,
}


def findings(folder, name, text):
    folder.mkdir()
    (folder / name).write_text(re.sub("  #@.*", "", text))
    bodies = collect_manifests([folder], now=NOW)
    return audit(facts_of(bodies), CHECKS, BASELINE, NOW).findings


@pytest.mark.parametrize("name", sorted(FORMS))
def test_one_container_in_every_form_has_the_same_findings_at_their_lines(name, tmp_path):
    text = FORMS[name]
    wanted = {
        (f"ST-{'K8S-' * check.isdigit()}{check}", line)
        for line, content in enumerate(text.splitlines(), 1)
        if "#@" in content
        for check in content.partition("#@ ")[2].split(", ")
    }
    failed = [one for one in findings(tmp_path / "x", name, text) if one.state is State.FAIL]
    assert wanted <= {(one.check, one.location.line) for one in failed}
    assert {check for check, _ in wanted} == {one.check for one in failed} == WANTED


@pytest.mark.parametrize(
    ("text", "check", "state"),
    [
        ("docker run img@sha256:" + "a" * 64, "ST-K8S-001", "pass"),
        ("docker run --privileged=false img", "ST-K8S-001", "pass"),
        ("docker run --privileged=$P img", "ST-K8S-001", "unknown"),
        ("docker run $OPTS img", "ST-K8S-001", "unknown"),
        ("docker run $OPTS --privileged img", "ST-K8S-001", "fail"),
        ('docker run "$IMAGE" --privileged', "ST-K8S-001", "pass"),
        ("docker run --memory-reservation 8g --privileged img", "ST-K8S-001", "fail"),
        ("docker run --unheard-of --privileged img", "ST-K8S-001", "fail"),
        ("docker run --rm img --privileged", "ST-K8S-001", "pass"),
        ("docker run --device /dev/sda img", "ST-K8S-005", "fail"),
        ("docker run -v $PWD/data:/data -v cache:/c img", "ST-K8S-005", "pass"),
        ("docker run -v $ROOT:/data img", "ST-K8S-005", "unknown"),
        ("docker run --volumes-from other img", "ST-K8S-005", "unknown"),
        ("docker run --mount type=bind,source=/etc,target=/e img", "ST-K8S-005", "fail"),
        ("docker run --security-opt seccomp=unconfined img", "ST-K8S-009", "fail"),
        ("docker run --security-opt no-new-privileges img", "ST-K8S-009", "pass"),
        ("docker run -u 1000:1000 img", "ST-K8S-008", "pass"),
        ("docker run -u $(id -u) img", "ST-K8S-008", "unknown"),
        ("apptainer exec --nv -B /etc:/etc,/d:/d i.sif x", "ST-K8S-005", "fail"),
        ("singularity exec --fakeroot docker://x/y:1 z", "ST-K8S-008", "pass"),
        ("singularity exec docker://x/y:1 z", "ST-K8S-010", "fail"),
        ("singularity exec i.sif z", "ST-K8S-009", "pass"),
        ("enroot start -m /etc:/etc img z", "ST-K8S-005", "fail"),
        ("srun --container-image=x#y:1 --container-mounts=/etc:/etc z", "ST-K8S-005", "fail"),
        ("docker run img", "ST-K8S-016", "not-applicable"),
    ],
)
def test_an_option_of_a_runtime(text, check, state, tmp_path):
    found = findings(tmp_path / "x", "x.sh", text)
    assert {one.state.value for one in found if one.check == check} == {state}


def test_the_token_of_a_task_is_found(tmp_path):
    text = "num_nodes: 2\nenvs:\n  HF_TOKEN: hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345\n"
    text += "run: |\n  torchrun --nnodes $SKYPILOT_NUM_NODES --rdzv-backend c10d t.py\n"
    failed = {
        (one.check, one.location.line)
        for one in findings(tmp_path / "x", "task.yaml", text)
        if one.state is State.FAIL
    }
    assert failed == {("ST-SEC-002", 3), ("ST-RDZ-003", 5), ("ST-RDZ-009", 5)}


@pytest.mark.parametrize("hook", ["lifecycle: {postStart: H}", "livenessProbe: H"])
def test_what_hooks_and_probes_run_is_read(tmp_path, hook):
    command = "{exec: {command: [bash, -c, 'torchrun --nnodes 2 --rdzv-backend c10d t.py']}}"
    text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n"
    text += f"  - name: c\n    image: i\n    {hook.replace('H', command)}\n"
    found = findings(tmp_path / "x", "p.yaml", text)
    assert [one.location.line for one in found if one.check == "ST-RDZ-003"] == [8]


@pytest.mark.parametrize(
    ("name", "text", "check", "found"),
    [
        ("Dockerfile", "FROM x\nRUN pip install y\nRUN git clone http://e/z\n", "ST-DAT-002", {3}),
        (
            "Dockerfile",
            "FROM x\nRUN pip install y\nRUN git clone http://e/z\n",
            "ST-K8S-027",
            set(),
        ),
        ("Dockerfile", "FROM x\nRUN a \\\n  # b\n  && curl http://e/z\n", "ST-DAT-002", {4}),
        ("Dockerfile", "FROM x\nRUN <<E\ncurl http://e/z\nE\n", "ST-DAT-002", {3}),
        ("Dockerfile", 'FROM x\nENTRYPOINT ["torchrun"]\nCMD ["--nnodes=2"]\n', "ST-RDZ-009", {3}),
        ("i.def", "From: x\n%post\ncurl http://e/z\n%runscript\ntrue\n", "ST-DAT-002", {3}),
        ("m.tf", "user_data = <<E\n#cloud-config\nruncmd: [x]\nE\n", "ST-RDZ-003", {2}),
        ("m.tf", "policy = <<E\n{}\nE\n", "ST-RDZ-003", set()),
    ],
)
def test_what_image_files_and_terraform_run(tmp_path, name, text, check, found):
    bad = [one for one in findings(tmp_path / "x", name, text) if one.check == check]
    told = {one.location.line for one in bad if one.state in {State.FAIL, State.UNKNOWN}}
    assert told == found


PIECES = [
    *("FROM x\n", "RUN ", "ENV ", "ENV A b\n", "CMD [", '["a", "b"]', "<<E\n", "E\n", "\\\n"),
    *("# c\n", "ONBUILD ", "ARG V=1\n", "ADD http://e ", "a=b ", "\n", "$V ", "'", '"', "["),
    *("%post\n", "= <<E\n"),
]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_no_image_file_breaks_its_reader_or_leads_out_of_the_file(text):
    for name in ("Dockerfile", "i.def", "m.tf"):
        for one in scripts(name, text):
            lines = [one.place(i).line for i in range(len(one.text) + 1)]
            assert all(1 <= line <= text.count("\n") + 1 for line in lines)


def test_an_image_file_that_is_too_long_is_not_read(tmp_path):
    found = findings(tmp_path / "x", "Dockerfile", "FROM x\n" + "RUN a\n" * 50_000)
    assert {one.state for one in found if one.check == "ST-RDZ-003"} == {State.UNKNOWN}


def test_services_that_extend_each_other_in_a_circle_end_and_leave_the_rest_open(tmp_path):
    text = "services:\n  a: {extends: b}\n  b: {extends: a, image: i}\n"
    found = findings(tmp_path / "x", "c.yaml", text)
    assert {one.state for one in found if one.check == "ST-K8S-001"} == {State.UNKNOWN}
