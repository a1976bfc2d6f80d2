# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Runtime policies made of packages and images; damaged ones are one clear error."""

import io
import json
import random
import sqlite3
import tarfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from securetrain.attest.fleet.ima_list import ImaSources, list_files, read_list, write_list
from securetrain.attest.fleet.packages import dpkg, image, tars
from securetrain.attest.fleet.packages.listing import FileListing
from securetrain.core.errors import AttestationError, SecureTrainError, UsageError
from securetrain.evidence.tpm.runtime_policy import RuntimePolicies, Verdict, parse_runtime_policy
from securetrain.identity.keys import PrivateKey
from tests import vocabulary
from tests.attest.fleet.packages_made import RPM, TOOL, deb, dpkg_root, oci, sha, tar
from tests.tables import items

NOW = datetime(2026, 11, 23, tzinfo=UTC)


def refused(code="ST-USAG-008", **sources):
    return vocabulary.refused(UsageError, code, list_files, ImaSources(**sources))


# dpkg


def test_an_installed_system(tmp_path):
    root = dpkg_root(
        tmp_path / "root",
        {"tool": {"/usr/bin/tool": b"tool", "/usr/lib/x.so": b"lib"}, "other": {"/etc/c": b"c"}},
    )
    (root / "usr/bin/link").symlink_to("tool")
    (root / "usr/bin/foreign").write_bytes(b"nobody's")
    listing = list_files(ImaSources(dpkg=[root]))
    assert listing.files == {
        "/usr/bin/tool": {sha(b"tool")},
        "/usr/lib/x.so": {sha(b"lib")},
        "/etc/c": {sha(b"c")},
    }
    assert listing.packages == ["tool 1 amd64", "other 1 amd64"]
    assert listing.left_out == 0


def test_an_altered_file_is_left_out_and_named(tmp_path):
    root = dpkg_root(tmp_path / "root", {"tool": {"/usr/bin/tool": b"t", "/usr/bin/b": b"b"}})
    (root / "usr/bin/tool").write_bytes(b"altered")
    listing = list_files(ImaSources(dpkg=[root]))
    assert list(listing.files) == ["/usr/bin/b"]
    assert listing.notes == ["/usr/bin/tool: it is not what tool has installed"]


def test_paths_are_what_the_kernel_measures(tmp_path):
    """Today's /bin is a link, and a link that leads out of the root leads nowhere."""
    root = tmp_path / "root"
    (root / "usr/bin").mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    (root / "escape").symlink_to("../../../../usr")
    (root / "loop").symlink_to("loop")
    dpkg_root(root, {"tool": {"/bin/tool": b"t"}})
    info = root / "var/lib/dpkg/info/tool.list"
    info.write_text(info.read_text() + "/escape/bin/env\n/loop/x\n/a/../b\n")
    (root / "usr/bin/env").write_bytes(b"the root's own")
    listing = list_files(ImaSources(dpkg=[root]))
    assert set(listing.files) == {"/usr/bin/tool", "/usr/bin/env"}
    assert listing.files["/usr/bin/env"] == {sha(b"the root's own")}


def test_a_diverted_file(tmp_path):
    root = dpkg_root(
        tmp_path / "root",
        {"dash": {"/usr/bin/sh.distrib": b"old"}, "mine": {"/usr/bin/sh": b"new"}},
        "/usr/bin/sh\n/usr/bin/sh.distrib\nmine\n",
    )
    info = root / "var/lib/dpkg/info"
    (info / "dash.list").write_text("/usr/bin/sh\n")
    sums = (info / "dash.md5sums").read_text()
    (info / "dash.md5sums").write_text(sums.replace("sh.distrib", "sh"))
    listing = list_files(ImaSources(dpkg=[root]))
    assert listing.files == {"/usr/bin/sh": {sha(b"new")}, "/usr/bin/sh.distrib": {sha(b"old")}}
    assert listing.left_out == 0


@pytest.mark.parametrize("name", ["data.tar.xz", "data.tar.gz", "data.tar"])
def test_a_deb(tmp_path, name):
    kind = {"data.tar.xz": "xz", "data.tar.gz": "gz", "data.tar": ""}[name]
    data = tar({"./": None, "./bin/tool": b"t", "./usr/b": "=>./bin/tool", "./l": "->b"}, kind)
    listing = list_files(ImaSources(dpkg=[deb(tmp_path / "t.deb", data, name)]))
    assert listing.files == {path: {sha(b"t")} for path in ("/bin/tool", "/usr/bin/tool", "/usr/b")}
    assert listing.packages == ["tool 1.2 all"]


def test_a_deb_of_zstd_is_refused_by_name(tmp_path):
    path = deb(tmp_path / "t.deb", b"(\xb5/\xfd", "data.tar.zst")
    assert "data.tar.zst" in refused(dpkg=[path]).what


