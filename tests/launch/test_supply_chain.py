# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from contextlib import nullcontext
from importlib.metadata import EntryPoint, PackageNotFoundError, PathDistribution, version

import msgspec
import pytest

from securetrain.core.errors import RuntimeRefusal, UsageError
from securetrain.launch.node.supply_chain import check_supply_chain, check_torch
from securetrain.policy import load_policy
from tests.launch.worlds import clean_environment
from tests.tables import each
from tests.vocabulary import refused

DEV = load_policy("dev").policy


def allowing(*names):
    section = msgspec.structs.replace(DEV.supply_chain, allow_entry_points=names)
    return msgspec.structs.replace(DEV, supply_chain=section)


def entry_of(tmp_path, package, group, name):
    info = tmp_path / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {package}.plugin:make\n")
    (entry,) = PathDistribution(info).entry_points
    return lambda asked: [entry] if asked == group else []


def test_this_environment_passes():
    assert check_supply_chain(DEV) == ()


@pytest.mark.parametrize("group", ["torchrun.handlers", "torch.backends"])
def test_another_packages_entry_point_is_refused(tmp_path, group):
    listing = entry_of(tmp_path, "evil", group, "fast")
    with pytest.raises(RuntimeRefusal) as caught:
        check_supply_chain(DEV, list_entry_points=listing)
    assert caught.value.code == "ST-RUNT-005"
    assert "package evil" in caught.value.what
    (allowed,) = check_supply_chain(allowing("fast"), list_entry_points=listing)
    assert allowed.package == "evil"
    assert check_supply_chain(allowing("evil.plugin:make"), list_entry_points=listing)


def test_a_logs_specs_entry_point_counts_only_when_it_is_asked_for(tmp_path):
    listing = entry_of(tmp_path, "logs", "torchrun.logs_specs", "fancy")
    assert check_supply_chain(DEV, list_entry_points=listing) == ()
    assert check_supply_chain(DEV, logs_specs="default", list_entry_points=listing) == ()
    with pytest.raises(RuntimeRefusal):
        check_supply_chain(DEV, logs_specs="fancy", list_entry_points=listing)


def test_an_entry_point_without_a_package_is_foreign():
    orphan = EntryPoint("x", "torch.evil:y", "torchrun.handlers")
    with pytest.raises(RuntimeRefusal):
        check_supply_chain(
            DEV, list_entry_points=lambda g: [orphan] if g == "torchrun.handlers" else []
        )


@each(
    "found, torch_min, refused",
    ("2.9.1", "2.10.0", True),
    ("2.10.0", "99.0", True),
    ("2.9.0", "2.0", True),
    ("2.10.0", "2.10.0", False),
    ("2.13.0+cpu", "2.10.0", False),
)
def test_the_version_of_torch(found, torch_min, refused):
    section = msgspec.structs.replace(DEV.supply_chain, torch_min=torch_min)
    policy = msgspec.structs.replace(DEV, supply_chain=section)
    expected = pytest.raises(UsageError, match="ST-USAG-009") if refused else nullcontext()
    with expected:
        check_torch(policy, lambda _: found)


def test_no_torch():
    def missing(name):
        raise PackageNotFoundError(name)

    refused(UsageError, "ST-USAG-004", check_supply_chain, DEV, installed_version=missing)
    assert version("torch")


PLUGIN = """\
import pathlib
pathlib.Path({marker!r}).write_text("ran")
def make(*_):
    raise RuntimeError
"""


@pytest.mark.dist
def test_a_package_that_torchrun_would_import(launch, tmp_path):
    """Attack 37: whoever gets a package installed is run by every torchrun."""
    site, marker = tmp_path / "site", tmp_path / "marker"
    site.mkdir()
    entry_of(site, "evil", "torchrun.handlers", "fast")
    (site / "evil").mkdir()
    (site / "evil" / "plugin.py").write_text(PLUGIN.format(marker=str(marker)))
    (tmp_path / "s.py").touch()
    stock = [sys.executable, "-m", "torch.distributed.run", "--help"]
    environ = clean_environment(PYTHONPATH=str(site))
    subprocess.run(stock, env=environ, check=True, capture_output=True, timeout=120)
    assert marker.read_text() == "ran"
    marker.unlink()

    where = tmp_path / "run"
    done = launch(where, "--standalone", str(tmp_path / "s.py"), PYTHONPATH=str(site))
    assert done.code == 1
    assert "ST-RUNT-005" in done.err
    assert "evil" in done.err
    assert not marker.exists()
    assert done.codes == {"ST-RUNT-005"}
