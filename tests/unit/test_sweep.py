"""Sweeps: every value once, whatever happens in between, and the best of them by validation."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pwd
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from regard import bundle, cli, disk, recipe
from regard.bundle import load
from regard.cli.sweeping import table
from regard.errors import BundleError, InputError, NoRoomError
from regard.sweep import TRIAL_KEY, Axis, Outcome, Trial, axes, axis, study, sweep
from regard.sweep.study import _outcome
from regard.train import Stopped, train
from regard.weights import tensors
from tests.serving import free_port
from tests.tiny import Silent, memorised, pairs_file

MORE = [
    "encoder.width=8",
    "train.steps=6",
    "train.warmup_steps=1",
    "train.valid_every=3",
    "train.save_every=2",
    "train.threads=1",
]


def test_ranges_and_values_as_they_are_defined():
    """By the patterns that say it shortest, whose time grows with the square of the length."""
    draw = random.Random(5)
    for _ in range(20_000):
        value = "".join(
            draw.choices('.,[]/x"1', weights=[4, 3, 2, 2, 0.3, 1, 0.2, 2], k=draw.randrange(1, 9))
        )
        between = re.fullmatch(r"([^/,\"']+?)\.\.([^/,\"']+)", value)
        assert axes._ends(value) == (between and between.groups()), value
        assert axes._values(value) == re.split(r",(?![^\[]*\])", value), value


@pytest.mark.parametrize("value", ["." * 400_000 + "/", "," * 1_000_000 + "1", "[,]" * 300_000])
def test_long_values_are_read_in_one_pass(value: str):
    assert axis(f"a.b={value}").values


def test_the_table_begins_with_the_best():
    trials = [
        Trial({"train.learning_rate": f"{n}"}, f"run-{n}", state="done", score=n)
        for n in (0.2, 0.1, 0.3)
    ]
    bad = Trial({"train.learning_rate": "9"}, "run-9", state="failed")
    for score, order in (("cer", [0.1, 0.2, 0.3]), ("accuracy", [0.3, 0.2, 0.1])):
        rows = table(Outcome(score, [bad, *trials]), None).splitlines()
        assert [float(row.split()[1]) for row in rows[1:4]] == order and rows[1].endswith("best")
        assert "failed" in rows[4]


# -- seeds------------------------------------------------------------------------------------------


def seeded(scores: dict[str, list[float]]) -> list[Trial]:
    """For each rate a trial of each seed from 1 up."""
    return [
        Trial({"train.learning_rate": rate, "seed": str(seed)}, f"run-{rate}-{seed}", "done", score)
        for rate, reached in scores.items()
        for seed, score in enumerate(reached, 1)
    ]


@pytest.mark.parametrize(("score", "best"), [("perplexity", "0.1"), ("accuracy", "0.2")])
def test_settings_are_ranked_by_their_mean_over_seeds(score: str, best: str):
    """The luckiest single run belongs to the other setting."""
    lucky = {"perplexity": 4.0, "accuracy": 20.0}[score]
    known = Outcome(score, seeded({"0.1": [9.0, 10.0, 11.0], "0.2": [lucky, 14.0, 15.0]}))
    if score == "accuracy":
        known = Outcome(score, seeded({"0.1": [lucky, 1.0, 3.0], "0.2": [9.0, 10.0, 11.0]}))
    first = known.settings[0]
    assert (
        first.values == {"train.learning_rate": best}
        and known.best_setting == first
        and known.best is None
    )
    assert (first.mean, first.deviation, min(first.scores), max(first.scores)) == (
        10.0,
        1.0,
        9.0,
        11.0,
    )
    shown = table(known, None)
    (row,) = [line for line in shown.splitlines() if line.endswith("best mean")]
    assert row.split() == [f"train.learning_rate={best}", "10", "1", "9", "11", "3", "best", "mean"]
    assert shown.endswith(
        f"the best setting, by its mean over 3 seeds, is train.learning_rate={best}"
    )
    told = known.to_json()
    assert told["best"] is None and told["best_setting"] == {"train.learning_rate": best}
    assert told["settings"][0]["standard_deviation"] == 1.0 and told["settings"][0]["seeds"] == 3


def test_of_seeds_alone_none_is_the_best():
    trials = [Trial({"seed": str(n)}, f"run-{n}", "done", float(n)) for n in (2, 1, 3)]
    known = Outcome("perplexity", trials)
    shown = table(known, None)
    assert known.best is known.best_setting is known.to_json()["best"] is None
    assert "best run" not in shown and "  best\n" not in shown and "best mean" not in shown
    assert shown.splitlines()[1].split() == ["all", "seeds", "2", "1", "1", "3", "3"]
    assert [line.split()[0] for line in shown.splitlines()[4:7]] == [
        "seed=2",
        "seed=1",
        "seed=3",
    ]  # not ranked


def test_a_setting_whose_seed_failed_does_not_win():
    trials = seeded({"0.1": [9.0, 10.0], "0.2": [4.0, 5.0]})
    trials[-1] = Trial(trials[-1].values, "run", "failed", why="not a number")
    known = Outcome("perplexity", trials)
    assert known.best_setting is not None and known.best_setting.values == {
        "train.learning_rate": "0.1"
    }
    assert "1/2" in table(known, None)
    assert known.settings[1].deviation is None  # one seed has no spread


def test_seeds_through_the_door(tiny, tmp_path, capsys):
    changes = [word for change in tiny for word in ("--set", change)]
    command = ["train", "chat-gru", *changes, "--out", str(tmp_path / "s"), "--sweep", "seed=1,2,3"]
    assert cli.main(command) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert (
        last == "runs that differ in their seeds only: the spread is chance, and none is the best"
    )
    assert cli.main([*command, "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    scores = [trial["score"] for trial in outcome["trials"]]
    assert outcome["best"] is None and len(set(scores)) == 3
    (setting,) = outcome["settings"]
    assert setting["mean"] == pytest.approx(sum(scores) / 3)
    assert (setting["lowest"], setting["highest"]) == (min(scores), max(scores))


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Overrides of a recipe that trains in a moment."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return memorised(pairs_file(tmp_path), *MORE)


class Teller:
    """Remembers which trials were trained, and from which step on; may do something at a step of
    one of them."""

    def __init__(self, at: tuple[int, int] | None = None, does=None):
        self.trained: list[tuple[str, int]] = []
        self.at, self.does = at, does

    def __call__(self, trial):
        teller = self

        class Reporter(Silent):
            def began(self, facts) -> None:
                teller.trained.append((trial.name, facts.resumed_at))

            def stepped(self, progress, loss, speed, done) -> None:
                if teller.at == (len(teller.trained), progress.step):
                    assert teller.does is not None
                    teller.does()

        return contextlib.nullcontext(Reporter())


def maker(tiny):
    return lambda more: recipe.load("chat-gru", [*tiny, *more])


# -- what is written--------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("train.learning_rate", "values to try have the form section.field=values"),
        ("train.learning_rate=", "values to try have the form section.field=values"),
        ("train.learning_rate=a..b", "the ends of a range are numbers"),
        ("train.learning_rate=1e-1..1e-4", "a range goes from a number to a larger one"),
        ("train.learning_rat=0.1,0.2", 'no such field; got 0.1; did you mean "learning_rate"?'),
        ("train.learning_rate=0.1,fast", 'must be a number > 0; got "fast"'),
        ("encoder.layers=0..4", "a whole number >= 1"),
        ("encoder.width=8.5..16", "encoder.width"),
        ("train.score=chrf,perplexity", "runs that differ in train.score cannot be compared"),
    ],
)
def test_a_mistake_is_one_line(written, said, tmp_path, capsys):
    assert cli.main(["train", "chat-gru", "--sweep", written, "--out", str(tmp_path / "s")]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and not (tmp_path / "s").exists()


def test_options_of_a_sweep_need_one(capsys):
    assert cli.main(["train", "chat-gru", "--trials", "3"]) == 2
    assert "add --sweep" in capsys.readouterr().err
    assert cli.main(["train", "--resume", "x", "--sweep", "train.learning_rate=1,2"]) == 2
    assert "leave --resume out" in capsys.readouterr().err


def test_without_optuna_its_extra_is_named(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"need optuna; pip install 'regard\[sweep\]'"):
        sweep(
            maker(tiny),
            [axis("train.learning_rate=1e-3..1e-2")],
            tmp_path / "s",
            make_reporter=Teller(),
        )


# -- a grid-----------------------------------------------------------------------------------------


def test_a_grid_through_the_door(tiny, tmp_path, capsys):
    changes = [word for change in tiny for word in ("--set", change)]
    command = [
        "train",
        "chat-gru",
        *changes,
        "--out",
        str(tmp_path / "s"),
        "--sweep",
        "train.learning_rate=0.0001,0.01",
    ]
    command += ["--sweep", "encoder.width=8,12"]
    assert cli.main(command) == 0
    out = capsys.readouterr().out
    best = tmp_path / "s" / "train.learning_rate=0.01,encoder.width=12"
    assert out.count("in " + str(tmp_path / "s")) == 5  # four trials, and the curves
    assert f"the best run is {tmp_path}/s/train.learning_rate=0.01" in out
    chosen: Any = load(best).recipe
    assert chosen.encoder.width == 12
    assert chosen.decoder.width == 12  # what is derived follows
    assert (tmp_path / "s" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert cli.main([*command, "--json"]) == 0  # nothing is trained again
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert told.err == "" and [trial["state"] for trial in found["trials"]] == ["done"] * 4
    assert found["best"]["score"] == min(trial["score"] for trial in found["trials"])
    assert (
        found["best"]["values"]["train.learning_rate"] == "0.01" and found["score"] == "perplexity"
    )
    assert cli.main(["ask", found["best"]["run"], "Hello!"]) == 0
    assert cli.main([*command, "--set", "seed=2"]) == 2  # another sweep in its folder
    assert (
        "this folder holds another sweep; got seed: 1 -> 2; choose another --out"
        in capsys.readouterr().err
    )


def test_ctrl_c_and_on_with_the_same_bits(tiny, tmp_path):
    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    axes, folder, known = [axis("train.learning_rate=0.001,0.01,0.02")], tmp_path / "s", []
    with pytest.raises(Stopped) as stopped:
        sweep(
            maker(tiny),
            axes,
            folder,
            make_reporter=Teller((2, 3), interrupt),
            on_outcome=known.append,
        )
    assert stopped.value.exit_code == 130
    assert [trial.state for trial in known[-1].trials] == ["done", "stopped", "waiting"]
    assert known[-1].best == known[-1].trials[0]
    teller = Teller()
    outcome = sweep(maker(tiny), axes, folder, make_reporter=teller)
    assert teller.trained == [("train.learning_rate=0.01", 3), ("train.learning_rate=0.02", 0)]
    train(maker(tiny)(["train.learning_rate=0.01"]), tmp_path / "alone", reporter=Silent())
    ours, alone = (tensors(load(run).model) for run in (outcome.trials[1].run, tmp_path / "alone"))
    assert all(bool((ours[name] == alone[name]).all()) for name in alone)


def test_a_trial_that_fails_is_told_and_not_repeated(tiny, tmp_path):
    axes, teller = [axis("train.learning_rate=1e60,0.01")], Teller()
    make = maker([*tiny, "train.max_grad_norm=0.0", "train.steps=12", "train.valid_every=12"])
    outcome = sweep(make, axes, tmp_path / "s", make_reporter=teller)
    assert [trial.state for trial in outcome.trials] == [
        "failed",
        "done",
    ] and "number" in outcome.trials[0].why
    assert outcome.best == outcome.trials[1] and len(teller.trained) == 2
    sweep(make, axes, tmp_path / "s", make_reporter=teller)
    assert len(teller.trained) == 2


def test_what_another_process_trains_is_left_to_it(tiny, tmp_path):
    sweep(maker(tiny), [axis("train.learning_rate=0.001")], tmp_path / "s", make_reporter=Teller())
    run = tmp_path / "s" / "train.learning_rate=0.01"
    run.mkdir()
    with disk.locked(run):
        outcome = sweep(
            maker(tiny),
            [axis("train.learning_rate=0.01,0.001")],
            tmp_path / "s",
            make_reporter=Teller(),
        )
    assert [trial.state for trial in outcome.trials] == ["elsewhere", "done"]


def test_what_another_process_finds_out_meanwhile_is_known(tiny, tmp_path):
    def meanwhile() -> None:
        sweep(
            maker(tiny), [axis("train.learning_rate=0.001")], tmp_path / "s", make_reporter=Teller()
        )

    known, teller = [], Teller((1, 2), meanwhile)
    sweep(
        maker(tiny),
        [axis("train.learning_rate=0.01,0.001")],
        tmp_path / "s",
        make_reporter=teller,
        on_outcome=known.append,
    )
    assert [trial.state for trial in known[0].trials] == ["done", "done"]
    assert [name for name, _ in teller.trained] == ["train.learning_rate=0.01"]


# -- a search---------------------------------------------------------------------------------------


def test_a_search_over_ranges_and_choices(tiny, tmp_path):
    pytest.importorskip("optuna")
    axes = [
        axis("train.learning_rate=1e-4..1e-1"),
        axis("encoder.width=6..10"),
        axis("decoder.attention=dot,none"),
    ]
    teller = Teller()
    outcome = sweep(maker(tiny), axes, tmp_path / "s", make_reporter=teller, trials=3)
    assert len(outcome.trials) == 3 and len(teller.trained) == sum(
        trial.state == "done" for trial in outcome.trials
    )
    for trial in outcome.trials:
        width = int(trial.values["encoder.width"])
        assert trial.state == ("failed" if width % 2 else "done") and 6 <= width <= 10
        if trial.state == "done":
            found: Any = load(trial.run).recipe
            assert 1e-4 <= found.train.learning_rate <= 1e-1 and found.encoder.width == width
            assert found.decoder.attention in ("dot", "none")
    again = sweep(maker(tiny), axes, tmp_path / "s", make_reporter=teller, trials=4)
    assert len(again.trials) == 4 and again.trials[:3] == outcome.trials


def test_a_dead_workers_trial_comes_back(tiny, tmp_path, monkeypatch):
    """One is killed in its first trial: its heartbeat stops, and the next worker takes the same
    values over."""
    pytest.importorskip("optuna")
    monkeypatch.setattr(study, "HEARTBEAT", 1)
    monkeypatch.setattr(study, "GRACE", 2)
    longer = [*tiny, "train.steps=400", "train.save_every=5", "train.valid_every=400"]
    folder = tmp_path / "s"
    with subprocess.Popen(
        command(longer, folder, "--trials", "1"), stderr=subprocess.DEVNULL
    ) as worker:
        while not list(folder.glob("*/checkpoints/step-*")):
            time.sleep(0.01)
        worker.kill()
    assert worker.returncode == -signal.SIGKILL  # in its trial, not after it
    (run,) = folder.glob("*/checkpoints")
    teller = Teller()
    outcome = sweep(
        maker(longer),
        [axis("train.learning_rate=1e-4..1e-1")],
        folder,
        make_reporter=teller,
        trials=1,
    )
    ((name, step),) = teller.trained
    assert name == run.parent.name and step >= 5  # from its last checkpoint on
    assert [trial.state for trial in outcome.trials] == ["done"]


def command(changes: list[str], folder: Path, *more: str) -> list[str]:
    sets = [word for change in changes for word in ("--set", change)]
    begin = [sys.executable, "-m", "regard", "train", "chat-gru", *sets, "--out", str(folder)]
    return [*begin, "--sweep", "train.learning_rate=1e-4..1e-1", *more]


def test_two_processes_share_one_storage(tiny, tmp_path):
    pytest.importorskip("optuna")
    shared = command(tiny, tmp_path / "s", "--json", "--trials", "4")
    both = [
        subprocess.Popen(shared, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    told = [one.communicate(timeout=110) for one in both]
    assert [one.returncode for one in both] == [0, 0], told
    trained = [
        line
        for _, err in told
        for line in err.splitlines()
        if line.startswith("train.learning_rate=")
    ]
    assert (
        len(trained) == len(set(trained)) and 4 <= len(trained) <= 5
    )  # both may begin the last one
    found = json.loads(told[0][0])["trials"] + json.loads(told[1][0])["trials"]
    assert {f"{trial['run'].split('/')[-1]}" for trial in found} == {
        line.split(",")[0] for line in trained
    }


@pytest.mark.long
def test_machines_share_a_sweep_in_postgresql(tiny, tmp_path):
    """Three at once, each with a folder of its own, begin with a database that has no tables
    yet."""
    pytest.importorskip("optuna")
    server = pytest.importorskip("pgserver").get_server(tmp_path / "database")
    try:
        storage = ("--json", "--trials", "6", "--storage", server.get_uri())
        shared = [command(tiny, tmp_path / name / "s", *storage) for name in "abc"]
        all_ = [
            subprocess.Popen(one, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for one in shared
        ]
        told = [one.communicate(timeout=110) for one in all_]
    finally:
        server.cleanup()
    assert [one.returncode for one in all_] == [0, 0, 0], told
    outcomes = [json.loads(out) for out, _ in told]
    assert 6 <= len(outcomes[0]["trials"]) <= 8 and all(
        trial["state"] == "done" for trial in outcomes[0]["trials"]
    )
    assert [one["trials"] for one in outcomes] == [outcomes[0]["trials"]] * 3
    assert (
        len({trial["run"].split("/")[-3] for trial in outcomes[0]["trials"]}) > 1
    )  # more than one was at work


@contextlib.contextmanager
def postgresql(folder: Path) -> Iterator[str]:
    """A server of the system's PostgreSQL on loopback; its address."""
    homes = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    found = str(homes[-1] / "initdb") if homes else shutil.which("initdb")
    if found is None:
        pytest.skip("no server of PostgreSQL here: apt-get install postgresql")
    if os.geteuid() == 0:  # which a server refuses to be
        try:
            user: dict[str, Any] = {"user": pwd.getpwnam("postgres").pw_name, "group": "postgres"}
        except KeyError:
            pytest.skip("a server does not run as root, and there is no user postgres")
        shutil.chown(folder, "postgres", "postgres")
    else:
        user = {}
    programs = Path(found).parent
    data = folder / "data"
    begin = [programs / "initdb", "-D", data, "-U", "me", "--auth=trust", "--no-sync"]
    subprocess.run(begin, check=True, stdout=subprocess.DEVNULL, cwd=folder, **user)
    port = free_port()
    run = [programs / "postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", folder]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(run, stderr=log, cwd=folder, **user)
    try:
        while "ready to accept connections" not in (folder / "log").read_text():
            assert server.poll() is None, (folder / "log").read_text()
            time.sleep(0.1)
        yield f"postgresql://me@127.0.0.1:{port}/postgres"
    finally:
        server.send_signal(signal.SIGINT)  # a fast shutdown
        server.wait(60)


