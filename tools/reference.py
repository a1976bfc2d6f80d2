# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Write the reference pages that are made from the code: codes, policy and job fields,
checks, commands, ledger events, torchrun's command lines.

``python tools/reference.py`` writes them; ``--check`` exits with 1 when one is out of date.
"""

import re
import sys
from collections.abc import Callable
from enum import StrEnum
from inspect import cleandoc
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from msgspec import inspect

from securetrain.audit.engine.schema import NOT_JUDGED
from securetrain.audit.sources.catalogue import load_checks
from securetrain.cli.main import VERBS, LazyGroup
from securetrain.core import field_notes
from securetrain.core.codes import ALONE, CODES, RETIRED, Code, ExitCode, Node, Retry
from securetrain.core.errors import SecureTrainError
from securetrain.core.vocabulary import Boundary
from securetrain.ledger import events
from securetrain.policy.enforcement import NEEDS, REFUSED_AT, Needs
from securetrain.policy.schema import SECTIONS, Policy
from securetrain.train.config import JobConfig

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tools.torchrun_lines import COMMON, LINES, Line

DOCS: Final = Path(__file__).resolve().parent.parent / "docs" / "reference"
NOTE: Final = "<!-- Made by tools/reference.py; edit the code, not this page. -->\n\n"

CODES_INTRO: Final = """\
Every refusal carries a stable code: the same in error messages, `--json` output and the ledger.
Families have four letters; audit checks have three-letter groups. One table in the code,
`securetrain/core/codes`, decides everything about a code, and this page shows it.
"""
COLUMNS_INTRO: Final = """\
- **fix**: the standing advice; the place that refuses may know better.
- **severity**: its level in SARIF is `error` from `high` on, `warning` for `medium`, else `note`.
- **rank**: the place among several problems of one checkpoint, dataset, model or scan. The exit
  code of a command is that of the lowest rank. A code without a rank ends what it is raised in.
