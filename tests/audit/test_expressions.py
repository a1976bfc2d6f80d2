# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Checks of kinds and CEL: what they read, what they may not see, and what bounds them."""

import copy
import json
import random
from typing import Any

import msgspec
import pytest

from securetrain.audit.cel.evaluator import Evaluator
from securetrain.audit.cel.expression import MAX_CEL, REST, Expression, Hole
from securetrain.audit.documents import facts_of
from securetrain.audit.engine.audit import audit
from securetrain.audit.engine.check import compile_check
from securetrain.audit.sources.catalogue import load_checks
from securetrain.audit.subjects.kubernetes.collect.collect import collect_manifests
from securetrain.core.errors import AuditError, UsageError
from securetrain.core.vocabulary import State
from securetrain.report import checks, written
from tests.vocabulary import refused

CHECK = """\
apiVersion: securetrain.dev/policy/v1
kind: CheckSet
metadata: {id: st-abc-002, version: 1.0.0}
checks:
- id: ST-ABC-002
  title: Something of this site
  severity: medium
  boundary: supply-chain
  threats: [T-SUP-001]
  kinds: KINDS
  cel: CEL
  rationale: >-
    What somebody can do meanwhile.
  remediation: >-
    What to change.
  fixed_by: user
  refs: {nist: [CM-6]}
  tests: {pass: [good], fail: [bad], unknown: [lacks]}
"""
IMAGES = "object.spec.containers.all(c, c.image.startsWith('own/'))"
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n"
FIXTURES = {
    name: {"object": {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [one]}}}
    for name, one in {"good": {"image": "own/a"}, "bad": {"image": "b"}, "lacks": {}}.items()
}


@pytest.fixture
def site(tmp_path):
    """Write a check of this site and its fixtures; the folder."""

    def go(cel=IMAGES, kinds="[Pod]", fixtures=FIXTURES, text=CHECK):
        text = text.replace("KINDS", kinds).replace("CEL", json.dumps(cel))
        folder = tmp_path / "checks"
        (folder / "fixtures").mkdir(parents=True, exist_ok=True)
        (folder / "a.yaml").write_text(text)
        (folder / "fixtures" / "a.yaml").write_text(json.dumps({"fixtures": fixtures}))
        return folder

    return go


@pytest.fixture
def judged(tmp_path, fixtures, now):
    """What an expression says of a text: state, line, reason of each finding."""

    def go(text, cel=IMAGES, kinds=("Pod",), name="m.yaml"):
        (own,) = [one for one in load_checks() if one.id == "ST-K8S-030"]
        expression = Expression(tuple(kinds), cel)
        spec = msgspec.structs.replace(own.spec, asserts=None, subject="", evidence=(), cel=cel)
        spec = msgspec.structs.replace(spec, kinds=tuple(kinds), in_context=())
        path = tmp_path / name
        path.write_text(text)
        check = compile_check(spec, "a.yaml")
        assert check.expression == expression
        bodies = collect_manifests([path], now=now, expressions=[expression])
        found = audit(facts_of(bodies), [check], fixtures.policy, now).findings
        assert "hunter2" not in str([one.to_json() for one in bodies]) + str(found)
        mine = [one for one in found if one.check == check.id]
        return [(one.state, one.location.line if one.location else 0, one.reason) for one in mine]

    return go


def said(found):
    return [(state.value, line) for state, line, _ in found]


def test_a_check_of_an_expression_loads_with_its_fixtures(site):
    (own,) = [one for one in load_checks(beside=site()) if one.expression is not None]
    assert own.kind == "cluster"
    assert own.spec.evidence == ("cluster.objects",)
    assert IMAGES in " ".join(written(checks.explanation(own), "text").split())


