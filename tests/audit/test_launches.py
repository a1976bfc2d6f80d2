# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Shell text to commands, and commands to facts: nothing is run, guessed or kept that is secret."""

import random

import pytest

from securetrain.audit.facts import Collected, End, Location, Outcome
from securetrain.audit.shell.evaluator import evaluate, evaluate_words
from securetrain.audit.shell.syntax import MAX_COMMANDS
from securetrain.audit.shell.values import HOLE, Places, Text, container_word, script_text
from securetrain.audit.subjects.launches.collect.launch import (
    container_launches,
    script_launches,
)
from securetrain.audit.subjects.launches.facts import LaunchFacts
from tests.audit.conftest import NOW
from tests.tables import each

COLLECTED = Collected(at=NOW, hostname="h", collector="test")


def text_of(text, name="run.sh"):
    return script_text(text, Places(name, text).at)


def facts_of(text, name="run.sh", **options):
    return next(script_launches(name, name, text_of(text, name), COLLECTED, **options))


def launch_of(text, name="run.sh", **options):
    return facts_of(text, name, **options).launch


def words_of(text):
    calls = evaluate(text_of(text)).calls
    return [[one.program, *(arg.text.replace(HOLE, "?") for arg in one.args)] for one in calls]


def launched(found):
    """The launches among what was made of a text."""
    return [one.launch for one in found if isinstance(one, LaunchFacts)]


def programs_in(text):
    return [words[0] for words in words_of(text)]


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
        ("f() { a; }", [["a"]]),
        ("a <<'EOF'\nb c\nEOF\nd", [["a"], ["d"]]),
        ("a <<-EOF\n\tb\n\tEOF\nd", [["a"], ["d"]]),
        ("x=$(a b)\nc $x", [["a", "b"], ["c", "?"]]),
        ("x=( $(a) b )\nc ${x[@]}", [["a"], ["c", "?", "b"]]),
        ("a `b c`", [["b", "c"], ["a", "?"]]),
        ("a {{ .Values.x }} <%= y %>", [["a", "?", "?"]]),
        ("{{- if .x }}\na\n{{- end }}\n{# b #}", [["a"]]),
        ("for x in a b; do c $x; done", [["c", "a"], ["c", "b"]]),
        ("x=a; if t; then x=b; fi; c $x", [["t"], ["c", "b"], ["c", "a"]]),
        ("f() { c $2; }; f a b", [["c", "b"]]),
        ("x='a $Y --b'; c $x", [["c", "a", "$Y", "--b"]]),
        ('x="a $Y --b"; c $x', [["c", "a", "?", "--b"]]),
        ("c a\nfi\nd 'b\ne f", [["c", "a"], ["e", "f"]]),
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
        ("docker run -v a:b -e C=d image bash -c 'torchrun x'", ["docker", "bash", "torchrun"]),
        ("echo a | xargs -n 1 torchrun", ["echo", "xargs", "torchrun"]),
        ("srun --nodes 2 --label ./a b", ["srun", "a"]),
        ("timeout -k 5 9 nice -n 1 torchrun", ["timeout", "nice", "torchrun"]),
        ("mpirun -np 2 -mca a b -x C=d ./e", ["mpirun", "e"]),
        ("x='torchrun t.py'; eval $x; $x", ["eval", "torchrun", "torchrun"]),
        ("sudo su - user -c 'torchrun t.py'", ["sudo", "su", "torchrun"]),
        ("conda run -n env torchrun t.py; conda install x", ["conda", "torchrun", "conda"]),
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
    one, workers = known.rendezvous.value
    assert (one.backend.value, one.backend.at.line) == ("c10d", 3)
    assert (workers.backend.value, workers.at.line, workers.at.written.line) == ("env", 3, 2)


@pytest.mark.parametrize(
    ("text", "decides"),
    [
        ("torchrun --rdzv-backend=$B --nnodes=2 x.py", "$B decides"),
        ("torchrun --rdzv-backend=$(pick) --nnodes=2 x.py", "$(pick) decides"),
        ("torchrun --rdzv-backend={{ .Values.b }} --nnodes=2 x.py", ".Values.b decides"),
        ("torchrun $ARGS x.py", "$ARGS decides"),
        ("B=${B:-c10d}\ntorchrun --rdzv-backend=$B --nnodes=2 x.py", "$B decides"),
        ("B=$(pick)\ntorchrun --rdzv-backend=$B --nnodes=2 x.py", "$B decides"),
    ],
)
def test_what_a_variable_decides_is_templated_and_names_it(text, decides):
    (one,) = launch_of(text).rendezvous.value
    assert (one.backend.outcome, one.backend.reason) == (Outcome.TEMPLATED, decides)


