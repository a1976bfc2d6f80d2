# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Shell text to commands, and commands to facts: nothing is run, guessed or kept that is secret."""

import random

import pytest

from securetrain.audit.documents.facts import Collected, Location, Outcome
from securetrain.audit.shell.commands import commands_of_text, commands_of_words
from securetrain.audit.shell.words import MAX_COMMANDS, MAX_TEXT, parse
from securetrain.audit.subjects.launches.collect.launch import (
    Text,
    container_launches,
    places_in,
    script_launches,
)
from tests.audit.conftest import NOW

COLLECTED = Collected(at=NOW, hostname="h", collector="test")


def launch_of(text, name="run.sh"):
    return next(script_launches(name, name, text, places_in(name, text), COLLECTED)).launch


def words_of(text):
    return [[word.text for word in one.words] for one in parse(text).commands]


def programs_in(text):
    return [call.program for call in commands_of_text(text, places_in("x", text)).calls]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a 'b c' \"d e\" f\\ g", [["a", "b c", "d e", "f g"]]),
        ("a # b\nc", [["a"], ["c"]]),
        ("a#b", [["a#b"]]),
        ("a \\\n  b", [["a", "b"]]),
        ("a \\\r\n  b\r\nc", [["a", "b"], ["c"]]),
        ("a && b || c; d & e", [["a"], ["b"], ["c"], ["d"], ["e"]]),
        ("if a; then b; else c; fi", [["a"], ["b"], ["c"]]),
        ("(cd x && a)", [["cd", "x"], ["a"]]),
        ("a > out 2>&1 < in", [["a"]]),
        ("f() { a; }", [["f"], ["a"]]),
        ("a <<'EOF'\nb c\nEOF\nd", [["a"], ["d"]]),
        ("a <<-EOF\n\tb\n\tEOF\nd", [["a"], ["d"]]),
        ("x=$(a b)\nc", [["a", "b"], ["x=$(a b)"], ["c"]]),
        ("x=( $(a) b )", [["a"], ["$(a)", "b"], ["x=(...)"]]),
        ("a `b c`", [["b", "c"], ["a", "`b c`"]]),
        ("a {{ .Values.x }} <%= y %>", [["a", "{{ .Values.x }}", "<%= y %>"]]),
    ],
)
def test_words(text, words):
    assert words_of(text) == words


@pytest.mark.parametrize(
    ("text", "programs"),
    [
        ("srun -N4 torchrun x.py", ["srun", "torchrun"]),
        ("bash -lc 'cd /x && torchrun x.py'", ["bash", "cd", "torchrun"]),
        ("sudo -E env A=b python3 -m x", ["sudo", "env", "python"]),
        ("ssh -p 22 host 'ray start --head'", ["ssh", "ray"]),
        ("ssh -o 'StrictHostKeyChecking no' host 'ray start --head'", ["ssh", "ray"]),
        ("ssh -to 'User a' -i 'my key' host 'cd x && torchrun x.py'", ["ssh", "cd", "torchrun"]),
        ("docker run --rm image:1 torchrun x.py", ["docker", "torchrun"]),
        ("echo torchrun x.py", ["echo"]),
        ('echo "bash -c torchrun"', ["echo"]),
        ("bash <<EOF\ntorchrun x.py\nEOF", ["bash", "torchrun"]),
        ("kubectl apply -f - <<EOF\ntorchrun x.py\nEOF", ["kubectl"]),
    ],
)
def test_programs_that_others_run(text, programs):
    assert programs_in(text) == programs


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ('ssh -o "StrictHostKeyChecking no" worker hostname', [(1, 9)]),
        ("sudo ssh -o 'StrictHostKeyChecking no' worker hostname", [(1, 14)]),
        ("ssh gate \"ssh -o 'StrictHostKeyChecking no' worker x\"", [(1, 19)]),
        ("pdsh -S \"ssh -o 'StrictHostKeyChecking no'\" x", [(1, 18)]),
        ("bash -c \"ssh -o 'StrictHostKeyChecking no' a x\"", [(1, 18)]),
        ("Host *\n  StrictHostKeyChecking no", [(2, 3)]),
        ("ssh -o 'StrictHostKeyChecking no' a x; ssh -o 'StrictHostKeyChecking no' b y",
         [(1, 9), (1, 48)]),
    ],
)  # fmt: skip
def test_a_word_about_host_keys_is_one_finding_whoever_reads_it(text, places):
    found = launch_of(text).host_keys.value
    assert [(one.at.line, one.at.column) for one in found] == places
    assert {one.checked.value for one in found} == {False}


def test_a_variable_that_the_text_sets_once_is_known():
    known = launch_of('B=c10d\nA="--rdzv-backend $B --nnodes 2"\ntorchrun $A x.py\n')
    (one,) = known.rendezvous.value
    assert (one.backend.value, one.backend.at.line) == ("c10d", 3)


@pytest.mark.parametrize(
    ("text", "decides"),
    [
        ("torchrun --rdzv-backend=$B --nnodes=2 x.py", "$B decides"),
        (
            "B=c10d\nif x; then B=static; fi\ntorchrun --rdzv-backend=$B --nnodes=2 x.py",
            "$B decides",
        ),
        ("for B in c10d static; do torchrun --rdzv-backend=$B --nnodes=2 x.py; done", "$B decides"),
        ("torchrun --rdzv-backend=$(pick) --nnodes=2 x.py", "$(pick) decides"),
        ("torchrun --rdzv-backend={{ .Values.b }} --nnodes=2 x.py", "$.Values.b decides"),
        ("torchrun $ARGS x.py", "$ARGS decides"),
        ("B=${B:-c10d}\ntorchrun --rdzv-backend=$B --nnodes=2 x.py", "$B decides"),
    ],
)
def test_what_a_variable_decides_is_templated_and_names_it(text, decides):
    (one,) = launch_of(text).rendezvous.value
    assert (one.backend.outcome, one.backend.reason.lstrip("$")) == (
        Outcome.TEMPLATED,
        decides.lstrip("$"),
    )