def test_what_is_not_one_is_refused(site, subtests):
    swapped = {**FIXTURES, "good": FIXTURES["bad"]}
    other = {**FIXTURES, "bad": {"object": {"apiVersion": "v1", "kind": "Service"}}}
    more = {**FIXTURES, "bad": {"node.sysctls": None}}
    wrong: dict[str, dict[str, Any]] = {
        "not understood": {"cel": "object.spec.containers.all(c, 1 + )"},
        "compile": {"cel": "true ? false ? true : false : true"},
        "more than": {"cel": "true || " * MAX_CEL + "true"},
        "nested": {"cel": "(" * 99 + "true" + ")" * 99},
        "expected object": {"cel": "request.user == 'a'"},
        "says fail of a fixture for pass": {"fixtures": swapped},
        "no object of the check's kinds": {"fixtures": other},
        "an object and nothing else": {"fixtures": more},
        "names no such fixture": {"fixtures": {"good": FIXTURES["good"]}},
        "says pass of a fixture for fail": {"cel": "object.spec.containers.all(c, c.image != '')"},
        "says unknown of a fixture for pass": {"cel": "object.spec.containers[0].image"},
        "go together": {"text": CHECK.replace("  kinds: KINDS\n", "")},
        "without subject": {"text": CHECK.replace("  cel:", "  subject: cluster\n  cel:")},
        "regex": {"kinds": "[pod]"},
        "unknown field": {"text": CHECK.replace("  cel:", "  cell: a\n  cel:")},
        "also defined": {"text": CHECK.replace("ST-ABC-002", "ST-NET-011")},
    }
    for says, changes in wrong.items():
        with subtests.test(says):
            refused(AuditError, says, load_checks, beside=site(**changes))
    folder = site()
    (folder / "fixtures" / "a.yaml").unlink()
    refused(UsageError, "No such file", load_checks, beside=folder)


def test_without_the_library_it_is_said(site, monkeypatch):
    monkeypatch.setattr("securetrain.audit.sources.site_checks.is_installed", lambda: False)
    refused(UsageError, "ST-USAG-004", load_checks, beside=site())


def test_an_answer_stands_at_its_field(judged, subtests):
    good, bad = "  - image: own/a\n", "  - name: x\n    image: b\n"
    items = "apiVersion: v1\nkind: PodList\nitems:\n- spec:\n    containers: [{image: b}]\n"
    labelled = POD.replace("{name: a}", "\n  name: a\n  labels:\n    tier: x")
    for text, wanted, changes in (
        (POD + good, [("pass", 0)], {}),
        (POD + good + bad, [("fail", 8)], {}),
        (POD + good + "  - name: x\n", [("unknown", 7)], {}),
        (POD + good + "---\n" + POD + bad, [("fail", 14)], {}),
        (labelled + good, [("fail", 6)], {"cel": "object.metadata.labels.tier == 'y'"}),
        (labelled + good, [("fail", 6)], {"cel": "!('tier' in object.metadata.labels)"}),
        (POD + good, [("fail", 3)], {"cel": "has(object.metadata.labels)"}),
        (POD + good, [("unknown", 3)], {"cel": "object.metadata.labels.tier == 'y'"}),
        (POD + good, [("unknown", 1)], {"cel": "9223372036854775807 + size(object.kind) > 0"}),
        (POD + good, [("not-applicable", 0)], {"kinds": ["Job"]}),
        (POD + good, [("pass", 0)], {"kinds": ["v1/*"]}),
        (POD + good + bad, [("not-applicable", 0)], {"kinds": ["apps/v1/Pod"]}),
        (items, [("fail", 5)], {}),
        (POD + good + "---\nkind: [\n", [("unknown", 9)], {}),
    ):
        with subtests.test(str(changes) + text[-40:]):
            found = said(judged(text, **changes))
            assert found == wanted