- **threat**: what it answers in the [threat models](../how-to/threat-models.md).
"""


def codes_page() -> str:
    """Exit codes and the table of codes."""
    exits = _described(ExitCode)
    lines = ["# Refusal codes and exit codes\n", NOTE, CODES_INTRO]
    lines += [
        "## Exit codes\n",
        "| exit | meaning |",
        "| ---: | --- |",
        *(f"| {int(code)} | {exits[code.name]} |" for code in ExitCode),
        "\n## Refusal codes\n",
        COLUMNS_INTRO,
        "**node**: the verdict on a node that is refused with it, or whose connection it ends.\n",
        *(f"- `{value}`: {text}" for value, text in _values(Node)),
        "\n**retry**: the help that another attempt is.\n",
        *(f"- `{value}`: {text}" for value, text in _values(Retry)),
    ]
    for cls in SecureTrainError.__subclasses__():
        for family in sorted(cls.families):
            lines += [
                f"\n### {family}\n",
                f"{(cls.__doc__ or '').splitlines()[0]}\n",
                "| code | meaning | fix | exit | severity | rank | node | retry | threat |",
                "| --- | --- | --- | ---: | --- | ---: | --- | --- | --- |",
                *(_code_row(code) for code in CODES.values() if code.family == family),
            ]
    return "\n".join(lines) + "\n"


def _values(choice: type[StrEnum]) -> list[tuple[str, str]]:
    texts = _described(choice)
    return [(member.value, texts[member.name]) for member in choice]


def _code_row(code: Code) -> str:
    cells = (
        f"`{code.id}`",
        code.title,
        code.fix,
        int(code.exit),
        code.severity,
        "" if code.rank == ALONE else code.rank,
        code.node,
        code.retry,
        code.threat,
    )
    return f"| {' | '.join(str(cell).replace('<', '&lt;') for cell in cells)} |"


def policy_page() -> str:
    """Every field of the policy schema."""
    lines = ["# Policy fields\n", NOTE]
    lines += [
        "A policy is one YAML file, `apiVersion: securetrain.dev/policy/v1`, `kind: Policy`, with",
        "a section for each trust boundary and one for the audit itself. `extends` names a shipped",
        "policy (`dev`, `baseline`, `hardened`) or a file beside it. Unknown keys are errors.",
        "`securetrain policy explain NAME` prints the same with the values in force.\n",
    ]
    info = inspect.type_info(Policy)
    assert isinstance(info, inspect.StructType)
    for section in info.fields:
        if section.name not in {*SECTIONS, "chain"}:
            if section.name == "enforcement":
                lines += [
                    "| field | default | enforced by | meaning |",
                    "| --- | --- | --- | --- |",
                    _policy_row(section),
                ]
            continue
        assert isinstance(section.type, inspect.StructType)
        doc = (section.type.cls.__doc__ or "").splitlines()[0]
        lines += [
            f"\n## {section.name}\n",
            f"{doc}\n",
            "| field | default | enforced by | meaning |",
            "| --- | --- | --- | --- |",
        ]
        for entry in section.type.fields:
            lines.append(_policy_row(entry))
    lines += _dependent_fields()
    return "\n".join(lines) + "\n"


def _dependent_fields() -> list[str]:
    """Fields that a run may leave unenforced, and where `enforcement: require` refuses them."""
    lines = [
        "\n## What depends on the script or the machine\n",
        "A field that is not in this table is enforced on whatever runs, or nothing starts. A run",
        "that lacks something for one of these says so at its start and its end, in the ledger and",
        "in the report; `enforcement: require` refuses it. Which data a script reads without",
        "securetrain is seen by nobody: only that a run has opened no signed dataset is known.\n",
        "| it needs | fields | `enforcement: require` refuses |",
        "| --- | --- | --- |",
    ]
    texts = _described(Needs)
    for needs in Needs:
        if needs is Needs.NOTHING:
            continue
        fields = " ".join(f"`{name}`" for name, found in NEEDS.items() if found is needs)
        text = texts[needs.name].rstrip(".")
        lines.append(f"| {text} | {fields} | {REFUSED_AT[needs]} |")
    return lines


def _policy_row(entry: inspect.Field) -> str:
    described = entry.type
    extra: dict[str, Any] = {}
    description = ""
    if isinstance(described, inspect.Metadata):
        extra = described.extra or {}
        description = (described.extra_json_schema or {}).get("description", "")
    default = msgspec.to_builtins(entry.default) if entry.default is not msgspec.NODEFAULT else ""
    return f"| `{entry.name}` | `{default}` | {', '.join(extra['enforced_by'])} | {description} |"


JOB_INTRO: Final = """\
`securetrain train job.yaml` runs the built-in trainer; `securetrain run ... -m securetrain.train
job.yaml` is the same with the flags spelled out, and `securetrain plan job.yaml` says what it needs
without starting it. Unknown fields are errors that name the file and the field. A field that is
left out has its default; `apiVersion`, `kind`, `name` and `steps` have none.
[Train a job](../how-to/train-a-job.md) leads through it, and `examples/` has recipes from a laptop
to 64 GPUs.

```yaml
apiVersion: securetrain.dev/job/v1
kind: TrainJob
name: my-model
seed: 0
steps: 400
precision: bf16
model: {dim: 192, layers: 4, heads: 6, ffn: 512}
data: {seq_len: 128, batch_rows: 16}
parallel: {dp_shard: auto}
launch: {nproc_per_node: 2}
```