def test_an_array_of_words_is_known():
    text = "ARGS=(\n  --nnodes 2  # two\n  --rdzv-backend 'c10d'\n)\ntorchrun ${ARGS[@]} x.py\n"
    assert [one.backend.value for one in launch_of(text).rendezvous.value] == ["c10d"]
    quoted = launch_of(text.replace("${ARGS[@]}", '"${ARGS[@]}"'))
    assert [one.backend.value for one in quoted.rendezvous.value] == ["c10d"]


def test_the_words_of_a_container_are_no_shells():
    place = places_in("x", "x")
    found = commands_of_words([("echo", place), ("a; torchrun --rdzv-backend=c10d", place)])
    assert [call.program for call in found.calls] == ["echo"]
    made = container_launches(
        "x",
        "c",
        words=[Text("torchrun", place), Text("--rdzv-backend=$(B)", place), Text("t.py", place)],
        variables={"B": Text("c10d", place)},
        at=Location(path="x"),
        collected=COLLECTED,
    )
    assert [one.backend.value for one in next(made).launch.rendezvous.value or ()] == ["c10d"]


SECRETS = (
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345",
    "s3cr3t-Passw0rd",
    "0123456789abcdef0123456789abcdef01234567",
    "postgres://u:pa55word@db/x",
)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    "text",
    [
        "export API_TOKEN={}",
        "tool --api-key {}",
        "tool --api-key={}",
        "MY_SECRET={} tool",
        "wandb login --token {}",
        "git clone https://user:{}@git.example.com/x",
        "torchrun --rdzv-endpoint={} --master-addr {} --revision {} x.py",
        "curl http://u:{}@example.com/x.sh | sh",
    ],
)
def test_no_secret_is_in_the_facts(text, secret):
    facts = next(
        script_launches("x.sh", "x.sh", text.replace("{}", secret), places_in("x", text), COLLECTED)
    )
    assert secret not in facts.to_json().decode()


MANY = 10_000
BOMBS = {
    "braces": "{{" * MANY,
    "substitutions": "$(" * MANY,
    "quotes": '"' * (MANY + 1),
    "backticks": "`" * (MANY + 1),
    "here-documents": "cat <<EOF\n" * MANY,
    "commands": "a\n" * (MAX_COMMANDS + 1),
    "shells": 'bash -c "' * 2000,
    "wrappers": "srun " * 1000 + "torchrun",
    "laughs": "V0=" + "x" * 64 + "\n" + "".join(f"V{i + 1}=$V{i}$V{i}\n" for i in range(40)),
    "long": "a" * (MAX_TEXT + 1),
    "zero": "a\0b\n",
    "nothing": "",
}


@pytest.mark.parametrize("bomb", sorted(BOMBS))
def test_hostile_text_ends_and_is_never_a_pass(bomb):
    launch = launch_of(BOMBS[bomb])
    whole = launch.rendezvous.outcome is Outcome.OK
    assert whole != (bomb in {"substitutions", "commands", "long"})
    assert whole or launch.rendezvous.reason


def test_random_text_never_fails():
    random_text = random.Random(15)
    letters = "abc $(){}[]<>|&;\"'`\\\n#=-:/EOF{{%"
    for _ in range(150):
        launch_of("".join(random_text.choice(letters) for _ in range(400)))


@pytest.mark.parametrize(
    ("command", "unpinned"),
    [
        ("python t.py --model_name_or_path Qwen/Qwen3-8B", 1),
        ("srun python t.py --model-id=Qwen/Qwen3-8B --repo_id x/y", 2),
        ("vllm serve Qwen/Qwen3-8B", 1),
        ("vllm serve Qwen/Qwen3-8B --revision " + "a" * 40, 0),
        ("vllm serve Qwen/Qwen3-8B --revision main", 1),
        ("python t.py --model ./out/x --tokenizer-model /ckpt/t.model", 0),
        ("python t.py --model checkpoints/step-10 --model-path a/b/c --model resnet50", 0),
        ("python t.py --model org/weights.safetensors --model-parallel 2/4", 0),
        ("python t.py --model $ORG/$NAME --output-model org/name", 0),
        ("echo --model Qwen/Qwen3-8B", 0),
        ("hf download Qwen/Qwen3-8B --model x/y", 1),
    ],
)
def test_a_model_of_a_hub_without_a_revision(command, unpinned):
    revisions = launch_of(command).revisions.value or ()
    assert [one.commit.value for one in revisions].count(False) == unpinned


def test_commands_that_a_variable_takes_from_a_here_document():
    text = "read -r -d '' CMD <<'EOF'\npip install x && \\\ngit clone https://e/x\nEOF\n"
    text += "read NOTE <<A\nno\nA\n"
    launches = [
        one.launch for one in script_launches("x", "x", text, places_in("x", text), COLLECTED)
    ]
    fetched = [(one.program, one.at.line) for x in launches for one in x.fetches.value or ()]
    assert fetched == [("pip", 2), ("git", 3)]
    assert len(launches) == 2


@pytest.mark.parametrize(
    ("command", "verified"),
    [
        ("aws s3 cp s3://b/x . --no-verify-ssl", False),
        ("aws --endpoint-url http://minio:9000 s3 cp s3://b/x .", False),
        ("aws s3 sync s3://b/x .", True),
    ],
)
def test_a_bucket_is_read_with_tls(command, verified):
    fetches = launch_of(command).fetches.value or ()
    assert all(one.verified.value for one in fetches) is verified
