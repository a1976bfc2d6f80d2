# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Make the table of the Pod Security Standards from Kubernetes' own text of them.

``python tools/standards/pod_security.py CHECKOUT TAG`` reads the head comments of the checks in a
checkout of kubernetes/pod-security-admission (Apache-2.0), keeps their facts (fields, values,
versions, exceptions; no sentence) in ``pod_security.json`` beside it, and writes the table that the
audit judges by from these alone. Without arguments it makes the table again.

Rules:

1. a control holds for every list of containers, as the visitor of that package does, whichever of
   them its comment names;
2. values that the text leaves to the code (``sets.New``) are those of the newest version;
3. what a control no longer asks since a version (``v1.0 - v1.18``) is not in the table;
4. text that none of these rules understands is an error, never a control that asks less.
"""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
FACTS: Final = Path(__file__).with_suffix(".json")
TABLE: Final = ROOT / "policies" / "standards" / "pod-security.yaml"
REPOSITORY: Final = "https://github.com/kubernetes/pod-security-admission"
HEADER: Final = """\
# Pod Security Standards as a table: written by tools/standards/pod_security.py, do not edit.
# Facts from {source} {tag} ({license}).
"""
_CONST: Final = re.compile(r"(\w+)\s+CheckID = \"(\w+)\"")
_ID: Final = re.compile(r"\bID:\s+(?:\"(\w+)\"|(\w+)),")
_VERSION: Final = re.compile(r"MinimumVersion:\s+api\.MajorMinorVersion\((\d+), (\d+)\)")
_OVERRIDES: Final = re.compile(r"OverrideCheckIDs: \[\]CheckID\{([^}]+)\}")
_SET: Final = re.compile(r"(\w+)\s*= (?:(\w+)\.Union\()?sets\.New(?:String)?\(([^)]*)\)")
_QUOTED: Final = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_FIELDS: Final = re.compile(r"(?:\*\*)?Restricted Fields:(?:\*\*)?")
_ALLOWED: Final = re.compile(r"(?:\*\*)?Allowed Values:(?:\*\*)?")
_EXEMPTIONS: Final = {
    "windows": "podSpec.OS.Name == corev1.Windows",
    "user-namespace": "relaxPolicyForUserNamespacePod(podSpec)",
}
_LISTS: Final = re.compile(r"spec\.(?:containers|initContainers|ephemeralContainers)\[\*\]\.")


# -- from the text to its facts ----------------------------------------------------------------


def facts_of(checkout: Path, tag: str) -> dict[str, Any]:
    """The facts of every check of a release."""
    listed = _git(checkout, "ls-tree", "--name-only", tag, "policy/").split()
    names = [one for one in listed if re.fullmatch(r"policy/check_\w+\.go", one)]
    texts = {
        one: _git(checkout, "show", f"{tag}:{one}") for one in names if not one.endswith("_test.go")
    }
    constants = {name: said for text in texts.values() for name, said in _CONST.findall(text)}
    return {
        "source": REPOSITORY,
        "tag": tag,
        "commit": _git(checkout, "rev-parse", f"{tag}^{{commit}}").strip(),
        "license": "Apache-2.0",
        "checks": [_check(name, text, constants) for name, text in texts.items()],
    }


def _git(checkout: Path, *words: str) -> str:
    command = ["git", "-C", str(checkout), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _check(name: str, text: str, constants: dict[str, str]) -> dict[str, Any]:
    found = _ID.search(text)
    comment = next(one for one in re.findall(r"/\*\n(.*?)\*/", text, re.DOTALL) if "Fields:" in one)
    if found is None:
        raise ValueError(f"{name}: no id")
    overrides = {one for some in _OVERRIDES.findall(text) for one in re.findall(r"\w+", some)}
    return {
        "file": name,
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "id": found[1] or constants[found[2]],
        "level": "restricted" if "api.LevelRestricted" in text else "baseline",
        "versions": [f"{major}.{minor}" for major, minor in _VERSION.findall(text)],
        "overrides": sorted(constants.get(one, one) for one in overrides),
        "exempt": [name for name, call in _EXEMPTIONS.items() if call in text],
        "kinds": re.findall(r"^\* (\w+)$", comment, re.MULTILINE),
        "sets": _sets(text),
        "settings": [_setting(part) for part in _FIELDS.split(comment)[1:]],
        "until": _until(comment),
    }


def _sets(text: str) -> list[str]:
    """The values of the newest set of the code, which may add to older ones."""
    made: dict[str, list[str]] = {}
    for name, base, values in _SET.findall(text):
        if not values.strip():
            continue  # what a check collects while it looks
        made[name] = [*made.get(base, []), *(a or b for a, b in _QUOTED.findall(values))]
    return list(made.values())[-1] if made else []


def _setting(part: str) -> dict[str, Any]:
    fields, _, allowed = _ALLOWED.sub("\0", part, count=1).partition("\0")
    allowed = re.sub(r"^v\d.*", "", allowed, flags=re.MULTILINE)
    named = re.findall(r"^(?:\* )?((?:spec|metadata)\.\S+)", fields, re.MULTILINE)
    said = allowed.replace('"hostUsers"', "")
    undefined = "allowed" if re.search(r"undefined|empty", said) else "refused"
    if re.search(r"undefined.*container-level|container-level.*undefined", said):
        undefined = "inherited"
    stated = re.sub(r"pod-level is set to true|is false", "", said)  # conditions, and no values
    words = re.findall(r"\b(?:true|false|0|\w+_t)\b", stated)
    values = [a or b for a, b in _QUOTED.findall(said)]
    if "empty" in said and "undefined / empty" not in said and not values:
        values = [""]
    contains = values if "Must include" in said else []
    refused = ["0"] if "non-zero" in said else []
    if not named or not (values or words or refused or undefined == "allowed"):
        raise ValueError(f"not understood: {part!r}")
    return {
        "fields": named,
        "values": [] if contains else [*words, *values] if not refused else [],
        "contains": contains,
        "refused": refused,
        "undefined": undefined,
    }


def _until(comment: str) -> list[str]:
    """The versions up to which each of the settings counts; empty for ever."""
    heads = re.findall(r"(v[\d.]+(?: - v[\d.]+|\+)):\n|Restricted Fields:", comment)
    said, found = "", []
    for head in heads:
        if head:
            said = head.partition(" - v")[2]
        else:
            found.append(said)
    return found


# -- from the facts to the table ----------------------------------------------------------------


def table_of(facts: dict[str, Any]) -> dict[str, Any]:
    """The table, of the facts alone."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    release = facts["tag"].removeprefix("v0.")
    return {
        "apiVersion": "securetrain.dev/policy/v1",
        "kind": "PodSecurityStandards",
        "metadata": {"id": "pod-security", "version": f"1.{release}"},
        "source": {key: facts[key] for key in ("commit", "license")}
        | {"facts": f"sha256:{digest}"},
        "controls": [_control(one) for one in facts["checks"]],
    }