Each step: forward and backward, the guard's verdict, the finite check, clipping, the optimizer. A
refused step drops its gradients and is recorded; what happens next is the policy's
`gradients.response`.
"""
"""The part of the job page that is not in the schema."""


def job_page() -> str:
    """Every field of the job file, described by the docstrings below the fields."""
    lines = ["# Job file\n", NOTE, JOB_INTRO]
    lines += ["\n## At the top\n", *_job_table(JobConfig)]
    for field in msgspec.structs.fields(JobConfig):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            doc = cleandoc(field.type.__doc__ or "")
            lines += [f"\n## {field.name}\n", f"{doc}\n", *_job_table(field.type)]
    return "\n".join(lines) + "\n"


def _job_table(section: type[msgspec.Struct]) -> list[str]:
    described = _described(section)
    rows = ["| field | default | meaning |", "| --- | --- | --- |"]
    for field in msgspec.structs.fields(section):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            continue
        required = field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
        default = "" if required else f"`{msgspec.json.encode(field.default).decode()}`"
        rows.append(f"| `{field.name}` | {default} | {described.get(field.name, '')} |")
    return rows


def _described(section: type[object]) -> dict[str, str]:
    """The string below each field of a class, or each member of an enumeration, for a table."""
    return {name: text.replace("|", "\\|") for name, text in field_notes(section).items()}


def checks_page() -> str:
    """The audit's catalogue."""
    lines = ["# Checks\n", NOTE]
    lines.append(
        "What `securetrain audit` looks at, by trust boundary. Missing evidence is `unknown`,"
        " never `pass`.\n"
    )
    checks = {check.id: check for check in load_checks()}.values()
    for boundary in Boundary:
        mine = [check for check in checks if check.spec.boundary == boundary]
        if not mine:
            continue
        lines += [
            f"\n## {boundary}\n",
            "| check | severity | title | fix |",
            "| --- | --- | --- | --- |",
        ]
        lines += [
            f"| `{c.id}` | {c.severity} | {c.spec.title} | {' '.join(c.spec.remediation.split())} |"
            for c in mine
        ]
    lines += [
        "\n## Not judged\n",
        "Questions of the catalogue that no check answers; `audit --explain ID` says the same.\n",
        "| question | boundary | title | why |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| `{name}` | {one.boundary} | {one.title} | {one.because} |"
        for name, one in sorted(NOT_JUDGED.items())
    ]
    return "\n".join(lines) + "\n"


EVENTS_INTRO: Final = """\
Every line of `ledger.jsonl` holds one of these events. Its `event`, `decision` and `boundary` are
those of the table, `subject` says what it is about, a refusal has its code in `code` and its
message in the detail `what`, and the fields below are the other details. A field with `?` may be
missing.

A reader decodes a line strictly. One that is no event of this page, or that stands under the key of
a role that may not write it, counts for nothing and is reported. The trust root's roles
`ledger-coordinator`, `ledger-launcher`, `ledger-rank` and `ledger-worker` say which key has which
role; a trust root that names none of them is older than they are, every key of the role `ledger`
may write everything under it, and a report says so.

Labels are computed from typed fields (`tier`, `network`, `verdict`), never from names or messages.
"""


def ledger_events_page() -> str:
    """Every event of the ledger, by who writes it."""
    lines = ["# Ledger events\n", NOTE, EVENTS_INTRO]
    groups: dict[str, list[type[events.LedgerEvent]]] = {}
    for kind in events.KINDS.values():
        groups.setdefault(", ".join(sorted(kind.WRITERS)), []).append(kind)
    for writers, kinds in sorted(groups.items()):
        lines += [
            f"\n## Written by: {writers}\n",
            "| event | decision | boundary | meaning | details | labels |",
            "| --- | --- | --- | --- | --- | --- |",
            *(_event_row(kind) for kind in sorted(kinds, key=lambda kind: kind.NAME)),
        ]
    return "\n".join(lines) + "\n"


def _event_row(kind: type[events.LedgerEvent]) -> str:
    details = [
        f"`{field.encode_name}`{'' if field.required else '?'}"
        for field in msgspec.structs.fields(kind)
        if field.name not in {"subject", *(("code", "what") if _is_refusal(kind) else ())}
    ]
    boundary = str(kind.BOUNDARY)
    if issubclass(kind, events.PeerRefused):
        boundary = f"{Boundary.RENDEZVOUS}, or {Boundary.NODE} with a code ST-ATTS"
    own_labels = vars(kind).get("labels")
    labels = (own_labels.fget.__doc__ or "").rstrip(".") if own_labels is not None else ""
    meaning = (kind.__doc__ or "").splitlines()[0]
    return (
        f"| `{kind.NAME}` | {kind.DECISION} | {boundary} | {meaning} | {', '.join(details)} |"
        f" {labels} |"
    )


def _is_refusal(kind: type[events.LedgerEvent]) -> bool:
    return issubclass(kind, events.Refused)


