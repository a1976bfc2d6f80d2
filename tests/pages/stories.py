# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Each page's commands: run as they stand, tried by a test of their own, or why they are not run.

Rules:

1. a command of a page is typed as it stands there, in a folder of its own, after `before`, which is
   what a reader has before the page begins;
2. `instead` says what is typed in place of what the page has for an example: an address, a name;
3. a command ends with 0, or as `ends` says;
4. what cannot be run here has its reason in `not_run`; a reason, an exit or a replacement that fits
   no command of its page is an error.

Where a command is meant, its beginning is enough.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

JUDGED: Final = (0, 1, 3)
"""An audit of whatever machine this is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What is done with the commands of one page."""

    before: str = ""
    """Commands of a shell. ``block NUMBER`` prints a block of the page that is no command's."""
    instead: Mapping[str, str] = field(default_factory=dict)
    ends: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    not_run: Mapping[str, str] = field(default_factory=dict)
    by: Mapping[str, str] = field(default_factory=dict)
    """Commands that another test tries: its file, which names this page."""
    run: bool = False
    """Begins with `runs/r1`: a run of two ranks with its data, its keys and `model.stpack`."""
    cheap: bool = False
    """Told in ``make test``; the others wait for ``make test-slow``."""
    fleet: bool = False
    """Begins with `fleet.json`, in which the software TPM of node-17 is enrolled."""


TOOL: Final = "runs the project's own checks: see CONTRIBUTING.md"
EXTRA: Final = "every extra is installed into an empty environment by 'make release'"
TRACKERS: Final = "is done by 'make test-compat' in an environment of its own"
CLOUD: Final = "needs an account at a cloud"
PERSON: Final = "needs a person at a browser, and the public service"
THIS: Final = "is what runs this test"
HARDWARE: Final = "needs hardware, or documents of its maker"
ENGINE: Final = "needs a container engine and a registry"
OVERLAY: Final = "tests/launch/test_overlay_netns.py"
TORCHRUN: Final = "tests/launch/test_torchrun_netns.py"
ATTEST: Final = "tests/cli/test_attest.py"
VALUES: Final = "tests/attest/fleet/test_values.py"
VERIFY: Final = "tests/cli/test_verify.py"
OMS: Final = "tests/artifacts/model/oms/test_signers.py"
CERTIFIED: Final = "tests/audit/test_certified_facts.py"
PACKS: Final = "tests/chain/test_packs.py"
TOKENS: Final = "tests/identity/test_pkcs11.py"
CLUSTER: Final = "tests/cli/test_cluster.py"
ON_MACHINES: Final = {
    "securetrain coordinator": CLUSTER,
    "securetrain enroll": CLUSTER,
    "securetrain ca ": CLUSTER,
    "securetrain run --nnodes": OVERLAY,
    "torchrun": TORCHRUN,
}
"""What needs several machines: those tests make them of processes and network namespaces."""


def on_machines(*but: str) -> dict[str, str]:
    """The table, but for what the page does not have."""
    return {begin: test for begin, test in ON_MACHINES.items() if begin not in but}


