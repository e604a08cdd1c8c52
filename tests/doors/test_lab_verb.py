"""What a person types at the lab, and what comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from regard import lab
from regard.cli import main
from regard.lab import experiment, orthogonal
from regard.lab.experiment import Claim, Report, Table, figure
from regard.pages.formulas import typeset


def one_line(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The message of a command that must fail for the person's own reason."""
    assert main(["lab", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("regard: ") and error.count("\n") == 1
    return error.removeprefix("regard: ").rstrip()


@pytest.mark.parametrize("words", [["lab"], ["lab", "--help"], ["lab", "--json"]])
def test_listing_is_instant(words: list[str]):
    """What makes it so: nothing heavy is imported for it (typer brings pydantic)."""
    heavy = "{'torch', 'numpy', 'matplotlib', 'regard.recipe'}"
    code = (
        f"import sys; from regard.cli import main; main({words}); "
        f"sys.exit(str({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "set()"


def test_the_experiments_are_listed_with_their_claims(capsys):
    assert main(["lab"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == lab.names()
    assert {
        "scores",
        "heads",
        "merged",
        "equivariance",
        "dense-map",
        "orthogonal",
        "statements",
    } <= set(lab.names())
    assert all(claim in line for claim, line in zip(lab.claims().values(), lines, strict=True))
    assert main(["lab", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"]: row["claim"] for row in rows} == lab.claims()


def test_an_experiment_tells_claims_measurements_verdicts_and_where_its_picture_is(
    tmp_path: Path, capsys
):
    assert main(["lab", "orthogonal", "--out", str(tmp_path / "new" / "folder")]) == 0
    told = capsys.readouterr().out
    assert told.startswith("orthogonal: Self-attention does not leave orthonormal inputs unchanged")
    assert "settings: seed=0, places=4, width=8, strength=1.0" in told
    assert (
        "the weight of a position on itself is e^s / (e^s + N - 1) (N = 4, s = 1)\n"
        "  expected  0.47537 ± 1e-10\n"
        "  measured  0.47537\n"
        "  holds\n"
    ) in told
    assert "          1  0.4754     0.1749         0.6058\n" in told
    folder = tmp_path / "new" / "folder"
    assert told.endswith(
        f"6 of 6 claims hold\nwrote {folder}/orthogonal.png, {folder}/orthogonal.svg\n"
    )
    assert {file.name for file in folder.iterdir()} == {"orthogonal.png", "orthogonal.svg"}
    assert (folder / "orthogonal.png").read_bytes().startswith(b"\x89PNG")
    assert "\x1b" not in told


def test_without_out_the_picture_goes_beside_the_runs(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["lab", "dense-map"]) == 0
    assert "wrote runs/lab/dense-map.png, runs/lab/dense-map.svg" in capsys.readouterr().out
    assert (tmp_path / "runs" / "lab" / "dense-map.svg").is_file()


def test_settings_are_changed_and_told(tmp_path: Path, capsys):
    words = [
        "lab",
        "orthogonal",
        "--out",
        str(tmp_path),
        "--set",
        "places=3",
        "--set",
        "strength=2",
    ]
    assert main(words) == 0
    assert "settings: seed=0, places=3, width=8, strength=2" in capsys.readouterr().out


def test_json_is_the_whole_report(tmp_path: Path, capsys):
    assert (
        main(["lab", "orthogonal", "--out", str(tmp_path), "--json", "--html", "--set", "places=3"])
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert told["experiment"] == "orthogonal" and told["holds"] is True
    assert told["settings"] == {"seed": 0, "places": 3, "width": 8, "strength": 1.0}
    assert told["claims"][0].keys() == {"text", "expected", "measured", "holds"}
    assert told["tables"][0]["columns"] == ["s = |x|^2", "a_nn", "a_nm", "|y - x| / |x|"]
    assert [Path(file).name for file in told["files"]] == [
        "orthogonal.png",
        "orthogonal.svg",
        "orthogonal.html",
    ]
    assert all(Path(file).is_file() for file in told["files"])


class Resources(HTMLParser):
    """What a page would load, and whether its elements are closed in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)
        self.loaded += [
            v
            for k, v in attrs
            if v and k.split(":")[-1] in ("src", "href") and not v.startswith(("#", "data:"))
        ]

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_needs_nothing_but_itself(tmp_path: Path, capsys):
    assert main(["lab", "dense-map", "--html", "--out", str(tmp_path)]) == 0
    assert "dense-map.html" in capsys.readouterr().out
    page = (tmp_path / "dense-map.html").read_text("utf-8")
    parsed = Resources()
    parsed.feed(page)
    assert parsed.loaded == [] and parsed.open == []
    page = page.replace("http://www.w3.org/2000/svg", "")  # of the script: a name, not an address
    assert "http://" not in page and "https://" not in page
    assert "<svg" in page and "data:image/png;base64" in page
    assert page.count("<math") > 3 and "kron" not in page.partition("<script")[0]
    assert "<td" in page and "vec(Y) = (A ⊗ W<sub>v</sub><sup>T</sup>) vec(X)" in page


def test_explain_tells_formula_and_settings_and_runs_nothing(capsys, monkeypatch):
    monkeypatch.setattr(orthogonal, "run", None)
    assert main(["lab", "orthogonal", "--explain"]) == 0
    told = capsys.readouterr().out
    assert "a_nn = e^s / (e^s + N - 1)" in told
    assert "  places=4      N, the number of inputs.\n" in told
    assert main(["lab", "orthogonal", "--explain", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["settings"]
    assert {"field": "places", "value": "4", "sentence": "N, the number of inputs."} in rows


def test_every_output_has_the_same_claim(tmp_path: Path, capsys):
    """The list, the report, --explain, --json and --html, for a claim of two lines of source."""
    claim = lab.claims()["dense-map"]
    assert claim.startswith("With its attention weights") and claim.endswith("multiples of W_v^T.")
    out = ("--out", str(tmp_path))

    def printed(*words: str) -> str:
        assert main(["lab", *words]) == 0
        return capsys.readouterr().out

    assert f"dense-map     {claim}\n" in printed()
    assert printed("dense-map", *out, "--html").startswith(f"dense-map: {claim}\nsettings: ")
    assert printed("dense-map", "--explain").startswith(f"dense-map: {claim}\n\nvec(X) ")
    assert json.loads(printed("dense-map", "--explain", "--json"))["claim"] == claim
    assert json.loads(printed("dense-map", *out, "--json"))["claim"] == claim
    page = (tmp_path / "dense-map.html").read_text("utf-8")
    assert "<title>dense-map · regard lab</title>" in page and "<h1>dense-map</h1>" in page
    assert f"<p>{typeset(claim)}</p>" in page


def refuted(_: object) -> Report:
    claims = (Claim("the sky is green", "green", "blue", False), Claim("1 is 1", "1", "1", True))
    table = Table("colours [bold]", ("what", "nm"), (("blue", float("nan")), ("[red]", None)))
    sheet = figure(2, 2)
    sheet.subplots()
    return Report(claims, (table,), sheet)


def test_a_claim_that_does_not_hold_exits_3(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setattr(orthogonal, "run", refuted)
    assert main(["lab", "orthogonal", "--out", str(tmp_path)]) == 3
    told = capsys.readouterr()
    assert "the sky is green\n  expected  green\n  measured  blue\n  DOES NOT HOLD\n" in told.out
    assert (
        "colours [bold]\n" in told.out and "[red]" in told.out
    )  # no markup in what experiments say
    assert "1 of 2 claims hold\n" in told.out and told.err == ""
    assert main(["lab", "orthogonal", "--out", str(tmp_path), "--json"]) == 3
    said = json.loads(capsys.readouterr().out)
    assert said["holds"] is False and said["tables"][0]["rows"] == [["blue", None], ["[red]", None]]


def test_help_tells_the_exit_codes(capsys):
    assert main(["lab", "--help"]) == 0
    assert "Exit codes: 0 every claim holds, 3 a claim does not hold, 2" in capsys.readouterr().out


def test_mistakes(tmp_path: Path, capsys):
    assert (
        one_line(capsys, "ortogonal")
        == 'lab: no such experiment; got "ortogonal"; did you mean "orthogonal"?'
    )
    assert one_line(capsys, "experiment").startswith('lab: no such experiment; got "experiment"; ')
    assert one_line(capsys, "../x").startswith('lab: no such experiment; got "../x"; known: ')
    out = ("--out", str(tmp_path))
    assert (
        one_line(capsys, "orthogonal", *out, "--set", "plcaes=3")
        == '--set: plcaes: no such field; got 3; did you mean "places"?'
    )
    assert (
        one_line(capsys, "orthogonal", *out, "--set", "places=many")
        == '--set: places: must be a whole number >= 2 and <= 64; got "many"'
    )
    assert (
        one_line(capsys, "orthogonal", *out, "--set", "width=3")
        == "--set: width must be at least places; got width = 3, places = 4"
    )
    assert one_line(capsys, "--set", "seed=1") == "--set needs an experiment; regard lab lists them"
    assert one_line(capsys, "--html") == "--html needs an experiment; regard lab lists them"
    assert list(tmp_path.iterdir()) == []


def test_two_mistakes_are_told_at_once(tmp_path: Path, capsys):
    assert (
        main(
            [
                "lab",
                "orthogonal",
                "--out",
                str(tmp_path),
                "--set",
                "places=1",
                "--set",
                "strenght=2",
            ]
        )
        == 2
    )
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "regard: --set: 2 things to fix" and len(told) == 3


def test_a_folder_that_cannot_be_written_is_told_before_the_experiment_runs(
    tmp_path: Path, capsys, monkeypatch
):
    monkeypatch.setattr(orthogonal, "run", None)
    file = tmp_path / "file"
    file.write_text("")
    assert one_line(capsys, "orthogonal", "--out", str(file)) == f"--out: not a folder; got {file}"
    assert (
        one_line(capsys, "orthogonal", "--out", str(file / "in")) == f"{file}/in: Not a directory"
    )
    monkeypatch.setattr("os.access", lambda _, mode: mode != os.W_OK)
    assert (
        one_line(capsys, "orthogonal", "--out", str(tmp_path))
        == f"--out: cannot write there; got {tmp_path}"
    )


def test_a_topic_is_answered_with_its_experiment(capsys):
    for word, name in [
        ("multihead", "heads"),
        ("Rotary", "positions"),
        ("taylor", "maclaurin"),
        ("bptt", "gradients"),
    ]:
        assert (
            one_line(capsys, word)
            == f'lab: no such experiment; got "{word}"; did you mean "{name}"?'
        )
    words = lab.synonyms()
    assert set(words.values()) == set(lab.names()) and not set(words) & {*lab.names(), lab.ALL}


def a_report(holds: bool, *notes: str) -> Report:
    claims = (
        Claim("one is one", "1", "1", True),
        Claim("one is two", "2", "1" if holds else "3", holds),
    )
    return Report(claims, (Table("numbers", ("n",), ((1,),)),), figure(), notes)


@pytest.fixture
def three(monkeypatch) -> None:
    """A lab of three experiments, of which each takes a moment."""
    monkeypatch.setattr(lab, "names", lambda: ["dense-map", "merged", "orthogonal"])


def test_all_runs_every_experiment_and_has_a_line_for_each(tmp_path: Path, capsys, three):
    assert main(["lab", "all", "--out", str(tmp_path), "--html", "--set", "seed=3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["dense-map", "merged", "orthogonal"]
    assert all(
        line.split()[2] == "of" and line.endswith(" s") and "claims hold" in line
        for line in lines[:-1]
    )
    assert lines[-1] == f"3 of 3 experiments hold; figures in {tmp_path}"
    written = {
        f"{name}.{kind}"
        for name in ("dense-map", "merged", "orthogonal")
        for kind in ("png", "svg", "html")
    }
    assert {file.name for file in tmp_path.iterdir()} == written


def test_one_of_all_that_does_not_hold_is_named_and_exits_3(
    tmp_path: Path, capsys, three, monkeypatch
):
    monkeypatch.setattr(orthogonal, "run", lambda _: a_report(False, "the machine is busy"))
    assert main(["lab", "all", "--out", str(tmp_path)]) == 3
    told = capsys.readouterr().out
    assert "orthogonal  1 of 2 claims hold" in told
    assert (
        "  DOES NOT HOLD: one is two; expected 2, measured 3\n  note: the machine is busy\n" in told
    )
    assert told.endswith(f"2 of 3 experiments hold; figures in {tmp_path}\n")
    assert main(["lab", "all", "--out", str(tmp_path), "--json"]) == 3
    rows = json.loads(capsys.readouterr().out)
    verdicts = [(row["experiment"], row["holds"]) for row in rows]
    assert verdicts == [("dense-map", True), ("merged", True), ("orthogonal", False)]
    assert rows[2]["notes"] == ["the machine is busy"]


def test_all_is_refused_before_anything_runs(tmp_path: Path, capsys, three, monkeypatch):
    monkeypatch.setattr(orthogonal, "run", None)
    out = ("--out", str(tmp_path))
    assert one_line(capsys, "all", *out, "--set", "strength=3").startswith(
        "--set: strength: no such field; got 3; "
    )
    assert (
        one_line(capsys, "all", "--explain")
        == "--explain is for one experiment; regard lab lists them"
    )
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "orthogonal.svg").write_text("mine")
    assert str(tmp_path / "orthogonal.svg") in one_line(capsys, "all", *out)
    assert [file.name for file in tmp_path.iterdir()] == ["orthogonal.svg"]


def test_progress_is_told_now_and_then_where_there_is_no_terminal(
    tmp_path: Path, capsys, monkeypatch
):
    def slow(_) -> Report:
        experiment.progress("training", 1, 4)
        return a_report(True)

    monkeypatch.setattr(orthogonal, "run", slow)
    assert main(["lab", "orthogonal", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("regard.cli.lab.QUIET_SECONDS", 0)
    assert main(["lab", "orthogonal", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err == "  orthogonal: training, 25%\n"
    experiment.progress("nobody watches", 1, 4)


def test_times_of_a_busy_machine_come_with_a_note(tmp_path: Path, capsys, monkeypatch):
    words = [
        "lab",
        "quadratic",
        "--out",
        str(tmp_path),
        "--html",
        "--set",
        "lengths=[3, 5, 7]",
        "--set",
        "repeats=1",
    ]
    monkeypatch.setattr("os.getloadavg", lambda: (1000.0, 0.0, 0.0))
    assert main(words) == 0
    assert "\nnote: the machine is busy (" in capsys.readouterr().out
    assert "the machine is busy (" in (tmp_path / "quadratic.html").read_text("utf-8")
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))  # one call each: no spread
    assert main(words) == 0
    assert "the machine is busy" not in capsys.readouterr().out