@pytest.mark.long
def test_two_workers_share_a_sweep_in_the_systems_postgresql(tiny, tmp_path):
    """Over TCP, with one folder; what they made is not made again."""
    pytest.importorskip("optuna")
    pytest.importorskip("psycopg")
    # Not below the folders of pytest, which only their owner may enter.
    with tempfile.TemporaryDirectory(prefix="pg") as home, postgresql(Path(home)) as url:
        words = command(tiny, tmp_path / "s", "--json", "--trials", "5", "--storage", url)
        pipe = subprocess.PIPE
        workers = [subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True) for _ in range(2)]
        told = [worker.communicate(timeout=110) for worker in workers]
        again = subprocess.run(words, capture_output=True, text=True)
    assert [worker.returncode for worker in workers] == [0, 0], told
    begun = [
        [line.split(",")[0] for line in err.splitlines() if line.startswith("train.learning_rate=")]
        for _, err in told
    ]
    assert all(begun), "both were at work"
    assert not set(begun[0]) & set(begun[1])
    trials = [json.loads(out)["trials"] for out, _ in told]
    names = [trial["run"].split("/")[-1] for trial in trials[0]]
    assert sorted(names) == sorted(begun[0] + begun[1]) and 5 <= len(names) <= 6
    assert {trial["state"] for trial in trials[0]} == {"done"}
    assert trials[0] == trials[1] == json.loads(again.stdout)["trials"]
    assert "train.learning_rate=" not in again.stderr  # nothing was trained