# rpm


def test_an_rpm(tmp_path):
    path = tmp_path / "tool.rpm"
    path.write_bytes(RPM)
    listing = list_files(ImaSources(rpm=[path]))
    assert listing.files["/usr/bin/ima-tool"] == {sha(TOOL)}
    assert set(listing.files) == {"/usr/bin/ima-tool", "/etc/ima-tool.conf"}
    assert listing.packages == ["ima-tool 1.2 3 noarch"]


def _rpm_root(folder, blob, name="usr/lib/sysimage/rpm/rpmdb.sqlite"):
    database = folder / name
    database.parent.mkdir(parents=True)
    with closing(sqlite3.connect(database)) as opened:
        opened.execute("CREATE TABLE Packages (hnum INTEGER PRIMARY KEY, blob BLOB NOT NULL)")
        opened.execute("INSERT INTO Packages VALUES (1, ?)", (blob,))
        opened.commit()
    return folder


def _main_header():
    start = RPM.index(b"\x8e\xad\xe8\x01", 100) + 8
    return RPM[start:]


def test_the_database_of_an_installed_system(tmp_path):
    root = _rpm_root(tmp_path / "root", _main_header())
    (root / "usr/bin").mkdir()
    (root / "etc").mkdir()
    assert list_files(ImaSources(rpm=[root])).files["/usr/bin/ima-tool"] == {sha(TOOL)}


def test_what_is_not_in_the_database_yet_is_listed_too(tmp_path):
    """rpm leaves what it wrote last in a log beside the database."""
    root = _rpm_root(tmp_path / "root", _main_header())
    database = root / "usr/lib/sysimage/rpm/rpmdb.sqlite"
    (root / "usr/bin").mkdir()
    (root / "etc").mkdir()
    with closing(sqlite3.connect(database)) as opened:
        opened.execute("PRAGMA journal_mode=WAL")
        opened.execute("INSERT INTO Packages VALUES (2, ?)", (_main_header(),))
        opened.commit()
        assert database.with_name("rpmdb.sqlite-wal").stat().st_size
        assert len(list_files(ImaSources(rpm=[root])).packages) == 2


def test_databases_that_cannot_be_read(tmp_path):
    old = tmp_path / "old"
    (old / "var/lib/rpm").mkdir(parents=True)
    (old / "var/lib/rpm/Packages").write_bytes(b"x")
    assert "older format" in refused(rpm=[old]).what
    (tmp_path / "none").mkdir()
    assert "no database" in refused(rpm=[tmp_path / "none"]).what
    broken = _rpm_root(tmp_path / "broken", b"\0" * 7)
    refused(rpm=[broken])
    (broken / "usr/lib/sysimage/rpm/rpmdb.sqlite").write_bytes(b"no database" * 99)
    refused(rpm=[broken])


@pytest.mark.forgery
@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_rpm_lists_nothing(tmp_path, seed):
    """Damage anywhere in the header of files: its SHA-256 is in the signature header."""
    chance = random.Random(seed)
    damaged = bytearray(RPM)
    start = RPM.index(b"\x8e\xad\xe8\x01", 100)
    end = RPM.index(b"\x1f\x8b\x08", start)
    damaged[chance.randrange(start, end)] ^= 1 << chance.randrange(8)
    path = tmp_path / "tool.rpm"
    path.write_bytes(damaged)
    refused(rpm=[path])
    path.write_bytes(RPM[: chance.randrange(end)])
    refused(rpm=[path])


# Images

LAYERS = [
    tar(
        {
            "usr/bin/": None,
            "bin": "->usr/bin",
            "usr/bin/tool": b"old",
            "usr/bin/same": b"same",
            "opt/a/x": b"x",
            "opt/a/y": b"y",
            "opt/b": b"b",
            "opt/c": "=>opt/b",
        }
    ),
    tar(
        {
            "bin/tool": b"new",
            "opt/a/.wh..wh..opq": b"",
            "opt/a/z": b"z",
            "opt/.wh.b": b"",
            "bin/link": "->tool",
        }
    ),
]
FILES = {
    "/usr/bin/tool": {sha(b"new")},
    "/usr/bin/same": {sha(b"same")},
    "/opt/a/z": {sha(b"z")},
    "/opt/c": {sha(b"b")},
}


@pytest.mark.parametrize("compress", [True, False])
def test_an_image(tmp_path, compress):
    listing = list_files(ImaSources(images=[oci(tmp_path / "i", LAYERS, compress=compress)]))
    assert listing.files == FILES
    assert listing.packages[0].startswith("image sha256:")


