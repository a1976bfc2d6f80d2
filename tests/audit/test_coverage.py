# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Coverage: what was given and not seen is said, and counted once."""

from datetime import UTC, datetime
from pathlib import Path

from securetrain.audit.documents.facts import Body, Collected, Location, Outcome, Reading
from securetrain.audit.results.coverage import MAX_NOTES, Seen, is_empty, shortened
from securetrain.audit.subjects.kubernetes.facts.cluster import Cluster, ClusterFacts, File, Problem
from securetrain.audit.subjects.slurm.collect.cluster import collect_slurm
from securetrain.audit.subjects.storage.collect.files import collect_storage

NOW = datetime(2026, 11, 23, tzinfo=UTC)
COLLECTED = Collected(at=NOW, hostname="h", collector="test")


def cluster(files: dict[str, int], problems: dict[str, Reading[bool]]) -> ClusterFacts:
    return ClusterFacts(
        collected=COLLECTED,
        cluster=Cluster(
            name="files",
            files=tuple(
                File(path=path, objects=n, workloads=n, at=Location(path=path))
                for path, n in files.items()
            ),
            problems=tuple(
                Problem(name=name, read=read, at=Location(path=name))
                for name, read in problems.items()
            ),
            namespaces=(),
            entrances=(),
            admissions=(),
            secrets=(),
            kinds=(),
        ),
    )


def seen(*bodies: Body, missing: int = 0) -> list[tuple[str, int, int, tuple[str, ...]]]:
    counted = Seen()
    for body in bodies:
        counted.see(body)
    return [(one.what, one.seen, one.of, one.notes) for one in counted.rows(missing)]


def test_a_file_that_is_not_read_counts_once_and_is_named() -> None:
    lost = Reading[bool](outcome=Outcome.DENIED, reason="no rights")
    bad = Reading[bool](outcome=Outcome.OK, value=False, reason="line 3: two keys of one name")
    template = Reading[bool](outcome=Outcome.TEMPLATED, reason="{{ x }}")
    body = cluster(
        {"a.yaml": 2, "b.yaml": 1},
        {"b.yaml#1": bad, "b.yaml#2": bad, "c.yaml": lost, "a.yaml#2": template},
    )
    notes = ("b.yaml: line 3: two keys of one name", "c.yaml: no rights")
    assert seen(body) == [("manifests", 1, 3, notes)]


def test_nodes_that_should_be_there_count() -> None:
    assert seen(missing=3) == [("hosts", 0, 3, ())]
    assert seen() == []


def test_files_of_slurm_that_nothing_names_are_not_missing(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=x\nInclude gone.conf\n")
    ((what, found, every, notes),) = seen(collect_slurm(tmp_path, now=NOW))
    assert (what, found, every) == ("Slurm", 1, 2)
    assert "gone.conf" in notes[0]


def test_exports_that_are_read(tmp_path: Path) -> None:
    (tmp_path / "exports").write_text("/data *(rw)\n")
    assert seen(*collect_storage([tmp_path], now=NOW)) == [("exports", 1, 1, ())]


def test_files_without_any_object_are_nothing() -> None:
    assert is_empty(cluster({}, {}))
    assert is_empty(cluster({"a.txt": 0}, {}))
    assert not is_empty(cluster({"a.yaml": 1}, {}))


def test_a_file_that_cannot_be_read_is_something() -> None:
    lost = Reading[bool](outcome=Outcome.DENIED, reason="no rights")
    assert not is_empty(cluster({}, {"a.yaml": lost}))


def test_notes_are_counted_where_there_are_too_many() -> None:
    notes = shortened([str(n) for n in range(MAX_NOTES + 5)])
    assert len(notes) == MAX_NOTES + 1
    assert notes[-1] == "and 5 more"