RUN = "torchrun --nnodes 2 --rdzv-backend"


@pytest.mark.parametrize(
    "text",
    [
        f"B=c10d\nif x; then B=static; fi\n{RUN} $B x.py",
        f"for B in c10d static; do {RUN} $B x.py; done",
        f"case $1 in a) B=c10d ;; *) B=static ;; esac; {RUN} $B x.py",
        f"B=static; [ -z $1 ] && B=c10d; {RUN} $B x.py",
        f"{{% if a %}}\nB=c10d\n{{% else %}}\nB=static\n{{% endif %}}\n{RUN} $B x.py",
        f"{{{{- if .a }}}}\nB=c10d\n{{{{- else }}}}\nB=static\n{{{{ end }}}}\n{RUN} $B x.py",
    ],
)
def test_a_variable_may_have_one_of_several_values(text):
    found = launch_of(text).rendezvous.value
    assert {one.backend.value for one in found} == {"c10d", "env", "static"}


@pytest.mark.parametrize(
    "text",
    [
        'L="torchrun --nnodes $N --rdzv_backend c10d"\nsrun $L t.py',
        'L="torchrun --nnodes $N"\nL+=" --rdzv_backend c10d"\nsrun bash -c "$L t.py"',
        "L=(torchrun --nnodes $N)\nL+=(--rdzv_backend c10d)\nsrun ${L[@]} t.py",
        "f() { srun torchrun $2 --rdzv_backend $1 t.py; }\nf c10d $X",
        "export B=c10d\nsrun bash -c 'torchrun --nnodes $N --rdzv_backend $B t.py'",
        "read -r -d '' L <<E\ntorchrun --nnodes $N \\\n--rdzv_backend c10d\nE\nsrun $L t.py",
        "srun $X torchrun $ARGS --rdzv_backend c10d t.py $MORE",
        "eval torchrun --nnodes $N '--rdzv_backend' c10d",
        "srun bash <<'E'\ntorchrun --nnodes $N --rdzv_backend c10d t.py\nE",
        "salloc -N 2 mpirun -np 2 env A=b timeout 9 nohup torchrun --rdzv_backend c10d --nnodes $N",
    ],
)
def test_an_open_word_hides_no_word_beside_it(text):
    assert [one.backend.value for one in launch_of(text).rendezvous.value] == ["c10d"]


LAUNCH = "torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint h:1 t.py --trust_remote_code"
WRAPPINGS = (
    *("%", "srun %", "srun -N 2 --label %", "salloc -N 2 srun %", "mpirun -np 2 -x A=b %"),
    *(
        "ssh $HOST '%'",
        "timeout $T %",
        "docker run $IMAGE %",
        "ssh -p 22 host '%'",
        "ssh host cd x '&&' %",
        "bash -c '%'",
        'bash -lc "cd /x && %"',
    ),
    *("eval '%'", "env A=b %", "timeout -k 1 9 %", "nohup % &", "echo x | xargs -n 1 %"),
    *(
        'A=(%)\n"${A[@]}"',
        "f() { a\n%\n}\nf",
        "bash <<'E'\n%\nE",
        "L='%'\nsrun $L",
        "L='\n%'\nsrun $L",
    ),
    *("sudo -u a nice -n 1 %", "if a\nthen %\nfi", "for a in 1 2; do %; done", "{ %; } | tee x"),
    *("x=$(%)", "case $1 in\na) % ;;\nesac", "docker run -v a:b image %", "uv run %"),
    *("apptainer exec --nv a.sif %", "nsys profile -o x %", "pdsh -w a,b '%'", "b && %"),
    *("read -r -d '' L <<'E'\na\n%\nE\nbash -c \"$L\"", "trap '%' EXIT", "su - a -c '%'"),
    *("numactl -N 0 %", "accelerate_x; (cd y; %)", 'set -- %\n"$@"', "sbatch --wrap '%'"),
)


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_one_launch_in_many_wrappings_has_the_same_findings_at_its_line(wrapping):
    text = f"#!/bin/bash\n{wrapping.replace('%', LAUNCH)}\n"
    uses = ('"${A[@]}"', "srun $L", '"$@"')
    line = next(n for n, one in enumerate(text.split("\n"), 1) if LAUNCH in one)
    line += any(one in text for one in uses)
    launch = launch_of(text)
    found = [(one.backend.value, one.at.line) for one in launch.rendezvous.value]
    assert found == [("c10d", line), ("env", line)]
    written = {getattr(one.at.written, "line", line) for one in launch.rendezvous.value}
    assert written == {line - any(one in text for one in uses)}
    assert [(one.enabled.value, one.at.line) for one in launch.remote_code.value] == [(True, line)]
    assert [(one.scope.value, one.at.line) for one in launch.addresses.value] == [("name", line)]