def commands_page() -> str:
    """The help text of every command."""
    lines = ["# Commands\n", NOTE]
    group = LazyGroup("securetrain")
    for verb in VERBS:
        command = group.get_command(click.Context(group), verb)
        assert command is not None
        lines += _with_children(command, f"securetrain {verb}", "##")
    return "\n".join(lines) + "\n"


def _with_children(command: click.Command, name: str, heading: str) -> list[str]:
    """A command's help, then that of the commands below it."""
    lines = [f"\n{heading} {name}\n", *_help(command, name)]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for child in sorted(command.list_commands(context)):
            below = command.get_command(context, child)
            assert below is not None
            lines += _with_children(below, f"{name} {child}", "###")
    return lines


def _help(command: click.Command, name: str) -> list[str]:
    with click.Context(command, info_name=name, max_content_width=96, terminal_width=96) as context:
        return ["```text", command.get_help(context).rstrip(), "```"]


TORCHRUN_INTRO: Final = """\
Each line was given to `torchrun` and, behind `securetrain run --policy dev`, to ours; a test runs
both and compares what every worker sees (arguments, environment, directory), what is printed, the
exit code, the log files and the error file of the launcher. A line without a note differs in
nothing but the variables below and the fabric variables of
[the worker environment](worker-environment.md).

Without `--policy`, a line with `--standalone` runs under `dev` and any other under `baseline`, for
which most machines have to be prepared; the refusal says what to type to try a script.
"""


def torchrun_page() -> str:
    """Command lines of torchrun's, and what differs under each."""
    lines = ["# torchrun's command lines\n", NOTE, TORCHRUN_INTRO]
    lines += ["| case | `torchrun ...` | exit codes: torchrun, ours | difference |"]
    lines += ["| --- | --- | --- | --- |", *map(_line_row, LINES)]
    lines += ["\n## Variables with other values\n", "| variable | under ours |", "| --- | --- |"]
    lines += [f"| `{name}` | {text} |" for name, text in COMMON.items()]
    lines.append(
        "\n`--master-port`, or the port of a `c10d` or `static` endpoint, is the store's in the"
        "\nfirst round. A round after a restart gets a free one, because the store before it may"
        "\nstill be open. A launcher that a signal ended exits with 130 in place of 1."
        "\n\nA script that destroys its process group and makes it again works here. Under torchrun"
        "\neach group meets the keys of the one before in the store: a rank that is early connects"
        "\nto an address of the past, and fails or waits for its time-out."
    )
    return "\n".join(lines) + "\n"


def _line_row(line: Line) -> str:
    given = " ".join(line.argv).replace("{port}", "PORT").replace("{log}", "DIR")
    names = " ".join(f"{name}={value}" for name, value in line.env.items())
    command = f"{names} {given}" if names else given
    theirs, ours = line.exits
    exits = f"{theirs if theirs >= 0 else '-'}, {ours}"
    return f"| {line.name} | `{command}` | {exits} | {line.note} |"


_PUBLISHED: Final = re.compile(r"^\| `(ST-[A-Z]{4}-\d{3})`", re.MULTILINE)

PAGES: Final[dict[str, Callable[[], str]]] = {
    "codes.md": codes_page,
    "policy.md": policy_page,
    "job.md": job_page,
    "checks.md": checks_page,
    "commands.md": commands_page,
    "ledger-events.md": ledger_events_page,
    "torchrun.md": torchrun_page,
}


def vanished(page: str) -> list[str]:
    """List the codes that a published page shows and the table has neither kept nor retired."""
    return sorted(set(_PUBLISHED.findall(page)) - CODES.keys() - RETIRED)


def main() -> int:
    """Write the pages, or compare them with what they should be."""
    check = "--check" in sys.argv[1:]
    if (codes := DOCS / "codes.md").exists() and (gone := vanished(codes.read_text())):
        print(f"{', '.join(gone)}: published, and no row any more; add it to RETIRED")
        return 1
    stale = []
    for name, make in PAGES.items():
        path = DOCS / name
        text = make()
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if not check:
                path.write_text(text)
    for name in stale:
        print(f"{'out of date' if check else 'wrote'}: docs/reference/{name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
