# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Fuzzes canonical JSON, policies, checks, threat models, waivers, jobs and saved facts."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from securetrain.audit.engine.waivers import parse_waivers
from securetrain.audit.sources.catalogue import load_check_file
from securetrain.audit.subjects.node.collect.node import collect_node
from securetrain.audit.subjects.node.facts.node import decode_facts
from securetrain.core import canonical
from securetrain.policy.load import bundled_dir, load_policy
from securetrain.policy.schema import Policy
from securetrain.testing.clock import START
from securetrain.threats.threat_model import load_model
from securetrain.train.config import load_job
from tools.fuzz.engine import Parser


def documents(folder: Path) -> list[Parser]:
    """The parsers.

    Args:
        folder: A directory for those that read files; it is made.
    """
    folder.mkdir(parents=True)
    return [
        Parser("canonical", _documents, canonical.loads),
        Parser("canonical-struct", _resolved_policy, _decode_policy),
        *_yaml(folder),
        Parser("facts", lambda: [_facts(folder)], lambda data: decode_facts(data, "facts")),
    ]


def _documents() -> list[bytes]:
    values = [
        {"a": [1, 2.5, "x", None, True], "b": {"c": -7}},
        ["\u00e9", "", {}, []],
        *msgspec.to_builtins([load_policy("baseline").policy]),
    ]
    return [canonical.dumps(value) for value in values]


def _resolved_policy() -> list[bytes]:
    return [canonical.encode(load_policy(name).policy) for name in ("dev", "hardened")]


def _decode_policy(data: bytes) -> object:
    return canonical.decode(data, Policy, canonical=True)


def _yaml(folder: Path) -> list[Parser]:
    def shipped(kind: str, *below: str) -> Callable[[], list[bytes]]:
        home = bundled_dir(kind).joinpath(*below)
        return lambda: [path.read_bytes() for path in sorted(home.glob("*.yaml"))]

    def from_file(load: Callable[[Path], object]) -> Callable[[bytes], object]:
        def parse(data: bytes) -> object:
            path = folder / "input.yaml"
            path.write_bytes(data)
            return load(path)

        return parse

    return [
        Parser(
            "policy", shipped("policies"), from_file(lambda path: load_policy(str(path))), share=0.5
        ),
        # Long files in a slow parser.
        Parser("checks", shipped("policies", "checks"), from_file(load_check_file), share=0.5),
        Parser("threat-model", shipped("threat_models"), from_file(load_model), share=0.02),
        Parser("waivers", lambda: [_WAIVERS], lambda data: parse_waivers(data, "waivers")),
        Parser("job", lambda: [_JOB], from_file(load_job)),
    ]


_WAIVERS: Final = b"""\
apiVersion: securetrain.dev/policy/v1
kind: Waivers
items:
  - id: w-1
    check: ST-RDZ-001
    subject: "*"
    justification: a reason that is long enough
    owner: someone
    approved_by: another
    ticket: T-1
    created: 2026-01-01
    expires: 2026-02-01
    compensating: [ST-NET-001]
"""

_JOB: Final = b"""\
apiVersion: securetrain.dev/job/v1
kind: TrainJob
name: small
steps: 10
parallel:
  dp_shard: 2
optimizer:
  lr: 0.001
"""


def _facts(folder: Path) -> bytes:
    """A node of which nothing can be read: every section is there, with its reason."""
    empty = folder / "root"
    empty.mkdir(exist_ok=True)
    return collect_node({}, now=START, search_path=[], root=empty).to_json()