def test_the_lowest_error_rate_is_the_best():
    trials = [
        Trial({"train.learning_rate": name}, name, "done", score)
        for name, score in (("a", 0.2), ("b", 0.1))
    ]
    best = [Outcome(score, trials).best for score in ("cer", "accuracy")]
    assert [trial and trial.run for trial in best] == ["b", "a"]


def test_a_storage_that_cannot_be_used_is_one_line(tiny, tmp_path):
    pytest.importorskip("optuna")
    for url in ("nonsense://x", f"sqlite:///{tmp_path}/no/such/folder/s.db"):
        with pytest.raises(InputError, match="--storage: the storage cannot be used"):
            sweep(
                maker(tiny),
                [Axis("train.learning_rate", ("0.1",))],
                tmp_path / "s",
                make_reporter=Teller(),
                storage=url,
            )
    url = "postgresql://me:secret@nowhere.invalid/s"
    with pytest.raises(
        InputError,
        match=r"got postgresql://me:\*\*\*@nowhere\.invalid/s: .*regard\[postgres\]",
    ):
        sweep(
            maker(tiny),
            [Axis("train.learning_rate", ("0.1",))],
            tmp_path / "s",
            make_reporter=Teller(),
            storage=url,
        )


def test_a_grid_in_a_storage_is_still_the_whole_grid(tiny, tmp_path):
    axes = [axis("train.learning_rate=0.01,0.001,0.02"), axis("decoder.dropout=0.0,0.1")]
    outcome = sweep(
        maker(tiny),
        axes,
        tmp_path / "s",
        make_reporter=Teller(),
        storage=f"sqlite:///{tmp_path / 's.db'}",
    )
    assert len(outcome.trials) == 6 and all(trial.state == "done" for trial in outcome.trials)