def test_what_a_template_leaves_open_is_unknown(judged, subtests):
    open_kind = POD.replace("kind: Pod", "kind: {{ .Values.kind }}")
    hidden = "  - image: own/a\n    name: {{ .Values.name }}\n"
    for text, wanted in (
        (POD + "  - image: {{ .Values.image }}\n", [("unknown", 6)]),
        (POD + "  - image: own/{{ .Values.image }}\n", [("unknown", 6)]),
        (POD + hidden, [("pass", 0)]),
        (POD + "  - image: own/a\n{{ toYaml .Values.more | indent 2 }}\n", [("unknown", 7)]),
        (POD + "  - image: own/a\n    {{- toYaml .Values.more | nindent 4 }}\n", [("pass", 0)]),
        (POD + "  - name: x\n    {{- toYaml .Values.more | nindent 4 }}\n", [("unknown", 6)]),
        (POD + "  - name: x\n{{- if .Values.a }}\n    image: b\n{{- end }}\n", [("unknown", 8)]),
        (open_kind + "  - image: b\n", [("unknown", 1)]),
        (POD + "  - image: own/a\n    image: own/b\n", None),
    ):
        with subtests.test(text[-50:]):
            found = said(judged(text))
            assert found == wanted if wanted else "unknown" in dict(found)


def test_values_of_secrets_are_taken_out(judged, subtests):
    secret = (
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: a\n  annotations:\n"
        '    kubectl.kubernetes.io/last-applied-configuration: \'{"stringData": "hunter2"}\'\n'
        "data: {p: aHVudGVyMg==}\nstringData:\n  q: hunter2\n"
    )
    for cel, wanted in (
        ("object.stringData.q == 'hunter3'", ("unknown", 9)),
        ("object.stringData == {}", ("unknown", 9)),
        ("object.stringData.all(k, object.stringData[k] != 'a')", ("unknown", 9)),
        ("object.data.p.size() > 3", ("unknown", 7)),
        ("object.metadata.annotations.all(k, k != object.metadata.annotations[k])", ("unknown", 6)),
        ("object == {}", ("unknown", 6)),
        ("{'hunter': 1}[object.stringData.q] == 1", ("unknown", 9)),
        ("has(object.stringData.q) && size(object.data) == 1", ("pass", 0)),
        ("object.metadata.name == 'b'", ("fail", 4)),
    ):
        with subtests.test(cel):
            assert said(judged(secret, cel, ["Secret"])) == [wanted]
    env = POD + "  - image: a\n    env: [{name: DB_PASSWORD, value: hunter2}]\n"
    cel = "{'a': true}[object.spec.containers[0].env[0].value]"
    assert said(judged(env, cel)) == [("unknown", 1)]  # the library's error quotes the value


def test_facts_that_were_not_asked_are_no_pass(tmp_path, site, fixtures, now):
    (own,) = [one for one in load_checks(beside=site()) if one.expression is not None]
    (tmp_path / "m.yaml").write_text(POD + "  - image: own/a\n")
    facts = facts_of(collect_manifests([tmp_path / "m.yaml"], now=now))
    (finding,) = [one for one in audit(facts, [own], fixtures.policy, now).findings if one.asset]
    assert finding.state is State.UNKNOWN
    assert "without this check" in finding.reason


def loops(depth=4):
    body = "1 > 0"
    for number in range(depth):
        body = f"object.l.all(x{number}, {body})"
    return body


def test_what_costs_too_much_is_unknown_and_given_up(subtests, monkeypatch):
    monkeypatch.setattr("securetrain.audit.cel.evaluator.MAX_ENDS", 2)
    many, long = json.dumps({"l": list(range(300))}), json.dumps({"s": "a" * 900_000})
    with Evaluator() as evaluator:
        for says, cel, shown in (
            ("processor time", loops(), many),
            ("ended", f"[object.s]{'.map(x, x + x)' * 9}.size() > 0", long),
            ("MiB", "object.s == ''", json.dumps({"s": "a" * (1 << 20)})),
            ("no value", "object.s.matches('(a{1000}){1000}')", long),
            ("no boolean", "object.s", long),
        ):
            with subtests.test(says):
                answer = evaluator.ask(cel, shown.encode())
                assert answer.value is None
                assert says in answer.why
        assert "processor time" in evaluator.ask(loops(), many.encode()).why
        assert "given up" in evaluator.ask(loops(), many.encode()).why
        assert evaluator.ask("object.l.size() == 300", many.encode()).value


