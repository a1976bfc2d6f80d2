# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Known faults of packages, matched over all that is installed."""

import json
from datetime import timedelta

import pytest

from securetrain.audit.engine.advisories import Advisories, shipped_advisories
from securetrain.audit.engine.audit import audit
from securetrain.audit.sources.catalogue import load_checks
from securetrain.core.errors import AuditError
from securetrain.core.vocabulary import State
from tests.vocabulary import refused


@pytest.fixture
def found(fixtures, catalogue, now):
    def go(packages, *, later=timedelta(), advisories=None):
        plain = json.loads(fixtures.case("reference").document.body.to_json())
        plain["node"]["packages"]["value"] |= {n: {"version": v} for n, v in packages.items()}
        checks = [check for check in catalogue if check.id in {"ST-SUP-003", "ST-SUP-004"}]
        facts = fixtures.facts_of(plain)
        result = audit(facts, checks, fixtures.policy, now + later, advisories=advisories)
        return [f for f in result.findings if f.state in {State.FAIL, State.UNKNOWN}]

    return go


def test_old_pins_are_named_with_their_advisories(found):
    """Thirteen old pins: a scanner that could not look them up found "no known vulnerabilities"."""
    pins = {"ray": "2.6.0", "transformers": "4.30.0", "deepspeed": "0.14.0",
            "pytorch-lightning": "1.5.0", "nemo-toolkit": "2.3.1"}  # fmt: skip
    bad = {finding.subject: finding for finding in found(pins)}
    assert sorted(bad) == [f"node.packages[{name}]" for name in sorted(pins)]
    assert "CVE-2023-48022 (<2.52.0)" in bad["node.packages[ray]"].reason
    assert bad["node.packages[ray]"].evidence == {"version": "2.6.0"}


def test_a_release_candidate_and_a_local_version_are_compared_as_versions(found):
    assert found({"transformers": "4.48.0rc1"})
    assert not found({"transformers": "4.48.0+cu130"})


def test_an_old_list_clears_nothing_and_still_matches(found):
    late = timedelta(days=400)
    (new,) = [f for f in found({"ray": "2.60.0"}, later=late) if f.check == "ST-SUP-003"]
    assert (new.state, new.subject) == (State.UNKNOWN, "node.packages[ray]")
    assert "days old" in new.reason
    (old,) = [f for f in found({"ray": "2.6.0"}, later=late) if f.check == "ST-SUP-003"]
    assert old.state is State.FAIL


def test_a_list_from_the_future_clears_nothing(found):
    (new,) = [f for f in found({"ray": "2.60.0"}, later=-timedelta(days=30)) if "SUP" in f.check]
    assert new.state is State.UNKNOWN


