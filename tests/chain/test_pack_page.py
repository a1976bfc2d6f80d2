# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The page of a pack: a graph of all links, each leading to its evidence, and no script."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from securetrain.core.vocabulary import ChainLink, NodeTier
from securetrain.report import html, verification
from tests.chain.test_packs import of_nodes
from tests.chain.worlds import SHOWN, Run, policy

TRUST = Path("trust.json")


class Reader(HTMLParser):
    """Everything that a page names, and the kinds of its elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.targets: list[str] = []
        self.ids: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in {"href", "src", "xlink:href", "action"}:
                self.targets.append(str(value))
            if name == "id":
                self.ids.append(str(value))
            assert not name.startswith("on"), name


def states(page: str) -> dict[str, str]:
    """The colour of each link of the first checkpoint."""
    found = re.findall(r'href="#c0-([a-z]+)"><g class="badge b-([a-z]+)"', page)
    assert len(found) == len(ChainLink)
    return dict(found)


def test_every_link_stands_in_the_graph_and_leads_to_its_evidence(run: Run, tmp_path: Path) -> None:
    result = run.verify(run.pack(), policy=policy(*SHOWN))
    out = html.write(verification.verified(result), tmp_path / "page.html")
    page = out.read_text()
    read = Reader(page)
    assert "default-src 'none'" in page
    assert not {"script", "iframe", "object", "img", "link", "form"} & read.tags
    assert set(read.targets) <= {f"#{one}" for one in read.ids}
    assert len(read.targets) == 3 * len(ChainLink), "each link of each checkpoint"
    assert len(read.ids) == len(set(read.ids))
    colours = states(page)
    assert {link for link, colour in colours.items() if colour == "checked"} == set(SHOWN)
    assert {colours[str(link)] for link in ChainLink if link not in SHOWN} == {"grey"}
    for name, digest in (("membership", run.made[-1].bound.membership), ("policy", run.policy)):
        assert str(digest) in page, name


def test_every_link_lies_inside_the_picture(run: Run) -> None:
    page = html.render(verification.verified(run.verify(run.pack(), policy=policy(*SHOWN))))
    ((width, height),) = re.findall(r'viewBox="0 0 (\d+) (\d+)"', page)
    boxes = re.findall(r'<rect[^>]* x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)"', page)
    assert len(boxes) > 3 * len(ChainLink)
    for x, y, wide, high in boxes:
        assert int(x) + int(wide) <= int(width)
        assert int(y) + int(high) <= int(height)


@pytest.mark.forgery
def test_a_lie_and_what_is_required_and_missing_are_red(run: Run) -> None:
    run.save(of_nodes(run, tier=NodeTier.TEE_GPU))
    result = run.verify(run.pack(), policy=policy("nodes", "time", depth="checkpoint"))
    page = html.render(verification.verified(result))
    colours = states(page)
    assert (colours["nodes"], colours["time"]) == ("refused", "refused")
    assert (colours["membership"], colours["log"]) == ("checked", "grey")
    assert "ST-CHAN-010" in page
    assert "ST-CHAN-021" in page


@pytest.mark.forgery
def test_a_pack_of_a_stranger_shows_nothing_of_what_it_says(run: Run, tmp_path: Path) -> None:
    path = run.pack()
    page = html.render(verification.verified(Run(tmp_path / "other").verify(path)))
    assert "does not verify" in page
    assert "<svg" not in page
    assert run.made[-1].run_id not in page
    assert "ST-CKPT-120" in page


@pytest.mark.forgery
def test_words_of_a_pack_are_text(run: Run) -> None:
    result = run.verify(run.pack(), policy=policy(*SHOWN))
    bad = '"><script>alert(1)</script><a href="https://x.example">'
    verdicts = {
        link: msgspec.structs.replace(one, what=bad, found=bad, tiers={bad: NodeTier.TPM})
        for link, one in result.judged[0].verdicts.items()
    }
    lied = replace(result.judged[0], verdicts=verdicts, run=bad)
    page = html.render(verification.verified(replace(result, judged=(lied, lied))))
    assert "script" not in Reader(page).tags
    assert all(one.startswith("#") for one in Reader(page).targets)