@pytest.mark.parametrize(
    "launcher",
    [
        *("torchrun --nnodes 2", "python -m torch.distributed.run --nnodes 2"),
        *("accelerate launch --num_machines 2", "deepspeed --num_nodes 2"),
        "python -u -m accelerate.commands.launch --num_machines 2",
        "python3 -m deepspeed.launcher.runner --num_nodes 2",
    ],
)
def test_a_launcher_is_one_as_a_module_too(launcher):
    (found,) = launch_of(
        f"srun {launcher} --main_process_ip $H --master_addr $H t.py"
    ).rendezvous.value
    assert found.backend.value == "static"


RENDEZVOUS = "launch.rendezvous"


@pytest.mark.parametrize(
    ("text", "line", "why", "of"),
    [
        ("a\n$RUNNER t.py", 2, "$RUNNER decides what is run", RENDEZVOUS),
        ('L="$RUNNER --x"\nsrun $L', 2, "$RUNNER may be what srun runs", RENDEZVOUS),
        ("srun $CMD", 1, "$CMD may be what srun runs", RENDEZVOUS),
        ("eval $CMD", 1, "$CMD decides what is run", RENDEZVOUS),
        (
            'set -- $X\ntorchrun t.py "$@"',
            2,
            "$X may be any options of torchrun",
            "launch.remote_code",
        ),
        ("bash -c '$CMD'", 1, "$CMD decides what is run", RENDEZVOUS),
        ("bash $FILE", 1, "$FILE decides which file is run", RENDEZVOUS),
        ("source $FILE", 1, "$FILE decides which file is run", RENDEZVOUS),
        ("torchrun --nnodes 1 $ARGS t.py", 1, "$ARGS may be any options of torchrun", RENDEZVOUS),
        ('torchrun t.py "$@"', 1, "$@ may be any options of torchrun", "launch.remote_code"),
        ("mpirun $ARGS -np 2 ./a", 1, "$ARGS may be any options of mpirun", "launch.mpi_as_root"),
        ("a\nb 'c", 2, "a quote that nothing closes", RENDEZVOUS),
        ("{{ include . }}", 1, "include . decides what is run", RENDEZVOUS),
        ("echo x | bash", 1, "bash runs what it reads from a pipe", RENDEZVOUS),
        ("f() { f; }; f", 1, "the function f calls itself, or more than 12 others", RENDEZVOUS),
    ],
)
def test_what_is_not_followed_is_in_the_ledger_with_its_place(text, line, why, of):
    found = [one for one in facts_of(text).ledger if one.end is End.NOT_UNDERSTOOD]
    assert (why, line) in {(one.why, one.at.line) for one in found}
    assert all(of in one.bears_on for one in found)


@pytest.mark.parametrize(
    "text", ["a $X; cd $Y", "torchrun --nnodes $N t.py", "true # $X", "echo '$X'", "x=$(a $Y)"]
)
def test_what_can_answer_no_check_is_not_open(text):
    assert {one.end for one in facts_of(text).ledger} == {End.READ}


FOLDER = {
    "env.sh": "export MASTER_ADDR=10.0.0.1\nB=c10d\n",
    "inner.sh": "torchrun --nnodes 2 --rdzv_backend $1 t.py\n",
    "again.sh": "source again.sh\nbash again.sh\n",
}


def read(name):
    return text_of(FOLDER[name], name) if name in FOLDER else "it is not in the folder"