def test_a_site_brings_its_own_list(found, tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(
        "apiVersion: securetrain.dev/policy/v1\nkind: Advisories\n"
        "metadata: {id: own, version: 1.0.0}\ndated: 2026-11-18\nitems:\n"
        "- {id: SITE-1, package: ray, affected: '>=2.50,<2.70', summary: our fork is broken}\n"
    )
    (bad,) = found({"ray": "2.60.0"}, advisories=Advisories.read(path))
    assert "SITE-1" in bad.reason


@pytest.mark.parametrize(
    ("old", "new"),
    [("affected: '<2'", "affected: 'old'"), ("package: ray", "package: Ray"), ("dated", "date"),
     ("2026-11-18", "yesterday"), ("- {id", "- {idd")],
)  # fmt: skip
def test_a_bad_list_is_an_error(tmp_path, old, new):
    path = tmp_path / "own.yaml"
    text = (
        "apiVersion: securetrain.dev/policy/v1\nkind: Advisories\n"
        "metadata: {id: own, version: 1.0.0}\ndated: 2026-11-18\nitems:\n"
        "- {id: SITE-1, package: ray, affected: '<2', summary: our fork is broken}\n"
    )
    path.write_text(text)
    Advisories.read(path)
    path.write_text(text.replace(old, new))
    refused(AuditError, "ST-AUDT-005", Advisories.read, path)


def test_the_shipped_list_names_no_fault_twice_and_each_with_its_record():
    shipped = shipped_advisories()
    both = (shipped.by_package, shipped.by_product)
    listed = [item for named in both for items in named.values() for item, _ in items]
    assert len({item.id for item in listed}) == len(listed) >= 25
    assert all(item.source.startswith("https://") for item in listed)
    unsure = [item for item in listed if item.confirmed is None]
    assert all(str(item).endswith("(not compared with its source)") for item in unsure)
    assert 2 * len(unsure) <= len(listed) + 1


SLURM = {  # the first good version of each series, by Slurm's own CHANGELOG
    "CVE-2022-29500": ("20.11.9", "21.08.8"),
    "CVE-2023-41914": ("22.05.10", "23.02.6"),
    "CVE-2023-49933": ("22.05.11", "23.02.7", "23.11.1"),
    "CVE-2025-43904": ("23.11.11", "24.05.8", "24.11.5", "25.05.0"),
    "CVE-2026-65107": ("25.05.9", "25.11.8", "26.05.4"),
}


@pytest.mark.parametrize("name", SLURM)
def test_each_series_of_slurm_is_affected_up_to_its_own_mended_version(name):
    def affected(version):
        return name in {one.id for one in shipped_advisories().about_product("slurm", version)}

    for mended in SLURM[name]:
        year, month, patch = mended.split(".")
        assert not affected(mended)
        assert not affected(f"{year}.{month}.{int(patch) + 1}")
        if int(patch):
            assert affected(f"{year}.{month}.{int(patch) - 1}")
            assert affected(f"{year}.{month}.0")
    assert affected("19.05.1")
    assert not affected("27.05.0")


def judge_slurm(fixtures, now, version, advisories=None):
    plain = json.loads(fixtures.case("reference", "slurm").document.body.to_json())
    plain["slurm"]["version"]["value"]["number"] = version
    checks = [check for check in load_checks() if check.id == "ST-SLM-020"]
    facts = fixtures.facts_of(plain)
    result = audit(facts, checks, fixtures.policy, now, advisories=advisories)
    (found,) = (finding for finding in result.findings if finding.check == "ST-SLM-020")
    return found


def test_a_version_of_slurm_between_two_mended_ones_is_found(fixtures, now):
    """The table in the program ended in August: 25.11.7 and 26.05.3 passed."""
    for version in ("25.11.7", "26.5.3", "25.5.8"):
        found = judge_slurm(fixtures, now, version)
        assert (found.state, "CVE-2026-65107" in found.reason) == (State.FAIL, True)
    assert judge_slurm(fixtures, now, "26.5.4").state is State.PASS
    late = now + timedelta(days=200)
    assert judge_slurm(fixtures, late, "26.5.4").state is State.UNKNOWN


def test_a_sites_list_replaces_what_is_known_of_slurm_only_when_it_names_slurm(
    fixtures, now, tmp_path
):
    text = (
        "apiVersion: securetrain.dev/policy/v1\nkind: Advisories\n"
        "metadata: {id: own, version: 1.0.0}\ndated: 2026-11-18\nitems:\n"
        "- {id: SITE-1, WHAT, affected: ['<2', '>=26,<27'], summary: our build is broken}\n"
    )
    path = tmp_path / "own.yaml"
    path.write_text(text.replace("WHAT", "package: ray"))
    own = Advisories.read(path)
    assert judge_slurm(fixtures, now, "26.5.3", own).state is State.FAIL
    assert judge_slurm(fixtures, now, "26.5.4", own).state is State.PASS
    path.write_text(text.replace("WHAT", "product: slurm"))
    assert "SITE-1" in judge_slurm(fixtures, now, "26.5.4", Advisories.read(path)).reason
    for wrong in ("package: ray, product: slurm", "package: ''"):
        path.write_text(text.replace("WHAT", wrong))
        refused(AuditError, "neither or both", Advisories.read, path)