def test_a_model_that_cannot_be_built_is_a_trial_that_failed(tiny, tmp_path):
    make = maker([*tiny, "decoder.attention=dot", "decoder.shared=false"])
    outcome = sweep(make, [axis("decoder.width=24,8")], tmp_path / "s", make_reporter=Teller())
    assert sorted(trial.state for trial in outcome.trials) == ["done", "failed"]


def test_a_full_disk_ends_a_sweep_and_fails_no_trial(tiny, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(bundle, "write_tensors", full)
        with pytest.raises(NoRoomError, match="no space left on the disk"):
            sweep(
                maker(tiny),
                [axis("train.learning_rate=0.01")],
                tmp_path / "s",
                make_reporter=Teller(),
            )
    outcome = sweep(
        maker(tiny), [axis("train.learning_rate=0.01")], tmp_path / "s", make_reporter=Teller()
    )
    assert [trial.state for trial in outcome.trials] == ["done"]


def test_what_was_found_is_not_replaced_by_who_found_it_taken():
    def one(rate: str, state: str, score: float | None) -> SimpleNamespace:
        return SimpleNamespace(
            user_attrs={TRIAL_KEY: asdict(Trial({"train.learning_rate": rate}, "", state, score))}
        )

    trials = [one("0.1", "done", 2.0), one("0.1", "elsewhere", None), one("0.01", "done", 9.0)]
    runs: Any = SimpleNamespace(score="perplexity")
    study: Any = SimpleNamespace(get_trials=lambda deepcopy: trials)
    known = _outcome(runs, study)
    assert known.best is not None and known.best.score == 2.0 and len(known.trials) == 2


def test_paths_are_values_and_nothing_is_none():
    assert axis("data.path=../a,../b").values == ("../a", "../b")
    with pytest.raises(InputError, match="no value to try"):
        axis("train.label_smoothing=,")


@pytest.mark.parametrize("content", ["{}", "[]", '{"recipe": [], "keys": []}'])
def test_a_record_that_is_damaged_is_said(tiny, tmp_path, content):
    (tmp_path / "sweep.json").write_text(content)
    with pytest.raises(BundleError, match="damaged: not the record of a sweep"):
        sweep(maker(tiny), [axis("train.learning_rate=0.01")], tmp_path, make_reporter=Teller())


@pytest.mark.parametrize("values", ["seed=1,1", "train.learning_rate=0.1,1e-1"])
def test_a_value_given_twice_is_refused(tiny, tmp_path, values):
    with pytest.raises(InputError, match="a value is given twice"):
        sweep(maker(tiny), [axis(values)], tmp_path / "s", make_reporter=Teller())


def test_runs_on_different_data_are_not_ranked(tiny, tmp_path):
    sweep(maker(tiny), [axis("train.learning_rate=0.01")], tmp_path / "s", make_reporter=Teller())
    lines = (tmp_path / "pairs.tsv").read_text().splitlines()
    (tmp_path / "pairs.tsv").write_text("\n".join(reversed(lines)))
    axes = [axis("train.learning_rate=0.01,0.02")]
    outcome = sweep(maker(tiny), axes, tmp_path / "s", make_reporter=Teller())
    assert outcome.is_mixed and outcome.best is None
    assert "the data changed between these runs" in table(outcome, None)


@pytest.mark.parametrize(
    "content", ['{"state": "done", "score": "good"}', "[]", '{"state": 5}', '{"score": NaN}']
)
def test_a_damaged_result_is_made_again(tiny, tmp_path, content):
    axes = [axis("train.learning_rate=0.01")]
    first = sweep(maker(tiny), axes, tmp_path / "s", make_reporter=Teller())
    (Path(first.trials[0].run) / "result.json").write_text(content)
    again = sweep(maker(tiny), axes, tmp_path / "s", make_reporter=Teller())
    assert again.trials[0].score == first.trials[0].score


def test_another_sweep_has_another_default_folder(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    changes = [word for change in tiny for word in ("--set", change)]
    command = ["train", "chat-gru", *changes, "--steps", "1"]
    assert cli.main([*command, "--sweep", "train.learning_rate=0.1"]) == 0
    assert cli.main([*command, "--sweep", "seed=1,2"]) == 0
    assert cli.main([*command, "--sweep", "seed=1,2,3"]) == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == [
        "chat-gru-sweep",
        "chat-gru-sweep-2",
    ]
    rows = capsys.readouterr().out.splitlines()
    head = [number for number, row in enumerate(rows) if "over seeds" in row][-1]
    assert rows[head].index("seeds", 20) + 5 == len(rows[head + 1])