@pytest.mark.parametrize(
    ("text", "backends"),
    [
        ("source env.sh\nsrun torchrun --nnodes 2 --rdzv_backend $B t.py", ["c10d", "env"]),
        (". env.sh; bash inner.sh $B", ["c10d", "env"]),
        ("srun bash -x inner.sh c10d", ["c10d", "env"]),
        ("sbatch inner.sh c10d; ./other.sh", []),
    ],
)
def test_files_of_the_folder_are_followed(text, backends):
    facts = facts_of(text.replace("sbatch inner.sh", "cat x"), folder=read)
    assert [one.backend.value for one in facts.launch.rendezvous.value] == backends
    opens = [one for one in facts.ledger if one.end is End.NOT_UNDERSTOOD]
    assert bool(opens) is ("./other.sh" in text)


def test_a_file_that_runs_itself_is_open_and_one_that_sets_up_a_tool_is_not_ours():
    facts = facts_of("source again.sh; source ~/venv/bin/activate; . /etc/profile", folder=read)
    ends = [(one.end, one.why) for one in facts.ledger[1:]]
    assert (End.NOT_UNDERSTOOD, "again.sh runs itself") in ends
    assert [end for end, _ in ends].count(End.NOT_OURS) == 2


@pytest.mark.parametrize(
    ("text", "backend"),
    [
        ("export MASTER_ADDR=a\nsrun -n 4 python t.py", "env"),
        ("#SBATCH --nodes=4\nexport MASTER_ADDR=$(x)\nsrun python -u t.py", "env"),
        ("#SBATCH -N 4\nexport MASTER_ADDR=$(x)\nsrun bash -c 'python3 -m train'", "env"),
        ("mpirun -np 8 -x MASTER_ADDR=a python t.py", "env"),
        ("export MASTER_ADDR=a\nsrun python t.py", None),
        ("export MASTER_ADDR=a\nsrun -n $N python t.py", None),
        ("export MASTER_ADDR=a\npython t.py", ""),
        ("#SBATCH --nodes=4\nexport MASTER_ADDR=a\npython t.py", ""),
        ("export MASTER_ADDR=a\nsrun -n 1 python t.py", ""),
        ("srun -n 4 python t.py", ""),
        ("MASTER_ADDR=a\nsrun -n 4 python t.py", ""),
        ("export MASTER_ADDR=a\nsrun -n 4 python -m pip list", ""),
    ],
)
def test_an_address_and_several_tasks_are_a_rendezvous_of_the_environment(text, backend):
    found = launch_of(text, "x.sbatch").rendezvous.value
    said = [one.backend.value for one in found if one.program == "python"]
    assert [one for one in said if one != "local"] == ([] if backend == "" else [backend])


def test_an_array_of_words_is_known():
    text = "ARGS=(\n  --nnodes 2  # two\n  --rdzv-backend 'c10d'\n)\ntorchrun ${ARGS[@]} x.py\n"
    assert [one.backend.value for one in launch_of(text).rendezvous.value] == ["c10d", "env"]
    quoted = launch_of(text.replace("${ARGS[@]}", '"${ARGS[@]}"'))
    assert [one.backend.value for one in quoted.rendezvous.value] == ["c10d", "env"]


@each(
    "command, backends",
    ("torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint h:1 t.py", ["c10d", "env"]),
    ("torchrun --nnodes $N --rdzv-backend c10d --rdzv-endpoint $H:1 t.py", ["c10d", "env"]),
    ("torchrun --nnodes 1:4 --rdzv-backend etcd --rdzv-endpoint h:1 t.py", ["etcd", "env"]),
    ("torchrun --nnodes 1 --rdzv-backend c10d --rdzv-endpoint h:1 t.py", ["c10d"]),
    ("torchrun --rdzv-backend c10d --rdzv-endpoint localhost:0 t.py", ["c10d"]),
    ("torchrun --nnodes 2 --rdzv-backend securetrain --rdzv-endpoint h:1 t.py", ["securetrain"]),
    ("torchrun --nnodes 2 --rdzv-backend static --master-addr h t.py", ["static"]),
    ("torchrun --nnodes 2 --rdzv-backend $B --master-addr h t.py", [None]),
    ("torchrun --nnodes 2 --standalone t.py", ["local"]),
    ("python -m sglang.launch_server --dist-init-addr $H:1 --nnodes 2", ["tcp"]),
    ("python -m sglang.launch_server --dist-init-addr h:1", ["tcp"]),
    ("python t.py --init-method env://", ["env"]),
    ("python t.py --init-method $M", [None]),
    ("python t.py --init-method xavier", []),
)
def test_workers_of_several_nodes_meet_beside_their_launchers(command, backends):
    found = launch_of(command).rendezvous.value
    assert [one.backend.value for one in found] == backends