class Draws:
    """Members of the class: objects, expressions over them, and what may be open."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def of(self, *choices):
        return self.random.choice(choices)

    def value(self, depth=3):
        kind = self.random.random() if depth else 0
        if kind < 0.3:
            return self.of(0, 1, "a", "b", "ab", True, None)
        if kind < 0.7:
            keys = self.random.sample("abc", self.random.randint(0, 3))
            return {key: self.value(depth - 1) for key in keys}
        return [self.value(depth - 1) for _ in range(self.random.randint(0, 3))]

    def literal(self):
        return self.of("0", "'a'", '"ab"', "true", "null", "[]", "{'a': 1}", "['a', 'b']", "r'a'")

    def path(self, names, depth):
        path = self.of(*names)
        for _ in range(self.random.randint(0, 3)):
            key = self.of("a", "b", "c")
            path += self.of(f".{key}", f".{key}", f"['{key}']", "[0]")
            if depth and self.random.random() < 0.2:
                path += f"[{self.expression(names, depth - 1)}]"
            elif depth and self.random.random() < 0.2:
                path += f".filter(f, {self.expression([*names, 'f'], depth - 1)})"
        return path

    def expression(self, names=("object",), depth=3):
        path, kind = self.path(names, max(depth - 1, 0)), self.random.randrange(10)
        if not depth or kind < 1:
            return self.of(path, path, self.literal())
        one, other = self.expression(names, depth - 1), self.expression(names, depth - 1)
        operator = self.of("==", "!=", "&&", "||", "<", "+", "in", "in")
        name, macro = self.of("x", "a"), self.of("all", "exists", "exists_one", "map", "filter")
        inner = self.expression([*names, name, name], depth - 1)
        return self.of(
            f"{one} {operator} {other}",
            f"({one} {operator} {other})",
            f"has({path.partition('[')[0].partition('(')[0]}.a)",
            f"{path}.{macro}({name}, {inner})",
            f"{path}.size() == {self.literal()}",
            f"size({path})",
            f"({one} ? {other} : {path}){self.of('', '.a', '[0].b')}",
            f"!{one}",
            f"'a' in {path}",
            f"[{one}, {other}] == {{'a': {one}}}.a",
        )

    def hole(self, value):
        """What is open in a value, and values that it may have then."""
        ways = [way for way in ways_of(value) if way]
        if not ways:
            return None
        way = self.of(*ways)
        found = [self.value(2) for _ in range(6)] + [None, "a", [], {}]
        base = at(value, way)
        match self.of("open", "hidden", "rest"):
            case "hidden":
                return Hole(way, "", hidden=True), [put(value, way, one) for one in found]
            case "rest" if isinstance(base, dict):
                others = [one for one in found if isinstance(one, dict)]
                values = [put(value, way, {**one, **base}) for one in others]
                return Hole((*way, REST), "", frozenset(base)), values
        gone = put(value, way[:-1], without(at(value, way[:-1]), way[-1])) if way[1:] else value
        return Hole(way, ""), [gone, *(put(value, way, one) for one in found)]


def ways_of(value, way=()):
    yield way
    found = enumerate(value) if isinstance(value, list) else ()
    for key, one in value.items() if isinstance(value, dict) else found:
        yield from ways_of(one, (*way, key))


def at(value, way):
    for step in way:
        value = value[step]
    return value


def put(value, way, one):
    whole = copy.deepcopy(value)
    at(whole, way[:-1])[way[-1]] = one
    return whole


def without(value, key):
    one = copy.copy(value)
    del one[key]
    return one


def test_what_is_not_read_decides_nothing():
    """Of expressions that read no open field, the answer is one; of others it is not."""
    draws, decided, different = Draws(0), 0, 0
    with Evaluator() as evaluator:
        for _ in range(600):
            value, cel = {key: draws.value() for key in "abc"}, draws.expression()
            found = draws.hole(value)
            if found is None:
                continue
            hole, values = found
            reads = Expression(("*",), cel).reads
            is_read = any(hole.is_read(read) for read in reads)
            answers = {evaluator.ask(cel, json.dumps(one).encode()).value for one in values}
            assert is_read or len(answers) == 1, f"{cel} reads {hole} of {value}"
            decided += not is_read and answers != {None}
            different += is_read and len(answers) > 1
    assert decided > 10
    assert different > 5
