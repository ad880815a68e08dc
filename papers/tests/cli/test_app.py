"""The command line as a user meets it."""

import os
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

import eigenheads
from eigenheads.cli import main
from eigenheads_papers import experiment_keys, reproduce

KEY = "marion2025/bayes"
COMMAND = [sys.executable, "-m", "eigenheads"]


def test_list_prints_one_key_a_line_when_piped(capsys):
    assert main(["list"]) == 0
    assert capsys.readouterr().out.split() == experiment_keys()


def test_reproduce_prints_claims_and_the_report_then_reuses(tmp_path, capsys):
    arguments = ["reproduce", KEY, "--preset", "smoke", "--out", str(tmp_path)]
    assert main(arguments) == 0
    shown = capsys.readouterr()
    assert "excess over Bayes at the largest d" in shown.out
    assert "≤ 0.002" in shown.out
    assert "ours: -0.5 ±" in shown.out
    assert "held" in shown.out
    assert f"Report: {tmp_path / 'report.html'}" in shown.out
    assert (tmp_path / "report.html").is_file()
    assert "stored on" not in shown.err
    assert main(arguments) == 0
    shown = capsys.readouterr()
    today = datetime.now(UTC).date().isoformat()
    assert f"(stored on {today} by version {eigenheads.__version__})" in shown.err
    assert "--force computes them again" in shown.out