def test_the_words_of_a_container_are_no_shells():
    place = Places("x", "x").at
    words = [
        container_word(Text(one, place), {}) for one in ("echo", "a; torchrun --rdzv-backend=c10d")
    ]
    found = evaluate_words(words, {})
    assert [call.program for call in found.calls] == ["echo"]
    made = container_launches(
        "x",
        "c",
        words=[Text("torchrun", place), Text("--rdzv-backend=$(B)", place), Text("t.py", place)],
        variables={"B": Text("c10d", place)},
        at=Location(path="x"),
        collected=COLLECTED,
    )
    assert [one.backend.value for one in launched(made)[0].rendezvous.value or ()] == ["c10d"]


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
    facts = facts_of(text.replace("{}", secret))
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
    "long": "a" * (10 << 20),
    "doubling": "A=(x)\n" + "A=(${A[@]} ${A[@]})\n" * 40 + "$A",
    "loops": "for a in 1 2 3 4 5 6 7 8 9; do\n" * 12 + "b\n" + "done\n" * 12,
    "branches": "if a; then A=1; fi; B=$A$A$B\n" * 300 + "$B",
    "functions": "f() { g; g; }; g() { f; f; }\nf",
    "many words": "a " * MANY,
    "zero": "a\0b\n",
    "nothing": "",
}


@pytest.mark.parametrize("bomb", sorted(BOMBS))
def test_hostile_text_ends_and_is_never_a_pass(bomb):
    facts = facts_of(BOMBS[bomb])
    whole = all(one.end is not End.NOT_UNDERSTOOD for one in facts.ledger)
    assert whole == (bomb in {"nothing", "many words", "braces", "laughs", "shells"})
    assert all(one.at.line for one in facts.ledger)


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
    launches = launched(script_launches("x", "x", text_of(text, "x"), COLLECTED))
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


@pytest.mark.parametrize(
    ("text", "pinned"),
    [
        (f"git clone u; git checkout {'a1' * 20}; git submodule update", [True, True]),
        (f"git clone u x; git -C x checkout {'a1' * 20}", [True]),
        ("git clone u; git checkout main; git submodule update", [False, False]),
        ("git clone u; git checkout $COMMIT", [None]),
        (f"git clone u; git clone v; git checkout {'a1' * 20}", [False, True]),
        (f"pip install git+https://h/x@{'a1' * 20}#egg=x", [True]),
        (f"pip install y git+https://h/x@{'a1' * 20}", [False]),
    ],
)
def test_a_commit_is_what_it_must_be(text, pinned):
    found = launch_of(f"#SBATCH -N2\n{text}\n").fetches.value
    assert [one.pinned.value for one in found] == pinned


@pytest.mark.parametrize(
    ("text", "states"),
    [
        ("curl http://169.254.169.254/latest/meta-data/", []),
        ("curl -H Metadata:true 'http://169.254.169.254/metadata/instance?x'", []),
        ("curl http://metadata.google.internal/computeMetadata/v1/", []),
        ("curl -X POST http://host/run", []),
        ("curl -d @body http://host/run", []),
        ("curl http://$HOST/x", [None]),
        ("curl http://host/$X", [False]),
        ("wget http://169.254.169.254.example.com/x", [False]),
        ("curl https://host/x", [True]),
    ],
)
def test_what_is_no_download_or_has_no_known_host(text, states):
    found = launch_of(f"#SBATCH -N2\n{text}\n").fetches.value
    assert [one.verified.value for one in found] == states


@pytest.mark.parametrize(
    ("text", "pinned"),
    [
        ("pip install torch", [None]),
        ("pip install torch\npython -m venv x\npython setup.py install", [None]),
        ("pip install torch\ntorchrun train.py", [False]),
        ("pip install torch\npython train.py", [False]),
        ("git clone u\npython prepare_data.py", [None]),
        ("go install u\netcd --listen-client-urls http://0.0.0.0:2379", [None]),
        ("#SBATCH -N2\npip install torch", [False]),
    ],
)
def test_code_is_fetched_at_the_start_of_a_job_and_not_by_what_installs(text, pinned):
    assert [one.pinned.value for one in launch_of(f"#!/bin/bash\n{text}\n").fetches.value] == pinned