def test_an_image_in_a_tar_and_a_saved_one(tmp_path):
    layout = oci(tmp_path / "i", LAYERS)
    with tarfile.open(tmp_path / "i.tar", "w") as archive:
        archive.add(layout, ".")
    assert list_files(ImaSources(images=[tmp_path / "i.tar"])).files == FILES
    saved = {"manifest.json": json.dumps([{"Layers": ["0/layer.tar", "1/layer.tar"]}]).encode()}
    layers = {f"{number}/layer.tar": layer for number, layer in enumerate(LAYERS)}
    (tmp_path / "saved.tar").write_bytes(tar({**saved, **layers}))
    assert list_files(ImaSources(images=[tmp_path / "saved.tar"])).files == FILES


def test_a_whiteout_is_not_for_its_own_layer(tmp_path):
    layer = tar({"a/new": b"new", "a/.wh..wh..opq": b"", "b": b"b", ".wh.b": b""})
    below = tar({"a/old": b"old", "b": b"old"})
    listing = list_files(ImaSources(images=[oci(tmp_path / "i", [below, layer])]))
    assert listing.files == {"/a/new": {sha(b"new")}, "/b": {sha(b"b")}}


def test_several_platforms(tmp_path):
    layout = oci(tmp_path / "i", LAYERS)
    index = json.loads((layout / "index.json").read_text())
    one = index["manifests"][0]
    arm = {**one, "platform": {"os": "linux", "architecture": "arm64"}}
    attested = {**one, "platform": {"os": "unknown", "architecture": "unknown"}}
    index["manifests"] += [arm, attested]
    (layout / "index.json").write_text(json.dumps(index))
    assert "linux/arm64" in refused(images=[layout]).what
    assert list_files(ImaSources(images=[layout], platform="linux/amd64")).files == FILES


def _changed_blob(layout: Path) -> None:
    largest = max((layout / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1] + b"!")