def _control(check: dict[str, Any]) -> dict[str, Any]:
    rows = []
    for setting, until in zip(check["settings"], check["until"], strict=True):
        if until:
            continue
        if check["kinds"]:
            rows.append({"of": "volume", "path": "", "allowed": check["kinds"]})
            continue
        seen = dict.fromkeys(_LISTS.sub("container.", field) for field in setting["fields"])
        rows += [_row(check, setting, field) for field in seen]
    return {
        "id": check["id"],
        "level": check["level"],
        "since": check["versions"][0],
        "exempt": check["exempt"],
        "settings": rows,
    }


def _row(check: dict[str, Any], setting: dict[str, Any], field: str) -> dict[str, Any]:
    more = [] if field.endswith((".user", ".role")) else check["sets"]  # which SELinux forbids
    allowed = list(dict.fromkeys([*setting["values"], *more]))
    kind = "boolean" if set(allowed) & {"true", "false"} else "text"
    if setting["refused"] or allowed == ["0"]:
        kind = "integer"
    where, path = "pod", field.removeprefix("spec.")
    if field.startswith("container."):
        where, path = "container", field.removeprefix("container.")
    elif field.startswith("metadata.annotations['"):
        where, path = "annotation", field.removeprefix("metadata.annotations['").removesuffix("']")
    elif path == "volumes[*].hostPath":
        return {"of": "volume", "path": "", "refused": ["hostPath"]}
    row = {"of": where, "path": path, "type": kind, "undefined": setting["undefined"]}
    if path.endswith(("capabilities.add", "capabilities.drop")):
        row |= {"path": f"{path}[*]", "type": "capability"}
    if "[*]" in row["path"] and not setting["contains"]:
        row["undefined"] = "allowed"  # an empty list lacks no element
    row |= {key: setting[key] for key in ("contains", "refused") if setting[key]}
    return row if row.keys() & {"contains", "refused"} else row | {"allowed": allowed}


def written(table: dict[str, Any], facts: dict[str, Any]) -> str:
    """The table as a file: one control's settings to a line each."""
    lines = [HEADER.format(**facts)]
    lines += [f"{key}: {table[key]}\n" for key in ("apiVersion", "kind")]
    lines += [f"{key}: {json.dumps(table[key])}\n" for key in ("metadata", "source")]
    lines.append("controls:\n")
    for one in table["controls"]:
        lines.append(f'- id: {one["id"]}\n  level: {one["level"]}\n  since: "{one["since"]}"\n')
        lines.append(f"  exempt: {json.dumps(one['exempt'])}\n  settings:\n")
        lines += [f"  - {json.dumps(row)}\n" for row in one["settings"]]
    return "".join(lines)


def main(words: list[str]) -> int:
    """Make the table, and the facts first where a checkout is given."""
    if words:
        facts = facts_of(Path(words[0]), words[1])
        FACTS.write_text(json.dumps(facts, indent=1) + "\n")
    facts = json.loads(FACTS.read_text())
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(written(table_of(facts), facts))
    print(f"wrote {TABLE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
