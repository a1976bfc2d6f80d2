# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A URL where only this machine's files can be named is refused; a path would be made of it."""

import click

from securetrain.cli.kinds import LocalFile
from securetrain.cli.main import LazyGroup, main
from tests.tables import items

URL = "s3://bucket/run/step-1"


@items(
    "line",
    f"pack {URL} --trust trust.json --out model.stpack",
    f"pack step-1 --trust trust.json --out {URL}",
    f"pack step-1 --trust trust.json --out model.stpack --walk-in {URL}",
    f"sign {URL} --dataset --key data.pem",
    f"scan {URL}",
    f"replay {URL} --trust trust.json",
    f"export {URL} --format spdx-3.0.1",
    f"report {URL}",
    f"verify step-1 --trust {URL}",
    f"audit --node --checkpoint {URL}",
    f"run --standalone --run-dir {URL} train.py",
    f"run --standalone --output {URL} train.py",
    f"quickstart --run-dir {URL}",
)
def test_a_url_is_no_file(tmp_path, monkeypatch, capsys, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert main(line.split()) == 2
    said = capsys.readouterr().err
    assert "ST-USAG-001" in said
    assert "only files and directories of this machine" in said
    assert URL in said
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def commands(group: click.Group, context: click.Context):
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from commands(found, click.Context(found, parent=context, info_name=name))
        elif found is not None:
            yield found


def test_every_path_of_every_command_is_such_a_one():
    group = LazyGroup("securetrain")
    paths = [
        parameter
        for command in commands(group, click.Context(group))
        for parameter in command.params
        if isinstance(parameter.type, click.Path)
    ]
    assert len(paths) > 100
    assert {type(parameter.type) for parameter in paths} == {LocalFile}