def _without_blob(layout: Path) -> None:
    max((layout / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size).unlink()


def _text(name: str, text: str):
    return lambda layout: (layout / name).write_text(text)


DAMAGE = {
    "a blob was changed": _changed_blob,
    "a blob is missing": _without_blob,
    "no JSON": _text("index.json", "{"),
    "no manifests": _text("index.json", "{}"),
    "a list": _text("index.json", "[]"),
    "a path for a digest": _text("index.json", '{"manifests": [{"digest": "../../etc/passwd"}]}'),
    "no layout": lambda layout: (layout / "index.json").unlink(),
}


@pytest.mark.forgery
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_image(tmp_path, damage):
    layout = oci(tmp_path / "i", LAYERS)
    damage(layout)
    refused(images=[layout])


@items(
    "id, layer",
    ("out of it", tar({"../up": b"x"})),
    ("a circle", tar({"a": "->b", "b": "->a", "a/x": b"x"})),
    ("a hard link to nothing", tar({"x": "=>nowhere"})),
    ("cut", tar({"x": b"x" * 2000})[:1500]),
    ("zstd", b"(\xb5/\xfd" + bytes(600)),
    ("no archive", b"no archive" * 99),
)
def test_a_damaged_layer(tmp_path, layer):
    refused(images=[oci(tmp_path / "i", [layer])])


def test_headers_are_bounded_before_they_are_read():
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 1 << 40
    archive = io.BytesIO(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    vocabulary.refused(UsageError, "a header of", list, tars.members(archive, "x"))


@items("data", b"", b"x" * 200, b"!<arch>\nshort", b"\xed\xab\xee\xdb" + bytes(96))
def test_files_of_another_kind(tmp_path, data):
    path = tmp_path / "file"
    path.write_bytes(data)
    for kind in ("dpkg", "rpm", "images"):
        refused(**{kind: [path]})
    refused("ST-USAG-002", dpkg=[tmp_path])
    refused()


# The policy


def test_the_policy_that_is_written(tmp_path):
    root = dpkg_root(tmp_path / "root", {"tool": {"/usr/bin/tool": b"tool"}})
    listing = list_files(ImaSources(dpkg=[root]))
    key, out = PrivateKey.generate(), tmp_path / "policy.json"
    write_list(tmp_path / "site.json", listing, NOW)
    site = read_list(tmp_path / "site.json")[1]
    site["digests"]["/usr/bin/tool"] = ["ab" * 32]
    write_list(out, listing, NOW, excludes=["/tmp/.*"], beside=[site], key=key)
    reference, document = read_list(out, [key.public])
    assert sorted(document["digests"]["/usr/bin/tool"]) == sorted(["ab" * 32, sha(b"tool")])
    policy = RuntimePolicies().get(reference, {})
    for field in (bytes.fromhex(sha(b"tool")[7:]), b"\xab" * 32):
        judged = policy.judge(b"/usr/bin/tool", b"sha256:\0" + field, is_buffer=False)
        assert judged is Verdict.ACCEPTED
    packages = json.loads((tmp_path / "policy.json.packages.json").read_text())
    assert packages["packages"] == ["tool 1 amd64"]
    stranger = PrivateKey.generate()
    vocabulary.refused(AttestationError, "ST-ATTS-324", read_list, out, [stranger.public])


def test_a_pattern_that_no_verifier_takes_writes_nothing(tmp_path):
    listing = list_files(ImaSources(images=[oci(tmp_path / "i", LAYERS)]))
    with pytest.raises(AttestationError) as error:
        write_list(tmp_path / "p.json", listing, NOW, excludes=[".*"])
    assert error.value.code == "ST-ATTS-323"
    assert not list(tmp_path.glob("p.json*"))


@pytest.mark.parametrize("text", ["[]", "{", '{"payloadType": 1}'])
def test_policies_that_cannot_be_read(tmp_path, text):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(SecureTrainError) as error:
        read_list(tmp_path / "p.json")
    assert error.value.code in {"ST-USAG-008", "ST-ATTS-320"}


def test_spelt_digests_are_what_a_policy_reads():
    digests = {"/x": [sha(b"x"), "sha512:" + "ab" * 64, "sha384:" + "ab" * 48]}
    document = {
        "meta": {"version": 1},
        "digests": digests,
        "excludes": [],
        "keyrings": {},
        "ima": {},
        "ima-buf": {},
        "verification-keys": "",
    }
    assert len(parse_runtime_policy(json.dumps(document).encode()).files[b"/x"]) == 3


def chained(count):
    """A long name of a long name, and so on: each is read inside of the one before."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("x" * 200))
    return made.getvalue()[:1024] * count + made.getvalue()


def test_an_archive_of_long_names_of_long_names(tmp_path):
    dpkg.list_deb(deb(tmp_path / "a.deb", chained(2), "data.tar"), FileListing())
    for path, read in (
        (deb(tmp_path / "b.deb", chained(5000), "data.tar"), dpkg.list_deb),
        (tmp_path / "b.tar", image.list_image),
    ):
        if not path.exists():
            path.write_bytes(chained(5000))
        vocabulary.refused(UsageError, "ST-USAG-008", read, path, FileListing(), says="recursion")


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9, 10, 12])
def test_a_compressed_part_that_ends_in_its_header(tmp_path, size):
    path = deb(tmp_path / "a.deb", tar({"./usr/bin/tool": TOOL}, "gz")[:size], "data.tar.gz")
    vocabulary.refused(UsageError, "ST-USAG-008", dpkg.list_deb, path, FileListing())


def test_a_control_file_that_is_cut(tmp_path):
    path = tmp_path / "a.deb"
    whole = deb(path, tar({"./usr/bin/tool": TOOL}), "data.tar").read_bytes()
    control = tar({"./control": b"Package: tool\n" * 5000})[:2048]
    start = whole.index(b"control.tar.gz")
    head = f"{'control.tar':<16}{0:<12}{0:<6}{0:<6}{0o100644:<8o}{len(control):<10}`\n".encode()
    path.write_bytes(whole[:start] + head + control)
    error = vocabulary.refused(UsageError, "ST-USAG-008", dpkg.list_deb, path, FileListing())
    assert "control file" in error.what


@pytest.mark.parametrize("name", ["x" * 300, "a/b", "..", ""])
def test_a_package_whose_name_is_no_files(tmp_path, name):
    root = dpkg_root(tmp_path / "root", {"tool": {"/usr/bin/tool": TOOL}})
    status = root / "var/lib/dpkg/status"
    status.write_bytes(status.read_bytes().replace(b"Package: tool", b"Package: " + name.encode()))
    listing = FileListing()
    if name == "..":
        dpkg.list_installed(root, listing)
        assert listing.notes == ["..: it has no list of files"]
    else:
        vocabulary.refused(UsageError, "ST-USAG-008", dpkg.list_installed, root, listing)


def test_a_file_below_thousands_of_folders(tmp_path):
    root = dpkg_root(tmp_path / "root", {"tool": {"/usr/bin/tool": TOOL}})
    listed = root / "var/lib/dpkg/info/tool.list"
    listed.write_text(listed.read_text() + "/a" * 2000 + "\n")
    listing = FileListing()
    dpkg.list_installed(root, listing)
    assert list(listing.files) == ["/usr/bin/tool"]


def test_a_package_whose_name_is_no_utf_8(tmp_path):
    """Its maker's spelling is shown byte by byte; writing the list ended with an error of ours."""
    root = dpkg_root(tmp_path / "root", {"tool": {"/usr/bin/tool": TOOL}})
    status = root / "var/lib/dpkg/status"
    status.write_bytes(status.read_bytes().replace(b"Version: 1", b"Version: 1\xff"))
    listing = FileListing()
    dpkg.list_installed(root, listing)
    write_list(tmp_path / "list.json", listing, NOW)
    names = json.loads((tmp_path / "list.json.packages.json").read_bytes())["packages"]
    assert names == ["tool 1\\udcff amd64"]
