"""What a person types to know what a model costs, and what comes back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import build, disk, recipe
from regard.budget.closed_form import supported
from regard.bundle import create, put_weights
from regard.cli import main
from regard.tokenizers import Characters
from regard.weights import tensors

SPEC = (
    "vocabulary=30000,encoder=12,decoder=8,width=1024,heads=4,head_width=192,ffn_width=512,tied=all"
)


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["budget", *words]) == 0
    return capsys.readouterr().out


def one_line(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The message of a command that must fail for the person's own reason."""
    assert main(["budget", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("regard: ") and error.count("\n") == 1
    return error.removeprefix("regard: ").rstrip()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that was never trained."""
    folder = tmp_path / "run"
    folder.mkdir()
    of = recipe.load("chat-transformer", ["encoder.width=16", "tokenizer.kind=characters"])
    tokenizer = Characters("abcdefg")
    create(folder, of, tokenizer)
    put_weights(folder, tensors(build.model(of, vocabulary=tokenizer.size)))
    return folder


@pytest.mark.parametrize(
    "words",
    [["chat-transformer", "--memory", "1GB"], ["--transformer", SPEC], ["chat-lstm", "--json"]],
)
def test_it_is_instant_as_no_weights_are_built(words: list[str]):
    """What makes it so: torch is not imported."""
    heavy = "{'torch', 'numpy', 'matplotlib', 'tokenizers'}"
    code = f"import sys; from regard.cli import main; main({['budget', *words]}); "
    code += f"sys.exit(str({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "set()"


def test_a_recipe_as_a_table_with_what_the_words_mean(capsys):
    said = told(capsys, "chat-transformer", "--vocabulary", "3000")
    assert said.startswith(
        "chat-transformer\nB = 32 (batch size), S = 64 (source length), T = 64 (target length), "
    )
    cells = [line.split() for line in said.splitlines()]
    header = "parameters forward training decode step depth activations State"
    total = "total 2,656,440 5,709,496,320 17,279,877,120 1,706,496 616 135.6 MB 393.2 kB"
    assert header.split() in cells and total.split() in cells
    assert ["FLOPs", "11,418,992,640", "34,559,754,240", "3,412,992"] in cells
    for line in (
        "prefill         69,206,016 multiplications per row",
        (
            "decode step     1,706,496 multiplications at this position, "
            "768 more for each earlier token"
        ),
        "State           393.2 kB per row at this position, 3.1 kB more per token",
        "FLOPs            2 x multiplications: one multiplication and one addition each",
        "prefill          all work for one row before its first token: encoder, keys and values",
        "decode step      one token of one row, at position t = T",
    ):
        assert f"{line}\n" in said
    assert "depth            longest chain of dependent operations" in said
    assert "peak training memory" in said
    assert "note" not in said and "\x1b" not in said


def test_a_state_that_does_not_grow_says_so(capsys):
    said = told(capsys, "chat-lstm")
    assert "multiplications at this position, the same at every position\n" in said
    assert "State           2.0 kB per row at this position, constant\n" in said
    assert (
        "note            V = 4,000 is the most the tokenizer may make; --vocabulary gives another\n"
        in said
    )


def test_formulas_in_symbols_and_in_numbers(capsys):
    said = told(capsys, "chat-transformer", "--formulas")
    assert (
        "encoder self-attention  (N = 2, D = 192, H = 3, K = 64)\n"
        "  parameters: N (4 D^2 + 4 D)\n"
        "    = 2·(4·192^2 + 4·192)\n"
        "    = 296,448\n"
        "  forward: N (4 B S D^2 + 2 B S^2 D)\n"
        "    = 2·(4·32·64·192^2 + 2·32·64^2·192)\n"
        "    = 704,643,072\n"
    ) in said
    assert "  bytes of State per token: 8 N D\n    = 8·2·192\n    = 3,072\n" in said
    assert "memory, in bytes\n  weights: 4 P\n    = 4·2,849,440\n" in said


def test_from_numbers_alone(capsys):
    said = told(capsys, "--transformer", SPEC)
    assert "total                            139,994,112  " in said
    assert "note            nothing tied and with an output bias: 201,464,112 parameters\n" in said
    for shape in (
        "32 x 2,048\n",
        "32 x 2,048 x 1,024\n",
        "32 x 4 x 2,048 x 192\n",
        "32 x 4 x 2,048 x 2,048\n",
    ):
        assert shape in said
    assert "32 x 2,048 x 512\n" in said and "  B x T x V       32 x 2,048 x 30,000\n" in said
    other = SPEC.replace("tied=all", "tied=none,output_bias=true")
    assert json.loads(told(capsys, "--transformer", other, "--json"))["parameters"] == 201_464_112


def test_cells_and_attention_from_numbers(capsys):
    lstm = json.loads(
        told(
            capsys,
            "--lstm",
            "width=7,inputs=5,layers=2",
            "--length",
            "11",
            "--batch",
            "3",
            "--json",
        )
    )
    assert lstm["parameters"] == sum(p.numel() for p in torch.nn.LSTM(5, 7, 2).parameters())
    assert lstm["multiplications"]["forward"] == 3 * 11 * 4 * 7 * ((5 + 7) + (7 + 7))
    gru = json.loads(told(capsys, "--gru", "width=7", "--length", "11", "--json"))
    assert gru["parameters"] == sum(p.numel() for p in torch.nn.GRU(7, 7).parameters())
    said = told(
        capsys, "--attention", "width=512,heads=8", "--length", "1024", "--batch", "1", "--formulas"
    )
    assert "  forward: 4 B L D^2 + 2 B L^2 D\n" in said
    assert f"    = {4 * 1024 * 512**2 + 2 * 1024**2 * 512:,}\n" in said


def test_json_for_programs(capsys):
    made = json.loads(told(capsys, "chat-attention", "--json", "--vocabulary", "3000"))
    assert {"parameters", "multiplications", "flops", "memory", "depth", "parts"} <= made.keys()
    assert made["parameters"] == sum(part["parameters"] for part in made["parts"])
    assert made["flops"] == {name: 2 * count for name, count in made["multiplications"].items()}
    assert made["multiplications"].keys() == {"forward", "training", "start", "token", "growth"}
    assert {"training", "inference", "activations", "state", "state_token"} <= made["memory"].keys()
    assert made["sizes"] == {"B": 32, "S": 64, "T": 64, "V": 3000}
    assert made["parts"][0]["formulas"]["parameters"] == {"symbols": "V D", "numbers": "3,000·256"}


def test_what_fits(capsys):
    said = told(capsys, "chat-transformer", "--memory", "1GB", "--vocabulary", "3000")
    assert (
        "in 1GB fit\n"
        "  training      a batch of 203 at these lengths, or a length of 407 at batch 32\n" in said
    )
    made = json.loads(
        told(capsys, "chat-transformer", "--memory", "1GB", "--vocabulary", "3000", "--json")
    )
    assert made["fits"]["training"] == {"batch": 203, "length": 407}
    assert "  training      no batch, or no length\n" in told(
        capsys, "chat-transformer", "--memory", "1MB"
    )
    learned = ("--set", "encoder.positions=learned")
    assert "a length of 65 (its positions end there) at batch 1\n" in told(
        capsys, "chat-transformer", "--memory", "8GB", "--batch", "1", "--length", "8", *learned
    )


def test_a_width_is_proposed(capsys):
    said = told(capsys, "chat-transformer", "--fit", "parameters=5M")
    assert (
        "fits            width 264, in steps of 8: "
        "regard train chat-transformer --set encoder.width=264 " in said
    )
    made = json.loads(told(capsys, "chat-transformer", "--fit", "parameters=5M", "--json"))
    assert made["fit"] == {"width": 264} and 4_800_000 < made["parameters"] <= 5_000_000


def test_terms_and_the_picture(tmp_path: Path, capsys):
    file = tmp_path / "cost.png"
    said = told(capsys, "chat-transformer", "--terms", "3", "--plot", str(file))
    assert "the same at every position" in said and "constant" in said
    assert (
        f"wrote {file}; 3 Maclaurin terms need fewer multiplications from length 2,491 on\n" in said
    )
    assert file.read_bytes().startswith(b"\x89PNG")
    drawn = tmp_path / "cost.svg"
    assert f"wrote {drawn}\n" in told(capsys, "--lstm", "width=8", "--plot", str(drawn))
    assert "<svg" in drawn.read_text()
    made = json.loads(
        told(capsys, "--attention", "width=64,heads=4", "--plot", str(file), "--json")
    )
    assert made["crossover"] > 0 and made["plot"] == str(file)


def test_a_run_knows_its_vocabulary_and_its_parameters(run: Path, capsys):
    said = told(capsys, str(run))
    assert "V = 11 (vocabulary)" in said
    count = sum(
        t.numel()
        for name, t in safetensors.torch.load_file(run / "model.safetensors").items()
        if name != "idf"
    )
    assert (
        f"note            model.safetensors has {count:,} parameters, as the formulas say\n" in said
    )
    (run / "model.safetensors").unlink()
    missing = f"{run}/model.safetensors: a file is missing"
    assert one_line(capsys, str(run)) == missing
    files = disk.manifest(run)
    del files["model.safetensors"]  # as before the first validation
    disk.write_json(run / disk.MANIFEST, {"format": disk.FORMAT, "files": files})
    assert "note            no weights yet; the figures are the recipe's\n" in told(
        capsys, str(run)
    )


@pytest.mark.parametrize(
    "name", ["recipe.json", "tokenizer.json", "model.safetensors", "manifest.json"]
)
def test_a_damaged_run_is_one_line(run: Path, capsys, name: str):
    file = run / name
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    assert one_line(capsys, str(run)).startswith(f"{file}: damaged: ")
    file.unlink()
    missing = "holds no recipe.json" if name == "recipe.json" else f"{file}: a file is missing"
    assert missing in one_line(capsys, str(run))


def test_pictures_and_labels(tmp_path: Path, capsys):
    said = told(capsys, "image-pool", "--memory", "1GB")
    sizes = "B = 32 (batch size), S = 49 (positions of the grid), T = 1 (target length), "
    assert f"{sizes}C = 10 (labels)\n" in said
    assert (
        "note            C = 10 labels is a guess, the data decides; --labels gives another\n"
        in said
    )
    fits = said.partition("in 1GB fit\n")[2].splitlines()[:3]
    assert all(line.endswith(" at these lengths") for line in fits)  # the lengths are not free
    assert one_line(capsys, "image-pool", "--plot", str(tmp_path / "x.png")) == (
        "--plot: its lengths are fixed: there is nothing to plot against; got image-pool"
    )
    assert one_line(capsys, "image-pool", "--fit", "parameters=1M") == (
        "image-pool: no part of it has a width that could be fitted"
    )
    assert "regard train sentiment-cnn --set encoder.width=48\n" in told(
        capsys, "sentiment-cnn", "--fit", "parameters=1M"
    )


def test_what_has_no_closed_form_is_counted(capsys, monkeypatch):
    fields = {name: kinds for name, kinds in supported.FIELDS.items() if name != "encoder"} | {
        "encoder": {}
    }
    monkeypatch.setattr(supported, "FIELDS", fields)
    words = ("chat-gru", "--set", "encoder.width=8", "--length", "3", "--batch", "2")
    reason = 'chat-gru: no closed form yet for encoder.kind = "recurrent"'
    assert one_line(capsys, *words) == f"{reason}; with --count it is counted by running it"
    assert one_line(capsys, *words, "--count", "--memory", "1GB").startswith(reason)
    said = told(capsys, *words, "--count")
    made = json.loads(told(capsys, *words, "--count", "--json"))
    assert said.startswith(reason) and f"{made['parameters']:,}" in said
    assert {"parameters", "multiplications", "flops", "memory", "depth", "parts"} <= made.keys()
    monkeypatch.undo()
    closed = json.loads(told(capsys, *words, "--json"))
    assert made["parameters"] == closed["parameters"]
    assert made["multiplications"].items() <= closed["multiplications"].items()


def test_counting_proves_the_formulas(run: Path, capsys):
    said = told(capsys, str(run), "--count", "--batch", "2", "--length", "5")
    lines = said.partition("counted by running")[2].splitlines()[1:6]
    names = ["parameters", "forward", "prefill", "decode step", "training"]
    assert [line[2:24].rstrip() for line in lines] == names
    assert all(line.endswith("  equal") for line in lines)
    made = json.loads(
        told(capsys, "chat-gru", "--set", "encoder.width=8", "--count", "--length", "3", "--json")
    )
    assert made["counted"]["forward"] == made["multiplications"]["forward"]


def test_a_config_of_huggingface(tmp_path: Path, capsys):
    file = tmp_path / "config.json"
    sizes = {"vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
    file.write_text(
        json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]} | sizes)
    )
    for name in (str(file), str(tmp_path)):  # the file, or the folder it is in
        said = told(capsys, name, "--length", "1024")
        assert (
            said.startswith(f"{file}: GPT2LMHeadModel\n")
            and "total                   124,439,808  " in said
        )
        assert "State           75.5 MB per row at this position, 73.7 kB more per token\n" in said
        assert (
            "note            training is counted as 3 x forward; "
            "activations and depth are not known" in said
        )
    assert json.loads(told(capsys, str(file), "--json"))["depth"] == {}


def test_memory_of_a_config_of_huggingface(tmp_path: Path, capsys):
    """Of code that is not ours activations are not known; weights and key/value cache are."""
    file = tmp_path / "config.json"
    sizes = {"vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
    file.write_text(json.dumps({"model_type": "gpt2"} | sizes))
    said = told(capsys, str(file), "--memory", "8GB")
    assert (
        "in 8GB fit\n"
        "  weights       yes, 497.8 MB\n"
        "  decoding      a batch of 1,589 at these lengths, "
        "or a length of 1,024 (its positions end there) at batch 32\n"
        "  training      depends on the activations, which are not known for a config.json: "
        "2.0 GB without them\n"
    ) in said
    made = json.loads(told(capsys, str(file), "--memory", "8GB", "--json"))
    cache = made["memory"]["state"]
    assert (8 * 10**9 - made["memory"]["weights"]) // cache == 1589
    assert made["fits"] == {"decoding": {"batch": 1589, "length": 1024}} and made["weights_fit"]

    said = told(capsys, str(file), "--memory", "1GB")
    assert "  training      no: 2.0 GB without activations\n" in said
    said = told(capsys, str(file), "--memory", "100MB")
    assert "  weights       no, 497.8 MB\n  decoding      no batch, or no length\n" in said

    sizes = {"hidden_size": 6, "num_hidden_layers": 2, "num_attention_heads": 3}
    sizes |= {"vocab_size": 11, "intermediate_size": 7, "max_position_embeddings": 64}
    file.write_text(json.dumps({"model_type": "bert"} | sizes))  # keeps no State
    said = told(capsys, str(file), "--memory", "8GB")
    assert (
        "  weights       yes, " in said and "decoding" not in said.partition("in 8GB fit")[2][:99]
    )
    assert one_line(capsys, str(file), "--memory", "lots").startswith(
        '--memory: must be an amount above 0, as in 8GB; got "lots"; '
    )


def test_several_mistakes_have_a_line_each(capsys):
    assert main(["budget", "--transformer", "vocabulry=3,width=8,heads=2,encoder=1"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "regard: --transformer: 3 things to fix",
        "  vocabulary: missing; must be a whole number >= 1 and <= 1,048,576",
        "  decoder: missing; must be a whole number >= 0 and <= 4,096",
        '  vocabulry: no such number; got 3; did you mean "vocabulary"?',
    ]


def test_mistakes(tmp_path: Path, capsys):
    one = "a recipe, a run, a config.json, or one of --transformer, --lstm, --gru, --attention"
    assert one_line(capsys) == f"needs one model; {one}"
    assert (
        one_line(capsys, "chat-lstm", "--gru", "width=3")
        == f"needs one model; got chat-lstm and --gru; {one}"
    )
    limit = "must be a whole number >= 1 and <= 1,073,741,824"
    assert (
        one_line(capsys, "chat-lstm", "--source-length", "-3") == f"source length: {limit}; got -3"
    )
    assert one_line(capsys, "chat-lstm", "--batch", "0") == f"batch: {limit}; got 0"
    assert one_line(capsys, "chat-lstm", "--vocabulary", "-1") == f"vocabulary: {limit}; got -1"
    assert (
        one_line(capsys, "chat-lstm", "--length", "3", "--source-length", "4")
        == "--length sets both lengths; leave out --source-length and --target-length"
    )
    assert one_line(capsys, "chat-lstmm") == (
        'no such recipe, run or config; got chat-lstmm; did you mean "chat-lstm"?'
    )
    assert one_line(capsys, "--attention", "width=10,heads=3") == (
        "--attention: heads must divide width, or give head_width too; got heads = 3, width = 10"
    )
    assert one_line(capsys, "--lstm", "width=3,width=4") == "--lstm: width: given twice"
    assert (
        one_line(capsys, "--lstm", "width")
        == '--lstm: numbers have the form name=value,name=value; got "width"'
    )
    assert (
        one_line(capsys, "--lstm", "width=x")
        == '--lstm: width: must be a whole number >= 1 and <= 1,048,576; got "x"'
    )
    assert (
        one_line(capsys, "--transformer", f"{SPEC},heds=3")
        == '--transformer: heds: no such number; got 3; did you mean "heads"?'
    )
    nothing = SPEC.replace("encoder=12,decoder=8", "encoder=0,decoder=0")
    assert one_line(capsys, "--transformer", nothing) == (
        "--transformer: encoder and decoder are both 0: there is nothing to count"
    )
    assert (
        one_line(capsys, "--gru", "width=3", "--terms", "3")
        == "--terms is for attention; got --gru"
    )
    assert one_line(capsys, "chat-lstm", "--terms", "3") == (
        "chat-lstm: --terms is for Transformers; got encoder.kind = recurrent"
    )
    assert (
        one_line(capsys, "--gru", "width=3", "--fit", "parameters=5")
        == "--fit is for recipes; got --gru"
    )
    assert (
        one_line(capsys, "chat-lstm", "--fit", "depth=5")
        == '--fit: has the form parameters=5M; got "depth=5"'
    )
    assert one_line(capsys, "chat-lstm", "--fit", "parameters=5") == (
        "--fit: a width of 8 already has more parameters; got 5; use a smaller vocabulary"
    )
    assert one_line(capsys, "chat-lstm", "--memory", "some") == (
        '--memory: must be an amount above 0, as in 8GB; got "some"; '
        "units: KB, MB, GB, TB, KiB, MiB, GiB"
    )
    assert (
        one_line(capsys, "chat-lstm", "--plot", "x.pdf")
        == "--plot: must end in .png or .svg; got x.pdf"
    )
    assert one_line(capsys, "chat-lstm", "--plot", str(tmp_path / "no" / "x.png")) == (
        f"--plot: no such folder; got {tmp_path / 'no'}"
    )
    missing = tmp_path / "config.json"
    no_such = f"no such recipe, run or config; got {missing}"
    assert one_line(capsys, str(missing)) == f"{no_such}; regard recipes list names the recipes"
    near = tmp_path / "cofnig.json"
    near.write_text("{}")
    assert one_line(capsys, str(missing)) == f'{no_such}; did you mean "{near}"?'
    assert one_line(capsys, str(tmp_path)) == (
        f"{tmp_path}: neither a run nor a Hugging Face model; "
        "the folder holds no recipe.json and no config.json"
    )
    missing.write_text('{"model_type": "xglm"}')
    assert one_line(capsys, str(missing)).startswith(
        f"{missing}: model_type: no such family, or not one with a closed form; "
        'got "xglm"; known: bart, bert, '
    )
    missing.write_text('{"model_type": "vit"}')
    assert one_line(capsys, str(missing), "--memory", "1GB").endswith(
        "hidden_size: missing; must be a whole number >= 1"
    )
    assert one_line(capsys, str(missing), "--set", "a=b") == (
        "a config.json fixes its own sizes; got --set a=b; only lengths and batch may be given"
    )
    assert (
        one_line(capsys, str(missing), "--terms", "3")
        == f"--terms is for recipes and numbers; got {missing}"
    )
    assert (
        one_line(capsys, str(missing), "--fit", "parameters=3") == f"needs a recipe; got {missing}"
    )


WORDS = st.lists(
    st.sampled_from(
        [
            "chat-lstm",
            "chat-transformer",
            "--length",
            "--batch",
            "--memory",
            "--fit",
            "--terms",
            "--json",
            "--formulas",
            "--lstm",
            "--attention",
            "width=3",
            "width=8,heads=2",
            "parameters=1M",
            "3",
            "-1",
            "0",
            "1GB",
            "",
            "99999999",
        ]
    ),
    max_size=5,
)


@settings(max_examples=60, deadline=None)
@given(words=WORDS)
def test_whatever_is_typed_ends_well(words: list[str]):
    assert main(["budget", *words]) in (0, 2)