DATA: Final = """
mkdir -p data/corpus/train data/corpus/validation
for n in 1 2 3 4; do
    seq 1 4000 | sed "s/^/line $n /" > data/corpus/train/$n.txt
done
seq 1 2000 > data/corpus/validation/1.txt
"""
MODEL: Final = """
$PYTHON - <<'END'
import json, struct
from pathlib import Path
for folder in ("model", "llama"):
    Path(folder).mkdir(exist_ok=True)
    head = json.dumps({"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}).encode()
    head += b" " * (-len(head) % 8)
    Path(folder, "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(16))
    Path(folder, "config.json").write_text("{}")
END
"""
TRAIN: Final = """
cat > train.py <<'END'
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
if dist.get_rank() == 0:
    import pathlib
    pathlib.Path("out/step-7").mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), "out/step-7/model.pt")
dist.barrier()
dist.destroy_process_group()
END
"""
SITE: Final = "cp -r $ROOT/tests/pages/cluster/* .\n"
SIGNED_BY: Final = "MCowBQYDK2VwAyEA..."
ID: Final = "securetrain key show {} | grep -oE -m1 '[0-9a-f]{{64}}'"
"""Prints a key's id."""
RUN: Final = (
    DATA
    + """
securetrain key generate root.key; securetrain key generate data.key
securetrain trust init trust --key root.key --add dataset=data.key.pub
securetrain sign data/corpus --dataset --key data.key
cat > job.yaml <<'END'
apiVersion: securetrain.dev/job/v1
kind: TrainJob
name: my-model
steps: 16
trust: trust/root.json
model: {dim: 32, layers: 2, heads: 2, ffn: 64}
data: {dataset: data/corpus, seq_len: 32, batch_rows: 4}
checkpoint: {every: 8}
launch: {nproc_per_node: 2}
END
securetrain train job.yaml --run-dir runs/r1
cp trust/root.json trust-data.json
securetrain pack runs/r1/checkpoints/step-00000016 --trust runs/r1/trust.json \\
    --trust-data trust-data.json --walk-in data --out model.stpack
cp runs/r1/trust.json trust.json
"""
)
"""Of `Story.run`; made once for all."""
FLEET: Final = """
securetrain key generate operator.pem; securetrain key generate next.pem
securetrain key show operator.pem | grep -A1 -m1 BEGIN | tail -1 > signed-by
securetrain attest collect --node node-17 --out node-17.json
securetrain attest challenge node-17.json --to-enroll --out question.json --secret question.secret
securetrain attest collect --node node-17 --question question.json --out answer.json
securetrain attest enroll answer.json --secret question.secret --reference-values fleet.json \
    --key operator.pem --root infineon.pem --learn-boot --group gpu-h100-2026.11
rm question.json question.secret answer.json
"""
"""Of `Story.fleet`."""