def test_a_verdict_against_the_record_is_exit_status_1(tmp_path, capsys, monkeypatch):
    import dataclasses

    from eigenheads_papers.marion2025 import bayes

    broken = dataclasses.replace(
        bayes.experiments[0],
        presets={"smoke": bayes.Params(n_samples=50, sharpness_exponent=-0.1)},
    )
    monkeypatch.setattr(bayes, "experiments", (broken,))
    arguments = ["reproduce", "marion2025/bayes", "--preset", "smoke"]
    assert main([*arguments, "--out", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert "on record: held" in shown.out
    assert "differ from the record" in shown.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["reproduce", "marion2025/fig44"], "Did you mean 'marion2025/fig4'?"),
        (["reproduce", "marion"], "Did you mean 'marion2025'?"),
        (["reproduce", KEY, "--preset", "papr"], "Did you mean 'paper'?"),
        (
            ["reproduce", KEY, "--seed", "-1"],
            "`seed` must be an integer from 0 to 9223372036854775807; got -1",
        ),
        (["reproduce", KEY, "--jobs", "0"], "`jobs` must be an integer >= 1; got 0"),
        (["reproduce", KEY, "--out", "/dev/null/x"], "a folder that can be written"),
        (["reproduce"], "Missing argument"),
        (["reproduce", KEY, "--fast"], "No such option: --fast"),
        (["reproduce", KEY, "--sede", "1"], "--sede. Did you mean --seed"),
        (["reproduce", KEY, "--seed", "x"], "`eigenheads reproduce --help` lists"),
        (["demo", "--preset", "dmo"], "demo: `preset` must be one of"),
        (["reprodce"], "No such command 'reprodce'"),
        (["report", "--out", "/dev/null/x"], "a folder with results"),
        (["report", "--preset", "dmo"], "Did you mean 'demo'?"),
        (["sweep", "marion2025/fig44"], "Did you mean 'marion2025/fig4'?"),
        (["sweep"], "Missing argument 'EXPERIMENT'"),
        (["sweep", "marion2025/fig4", "--grid", "dd=1"], "Did you mean 'd'?"),
        (["sweep", "marion2025/fig4", "--grid", "d"], "`grid` must be NAME=VALUES"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(
    arguments, sentence, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("eigenheads: ")
    assert sentence in shown.err
    assert len(shown.err.strip().splitlines()) == 1
    assert "Traceback" not in shown.err
    assert not list(tmp_path.rglob("*.safetensors"))


def test_an_empty_folder_is_not_the_current_one(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", KEY, "--preset", "smoke", "--out", ""]) == 2
    assert "must be the path of a folder; got ''" in capsys.readouterr().err
    with pytest.raises(ValueError, match="reproduce: `out` must be the path of a fold"):
        reproduce(KEY, preset="smoke", out="")
    assert not list(tmp_path.iterdir())


def test_a_key_that_is_like_none_gets_no_suggestion(capsys):
    assert main(["describe", "../../etc/passwd"]) == 2
    assert "Did you mean" not in capsys.readouterr().err
    assert main(["describe", "marion/fig4"]) == 2
    assert "Did you mean 'marion2025/fig4'" in capsys.readouterr().err


def test_a_damaged_result_is_named_with_exit_status_2(tmp_path, capsys):
    arguments = ["reproduce", KEY, "--preset", "smoke", "--out", str(tmp_path)]
    assert main(arguments) == 0
    (table,) = tmp_path.rglob("table.safetensors")
    table.write_bytes(b"nonsense")
    capsys.readouterr()
    assert main(arguments) == 2
    assert str(table) in capsys.readouterr().err
    assert main(["report", "--out", str(tmp_path)]) == 2
    assert str(table) in capsys.readouterr().err
    assert main([*arguments, "--force"]) == 0


def test_a_full_disk_is_one_line(monkeypatch, tmp_path, capsys):
    import eigenheads_papers._store as store

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write_arrays", full)
    arguments = ["reproduce", KEY, "--preset", "smoke", "--out", str(tmp_path)]
    assert main(arguments) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert not list(tmp_path.rglob("manifest.json"))


@pytest.mark.parametrize(
    "command", [[], ["demo"], ["reproduce"], ["report"], ["list"], ["sweep"]]
)
def test_help_explains_itself(command, capsys):
    assert main([*command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Usage: eigenheads" in shown
    if command == ["reproduce"]:
        for option in ("--preset", "--seed", "--out", "--jobs", "--force"):
            assert option in shown


def test_sweep_prints_the_means(tmp_path, capsys):
    arguments = ["sweep", "marion2025/fig4", "--preset", "smoke", "--seeds", "2"]
    arguments += ["--grid", "d=80,1e9", "--grid", "n_steps=500,1000", "--jobs", "1"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert "2 d × 2 n_steps, 2 seeds each, 8 cells." in shown.err
    assert "nu_squared" in shown.out
    assert "Cells computed: 8; stored before: 0." in shown.out
    assert b"= 1/2" in next(tmp_path.rglob("map.svg")).read_bytes()
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    assert "Cells computed: 0; stored before: 8." in capsys.readouterr().out


def test_sweep_without_a_grid_says_what_it_does_and_what_could_vary(tmp_path, capsys):
    arguments = ["sweep", "marion2025/fig4", "--preset", "smoke", "--seeds", "1"]
    assert main([*arguments, "--jobs", "1", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().err
    assert "one point, 1 seed, 1 cell. Without --grid nothing varies" in told
    assert "--grid d=" in told


def test_long_work_is_announced_and_short_work_is_not(capsys):
    from eigenheads_papers.report import ProgressDisplay

    with ProgressDisplay() as listener:
        listener.begin(1000.0)
        listener.estimate(59.0)
        assert capsys.readouterr().err == ""
        listener.estimate(600.0)
        assert "Estimated time: 10 min on two cores." in capsys.readouterr().err


def test_no_arguments_show_the_help(capsys):
    assert main([]) == 2
    assert "reproduce" in capsys.readouterr().out


def test_version(capsys):
    from eigenheads import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


def test_ctrl_c_leaves_everything_consistent_and_says_how_to_go_on(tmp_path):
    arguments = [
        "reproduce",
        "marion2025/fig3b",
        "marion2025/fig4",
        "--out",
        str(tmp_path),
    ]
    running = subprocess.Popen(
        [*COMMAND, *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with running:
        deadline = time.monotonic() + 120
        while not list(tmp_path.rglob("manifest.json")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(running.pid, signal.SIGINT)
        _, shown = running.communicate(timeout=60)
    assert running.returncode == 130
    assert b"To continue: python -m eigenheads reproduce" in shown
    assert b"Traceback" not in shown
    (manifest,) = tmp_path.rglob("manifest.json")
    assert "fig3b" in str(manifest)
    assert main(["report", "--out", str(tmp_path)]) == 0


def test_paragraphs_of_help_flow_and_examples_keep_their_lines():
    from eigenheads.cli._app import _flowing, app

    text = "First.\n\n    One line\n    and more.\n\n      a b\n      c d\n    "
    assert _flowing(text) == "First.\n\nOne line and more.\n\n  a b\n  c d"
    texts = [command.help for command in app.registered_commands]
    assert all(texts)
    assert len(texts) == 11


def test_an_internal_error_shows_a_traceback_and_status_70(monkeypatch, capsys):
    def broken(*arguments, **options):
        raise ValueError("not a mistake of the caller")

    monkeypatch.setattr("eigenheads_papers.report.write_report", broken)
    assert main(["report"]) == 70
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert "ValueError: not a mistake of the caller" in error
    assert error.endswith("internal error. Please report the traceback above.\n")


def test_the_help_lists_the_exit_statuses(capsys):
    assert main(["--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for status in ("0 all verdicts", "1 a verdict", "2 a mistake", "70 an internal"):
        assert status in shown


def test_describe_shows_meaning_presets_and_time(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["describe", "marion2025/fig4"]) == 0
    shown = capsys.readouterr().out
    assert "dimension of the tokens" in shown
    assert "Columns of the table: " in shown
    # The time of the committed run, which changes with it.
    assert re.search(r"estimated: smoke \d+ s, demo \d+ (s|min), paper \d+", shown)


def test_settings_and_figures_of_reproduce(tmp_path, capsys):
    options = ["--preset", "smoke", "--set", "d=300", "--figure", "png"]
    key = "marion2025/large_lambda"
    assert main(["reproduce", key, *options, "--out", str(tmp_path)]) == 0
    (figure,) = tmp_path.glob(f"{key}/*/figure.png")
    assert figure.read_bytes().startswith(b"\x89PNG")
    # Rich breaks the sentence into lines.
    shown = " ".join(capsys.readouterr().out.split())
    assert "not the paper's setting" in shown
    assert "contradicted" not in shown
    assert main(["reproduce", key, "--set", "lambda=3"]) == 2
    assert "Did you mean 'inverse_temperature'?" in capsys.readouterr().err


@pytest.fixture
def my_module(tmp_path, monkeypatch):
    """The skeleton of the documentation as a module of the current folder."""
    skeleton = Path(__file__).parents[3] / "docs" / "developer" / "experiment.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_module.py").write_text(skeleton.read_text())
    yield tmp_path
    sys.modules.pop("my_module", None)


def test_an_experiment_of_the_user_works_in_every_command(my_module, capsys):
    source, key = "my_module:experiments", "author2026/fig1"
    assert main(["list", source]) == 0
    assert capsys.readouterr().out == f"{key}\n"
    assert main(["describe", source]) == 0
    shown = capsys.readouterr().out
    assert "Run it: eigenheads reproduce my_module:experiment --preset demo" in shown
    arguments = ["reproduce", source, "--preset", "smoke", "--figure", "pdf"]
    assert main(arguments) == 0
    assert "largest standardised mean of all runs" in capsys.readouterr().out
    assert list(Path("results").glob(f"{key}/smoke-*/figure.pdf"))
    page = Path("results/report.html").read_text("utf-8")
    assert "Means of normal samples concentrate" in page
    assert "eigenheads reproduce my_module:experiment --preset smoke --seed 0" in page
    assert '<h2 id="author2026">author2026</h2>' in page
    # The file is compared by its bytes; a stored result says how it was made.
    assert main(arguments) == 0
    version = re.escape(eigenheads.__version__) + r"\+\w{10}"
    assert re.search(rf"stored on .* by version {version}\)", capsys.readouterr().err)
    assert main([*arguments, "--force"]) == 0
    assert "stored on" not in capsys.readouterr().err
    # A folder alone imports nothing: without the module, its results are not shown.
    assert main(["report"]) == 2
    assert "without a matching one" in capsys.readouterr().err
    assert main(["report", source]) == 0
    grid = ["--grid", "n_samples=10,100", "--seeds", "2", "--preset", "smoke"]
    assert main(["sweep", source, *grid, "--jobs", "1"]) == 0
    assert "Cells computed: 4; stored before: 0." in capsys.readouterr().out


def test_workers_find_the_module_of_the_user(my_module):
    call = ["sweep", "my_module:experiment", "--preset", "smoke", "--seeds", "2"]
    done = subprocess.run(
        [*COMMAND, *call, "--grid", "n_samples=10,20", "--jobs", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Cells computed: 4" in done.stdout


def test_an_error_of_the_users_code_is_one_line_that_names_the_place(my_module, capsys):
    path = my_module / "my_module.py"
    path.write_text(path.read_text().replace("rng.standard_normal(", "rng.normale(", 1))
    assert main(["reproduce", "my_module:experiment", "--preset", "smoke"]) == 2
    shown = capsys.readouterr().err
    assert re.search(
        r"reproduce: author2026/fig1 raised AttributeError: .*"
        r"\(my_module\.py, line \d+\)\.",
        shown,
    )
    assert "Traceback" not in shown