STORIES: Final[Mapping[str, Story]] = {
    "README.md": Story(
        run=True,
        before=SITE
        + TRAIN
        + MODEL
        + """
cp -r $ROOT/examples .; cp data.key KEY
$PYTHON -c 'import pickle; pickle.dump({"a": 1}, open("model.pt", "wb"))'
rm -r data; mkdir data; seq 1 1000 > data/1.txt
""",
        instead={
            "runs/RUN/": "$(ls -dt runs/2* | head -1)/",
            "train.py --your --flags": "train.py",
            "securetrain verify CKPT": "securetrain verify runs/r1/checkpoints/step-00000016",
            "/etc/slurm": "slurm",
            "report RUN_DIR": "report runs/r1",
            "trust init trust": "trust init roots",
        },
        ends={"securetrain audit": JUDGED, "securetrain scan": JUDGED},
        not_run={"make ": THIS},
        by={
            **on_machines("torchrun"),
            "securetrain quickstart --tpm": "tests/quickstart/test_tpm.py",
            "securetrain train examples/fsdp.yaml": "tests/quickstart/test_story.py",
        },
    ),
    "CONTRIBUTING.md": Story(not_run={"make ": THIS, "export": THIS}),
    "docs/index.md": Story(
        run=True,
        before=TRAIN,
        instead={
            "runs/RUN/": "$(ls -dt runs/2* | head -1)/",
        },
        ends={"securetrain audit": JUDGED},
        not_run={"make ": THIS},
    ),
    "docs/tutorial/quickstart.md": Story(not_run={"make ": THIS}),
    "docs/contributing/evidence.md": Story(not_run={"make ": TOOL, "FUZZ_INPUTS": TOOL}),
    "docs/contributing/parallelism.md": Story(not_run={"export": TOOL}),
    "docs/contributing/release.md": Story(
        by={
            "make release": "tests/tools/test_release.py",
            "securetrain verify dist": "tests/tools/test_release.py",
        }
    ),
    "docs/explanation/network-profiles.md": Story(not_run={"securetrain run": HARDWARE}),
    "docs/how-to/follow-a-run.md": Story(
        not_run={"pip install": TRACKERS, "export OTEL": TRACKERS},
        by={
            "securetrain run": "tests/launch/test_telemetry.py",
            "securetrain follow": "tests/integrations/test_trackers.py",
        },
    ),
    "docs/how-to/signed-datasets.md": Story(
        cheap=True,
        before=DATA
        + "mkdir new; seq 1 9 > new/b.jsonl; head -c 2000000 /dev/zero > data/corpus/train/a.jsonl",
    ),
    "docs/how-to/containers.md": Story(not_run={"podman": ENGINE}),
    "docs/how-to/write-a-policy.md": Story(cheap=True, before="block 1 > team.yaml"),
    "docs/how-to/threat-models.md": Story(),
    "docs/how-to/drills.md": Story(),
    "docs/how-to/verify-in-ci.md": Story(
        run=True,
        before=MODEL
        + """
cp model/model.safetensors model.gguf
mv runs/r1/checkpoints/step-00000016 runs/r1/checkpoints/step-00000100
cat > release.yaml <<'END'
extends: baseline
apiVersion: securetrain.dev/policy/v1
kind: Policy
metadata: {id: release, version: 1.0.0}
node:
  min_tier: self-asserted
  allow_self_asserted: {reason: one machine of our own, max_nodes: 1}
END
for one in maker; do
    securetrain key generate other.key --kind ecdsa-p256
    mkdir signed; cp -r model signed/model; cp model.gguf signed/
    securetrain sign signed/model --oms --key other.key
    securetrain sign signed/model.gguf --oms --key other.key
    cp other.key.pub maker.pem; mv signed/model/model.sig model/; mv signed/model.gguf.sig .
done
""",
        instead={
            "--policy baseline": "--policy release.yaml",
            "securetrain sign ./model --key maker.key": "rm model/model.sig;"
            " securetrain sign ./model --key maker.key",
            "securetrain sign model.gguf": "rm model.gguf.sig; securetrain sign model.gguf",
        },
        not_run={
            "securetrain verify ./model --bundle ./model/model.sig --identity": PERSON,
        },
        by={
            "securetrain verify ./model --bundle ./model/model.sig --ca": VERIFY,
            "securetrain sign ./model --oms --key 'pkcs11:": OMS,
        },
    ),
    "docs/how-to/audit-a-node.md": Story(
        run=True,
        before=SITE
        + MODEL
        + """
mkdir -p data/docs; seq 1 9 > data/docs/1.txt; securetrain sign data/docs --dataset --key data.key
printf 'torch==2.13.0\n' > requirements.txt
securetrain audit new ST-ABC-001 --checks checks
printf '%s\n' 'apiVersion: securetrain.dev/policy/v1' 'kind: Inventory' 'assets:' \
    '- {asset: "node:gpu-17"}' > assets.yaml
cp assets.yaml inventory.yaml
block 1 > more; { printf '%s\n' 'extends: dev' 'apiVersion: securetrain.dev/policy/v1' \
    'kind: Policy' 'metadata: {id: site, version: 1.0.0}'; cat more; } > site.yaml
cp site.yaml fleet.yaml
""",
        instead={
            "/etc/slurm": "slurm",
            "--facts nodes/ --out": "--facts node7.json --unsigned --out",
        },
        ends={"securetrain audit": JUDGED},
        by={
            "securetrain audit --facts nodes/ --inventory": "tests/audit/test_signed_facts.py",
            "securetrain audit nonce": "tests/audit/test_nonces.py",
            "securetrain audit --node --save-facts gpu-17.json": CERTIFIED,
        },
    ),
    "docs/how-to/audit-in-ci.md": Story(before=SITE, ends={"securetrain audit": JUDGED}),
    "docs/how-to/audit-manifests.md": Story(
        before=SITE + "mkdir -p checks/fixtures; block 2 > checks/st-abc-002.yaml;"
        " block 3 > checks/fixtures/st-abc-002.yaml",
        ends={"securetrain audit": JUDGED},
    ),
    "docs/how-to/audit-slurm.md": Story(
        before=SITE, instead={"/etc/slurm": "slurm"}, ends={"securetrain audit": JUDGED}
    ),
    "docs/how-to/confidential-gpus.md": Story(by={"securetrain attest cache": ATTEST}),
    "docs/how-to/object-stores.md": Story(
        not_run={"pip": EXTRA},
        by={"securetrain": "tests/artifacts/stores/test_page.py"},
    ),
    "docs/how-to/encrypt-checkpoints.md": Story(not_run={"pip": EXTRA}),
    "docs/how-to/use-in-your-framework.md": Story(cheap=True, not_run={"pip": EXTRA}),
    "docs/how-to/give-secrets.md": Story(
        not_run={"securetrain coordinator": "its options are those of 'run' below, which is tried"},
        by={
            "securetrain run": "tests/launch/test_secrets.py",
        },
    ),
    "docs/how-to/google-confidential-vms.md": Story(
        by={
            "securetrain attest google": "tests/cli/test_attest_google.py",
            "securetrain attest collect": ATTEST,
            "securetrain attest show": ATTEST,
            "securetrain attest enroll": ATTEST,
            "securetrain attest values set": ATTEST,
        },
    ),
    "docs/how-to/share-a-fleet.md": Story(
        not_run={"securetrain attest explain runs/run-7-coordinator": "needs that run"},
        by={
            "securetrain fleet use": "tests/attest/session/test_fleet_database.py",
            "securetrain fleet status": "tests/attest/fleet/test_status.py",
            "securetrain coordinator": "tests/rendezvous/coordinator/test_watchers.py",
            "securetrain attest verify": ATTEST,
            "securetrain attest explain result.json": "tests/attest/fleet/test_explain.py",
        },
    ),
    "docs/how-to/two-nodes.md": Story(by=on_machines()),
    "docs/how-to/expect-an-artifact.md": Story(
        run=True,
        before=MODEL
        + """
rm -r model; cp -r runs/r1/checkpoints/step-00000016 ckpt; cp data.key release.key
rm -r data; mkdir -p data/train; seq 1 9 > data/train/1.txt
for one in alice bob ci; do
    securetrain key generate $one.key --kind ed25519; cp $one.key.pub $one.pub.pem
done
securetrain trust init both --key root.key --add checkpoint=data.key.pub --add dataset=data.key.pub
cp both/root.json both.json
mkdir -p models; cp -r llama models/llama-4000
securetrain sign models/llama-4000 --safetensors --key data.key --name prod-model
securetrain sign data --dataset --key data.key --name corpus
for n in 2 3 4; do
    seq 1 $n > data/train/$n.txt
    securetrain sign data --dataset --key data.key --append --trust both.json
done
cat > name.txt < /dev/null
""",
        instead={
            "--expect-name prod-model --expect-min-step 4000": "--expect-min-step 16",
            "verify ./data --trust trust.json": "verify ./data --trust both.json",
            "--expect-run job-a1b2c3": "--expect-min-step 1",
            "--catalogue-root root.json --trust trust.json": "--catalogue-root root.json"
            " --trust both.json",
        },
    ),
    "docs/how-to/export-for-others.md": Story(
        run=True,
        before="cp -r runs/r1/checkpoints/step-00000016 step-00000400",
        instead={"runs/r1/checkpoints/step-00000400": "runs/r1/checkpoints/step-00000016"},
        ends={"securetrain export": (0, 3)},  # the run has no log
    ),
    "docs/how-to/prove-a-checkpoint.md": Story(
        run=True,
        before="rm model.stpack; securetrain key generate verifier.pem; block 1 > chain;"
        " { printf '%s\\n' 'extends: dev'"
        " 'apiVersion: securetrain.dev/policy/v1' 'kind: Policy'"
        " 'metadata: {id: release, version: 1.0.0}'; cat chain; } > release.yaml",
        instead={
            "step-00000400": "step-00000016",
            "--out model.stpack": "--walk-in data --trust-data trust-data.json --weights"
            " --out model.stpack",
            "--expect-run job-4f1c0a9d2b7e6853": "--trust-data trust-data.json",
            "--vsa model.vsa.json": "--trust-data trust-data.json --vsa model.vsa.json",
        },
        by={
            "securetrain verify model.stpack --trust trust-of-then.json": PACKS,
            "securetrain verify model.stpack --trust trust.json --policy release.yaml --appraise": (
                "tests/chain/test_reappraise_packs.py"
            ),
        },
    ),
    "docs/how-to/replay-steps.md": Story(
        run=True,
        before="""
securetrain key generate auditor.pem; securetrain key generate ops.pem
securetrain trust init auditors --key ops.pem --add ci=auditor.pem.pub
cp auditors/root.json auditors.json; cp trust-data.json trust.json
printf '%s\\n' 'extends: dev' 'apiVersion: securetrain.dev/policy/v1' 'kind: Policy' \\
    'metadata: {id: release, version: 1.0.0}' 'chain: {require: [replay]}' > release.yaml
""",
        instead={"--trust trust.json": "--trust runs/r1/trust.json --trust-data trust-data.json"},
        by={
            "securetrain replay model.stpack --trust trust.json --in runs/r1 --in data"
            " --sample": "tests/chain/test_replay.py",
        },
    ),
    "docs/how-to/release-a-model.md": Story(
        cheap=True,
        before=MODEL
        + """
mkdir ci; securetrain key generate root.key; securetrain key generate release.key
securetrain trust init ci/trust --key root.key --add checkpoint=release.key.pub
cp ci/trust/root.json ci/trust.json
""",
    ),
    "docs/how-to/rotate-a-key.md": Story(
        before=MODEL
        + f"""
for one in root-b root-c run new data ops; do securetrain key generate $one.pem; done
for one in log node-1 node-2 node-3; do securetrain key generate $one.pem --kind ed25519; done
{ID.format("run.pem")} > run.id; {ID.format("root-b.pem")} > root-b.id
securetrain sign model --safetensors --key new.pem; cp model/statement.json .
securetrain log init log --origin log.example/team --key log.pem
""",
        instead={
            "root-a.pem --encrypt": "root-a.pem",  # a person types the passphrase
            "trust sign trust --key": "trust sign trust --yes --key",  # and says y
            "3fa9c2d1": "$(cat run.id)",
            "91ab03f7": "$(cat root-b.id)",
            "--pin root.json": "--pin trust/1.root.json",
            "/var/lib/securetrain/trust": "followed",
            "/mnt/published/trust": "trust",
            "/var/lib/witness": "witness",
            "securetrain log checkpoint log": "for n in 1 2; do securetrain log witness log --key"
            " node-$n.pem --name node-$n.example --state w$n --trust trust/root.json; done;"
            " securetrain log checkpoint log",
            "securetrain log init log ": "securetrain log init another ",
            "securetrain log prove": "securetrain log witness log --key node-2.pem --name"
            " node-2.example --state second --trust trust/root.json; securetrain log prove",
        },
        by={"securetrain log verify statement.json --trust /var": "tests/cli/test_log.py"},
    ),
    "docs/how-to/sign-without-a-key.md": Story(
        before=MODEL
        + """
securetrain key generate root-a.pem; securetrain trust init trust --key root-a.pem
securetrain key generate hsm --kind ecdsa-p256
""",
        not_run={
            "pip": EXTRA,
            "securetrain sign ./llama --safetensors --keyless": PERSON,
            "securetrain sign data/corpus": PERSON,
            "securetrain policy sign": PERSON,
            "securetrain key show awskms": CLOUD,
            "securetrain sign ./llama --safetensors --key awskms": CLOUD,
        },
        by={
            "securetrain key show 'pkcs11:": "tests/cli/test_key.py",
            "securetrain sign ./llama --safetensors --key 'pkcs11:": TOKENS,
        },
    ),
    "docs/how-to/signed-checkpoints.md": Story(
        run=True,
        before="""
rm -r trust; for n in 1 2; do securetrain key generate operator-$n.key; done
""",
        instead={
            "RUN/checkpoints/step-00000100": "runs/r1/checkpoints/step-00000016",
            "RUN/": "runs/r1/",
        },
        by={
            "securetrain waive": "tests/cli/test_waive.py",
            "securetrain verify CHECKPOINT": "tests/cli/test_waive.py",
            "securetrain verify RUN": "tests/launch/test_run_logged.py",
            "securetrain log checkpoint": "tests/launch/test_run_logged.py",
            "securetrain convert": "tests/cli/test_convert.py",
        },
    ),
    "docs/how-to/train-a-job.md": Story(
        run=True,
        before="""
rm -r runs trust *.key *.pub; mkdir -p docs/train; seq 1 999 > docs/train/1.txt
""",
        by={
            "securetrain sign data/corpus": "tests/cli/test_sign.py",
            "securetrain sign base": "tests/cli/test_sign.py",
            "securetrain verify base": VERIFY,
            "securetrain convert": "tests/cli/test_convert.py",
            "securetrain train": "tests/cli/test_train.py",
        },
    ),
    "docs/how-to/run-your-script.md": Story(
        before=TRAIN + "mkdir out my_package; cp train.py my_package/train.py",
        instead={
            "securetrain run --nproc-per-node 2 -m": "securetrain run --standalone"
            " --nproc-per-node 2 -m",
            "runs/first --sign": "runs/first --output out --sign",
        },
        by=on_machines(),
    ),
    "docs/how-to/your-own-model.md": Story(before="cp -r $ROOT/examples ."),
    "docs/how-to/guard-your-script.md": Story(
        before=TRAIN, instead={"--nproc-per-node 4": "--nproc-per-node 2"}
    ),
    "docs/how-to/manage-reference-values.md": Story(
        fleet=True,
        before="""
cp fleet.json old.json
securetrain attest values set fleet.json --key operator.pem snp.any_chip=false
cp fleet.json new.json
""",
        instead={SIGNED_BY: "$(cat signed-by)"},
        by={
            "securetrain attest values set fleet.json --key operator.pem tokens": ATTEST,
            "securetrain attest values retire": VALUES,
            "securetrain attest values revoke": ATTEST,
            "securetrain attest values sign fleet.json --key next.pem": VALUES,
        },
    ),
    "docs/how-to/attest-a-fleet.md": Story(
        fleet=True,
        before="""
rm fleet.json* operator.pem*; securetrain key generate operator.pem
securetrain key show operator.pem | grep -A1 -m1 BEGIN | tail -1 > signed-by
$PYTHON - <<'END'
from pathlib import Path
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from tests.attest.fleet.packages_made import dpkg_root
dpkg_root(Path("image"), {"tool": {"/usr/bin/tool": b"t"}})
key = generate_private_key(65537, 2048).public_key()
text = key.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
Path("vendor.pem").write_bytes(text)
END
securetrain attest ima-list --dpkg image --out runtime-policy.json
""",
        instead={SIGNED_BY: "$(cat signed-by)", "/mnt/image": "image"},
        not_run={"pip": EXTRA},
        by={
            "securetrain fleet admit --csv": "tests/rendezvous/test_fleet_page.py",
            "securetrain fleet join": "tests/rendezvous/test_fleet_page.py",
            "securetrain fleet ": "tests/cli/test_fleet.py",
            "securetrain attest enroll answer-18.json": ATTEST,
            "securetrain attest challenge node-17.json --policy": ATTEST,
            "securetrain attest verify": ATTEST,
            "securetrain attest images": "tests/attest/fleet/test_images.py",
            "securetrain attest values retire": VALUES,
        },
    ),
    "docs/reference/model-signing.md": Story(
        not_run={
            "pip": EXTRA,
            "python tools/conformance.py": "needs two repositories of the format's makers",
        }
    ),
}
"""By page."""
