"""Odd environments and moments: one sentence and a status, never a traceback."""

import os
import subprocess
import sys

import pytest

from eigenheads.cli import main


def eigenheads(*arguments, shell="", **environment):
    command = f"exec {sys.executable} -m eigenheads {' '.join(arguments)} {shell}"
    return subprocess.run(
        ["sh", "-c", command],
        env=os.environ | environment,
        capture_output=True,
        timeout=120,
        check=False,
    )


def test_a_closed_output_is_no_error():
    done = eigenheads("list", shell=">&-")
    assert done.returncode == 0
    assert done.stderr == b""
    assert eigenheads("list", shell=">&- 2>&-").returncode == 0


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_is_no_verdict(unbuffered):
    reader, writer = os.pipe()
    os.close(reader)
    # Written line by line, the first line fails; otherwise what is left at the end.
    done = subprocess.run(
        [sys.executable, "-m", "eigenheads", "list"],
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=120,
        check=False,
    )
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == b""


def test_a_full_output_gets_one_sentence():
    done = eigenheads("list", shell="> /dev/full")
    assert done.returncode == 2
    assert b"No space left on device" in done.stderr
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NUMBA_NUM_THREADS", "0"),
        ("NUMBA_NUM_THREADS", "x"),
        ("MPLBACKEND", "nonsense"),
    ],
)
def test_a_wrong_variable_is_named(tmp_path, name, value):
    out = ["--preset", "smoke", "--out", str(tmp_path)]
    done = eigenheads("reproduce", "marion2025/fig4", *out, **{name: value})
    assert done.returncode == 2
    said = done.stderr.decode()
    assert said.startswith(f"eigenheads: environment: `{name}` must be ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_an_encoding_that_lacks_a_character_loses_nothing(tmp_path, encoding):
    out = ["--preset", "smoke", "--out", str(tmp_path)]
    arguments = ["reproduce", "marion2025/bayes", *out]
    done = eigenheads(*arguments, PYTHONIOENCODING=encoding)
    assert done.returncode == 0
    assert (tmp_path / "report.html").is_file()
    assert b"Report: " in done.stdout


def test_an_address_that_is_none_gets_one_sentence(tmp_path, capsys):
    pytest.importorskip("distributed")
    grid = ["--grid", "d=100", "--preset", "smoke", "--out", str(tmp_path)]
    dask = ["--backend", "dask", "--address"]
    for address in ("nonsense", "tcp://nonsense:x", "http://127.0.0.1:9/[x"):
        assert main(["sweep", "marion2025/fig4", *grid, *dask, address]) == 2
        # The plan of the sweep is printed before the cluster is looked for.
        plan, said = capsys.readouterr().err.splitlines()
        assert plan.startswith("marion2025/fig4 at preset smoke: ")
        assert said.startswith("eigenheads: sweep: `address` must be ")


def test_a_forged_plan_of_a_sweep_is_not_followed(tmp_path):
    arguments = ["sweep", "marion2025/bayes", "--seeds", "1", "--preset", "smoke"]
    arguments += ["--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    (plan,) = (tmp_path / "out").rglob("sweep.json")
    before = plan.read_bytes()
    assert b'"key": "marion2025/bayes"' in before
    plan.write_bytes(before.replace(b"marion2025/bayes", b"/etc"))
    assert main(arguments) == 0
    assert plan.read_bytes() == before


def test_options_of_robustness_are_checked_before_the_users_code(
    tmp_path, monkeypatch, capsys
):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "their_models.py").write_text(
        "from pathlib import Path\ndef trained():\n    Path('ran').touch()\n"
    )
    for options, name in (
        (["--attacks", "nonsense"], "attacks"),
        (["--budgets", "a"], "budgets"),
        (["--budgets", "-1"], "budgets"),
        (["--severities", "9"], "severities"),
        (["--corruptions", "x"], "corruptions"),
        (["--shares", "2"], "shares"),
        (["--batch-size", "0"], "batch_size"),
        (["--seed", "-1"], "seed"),
    ):
        assert main(["robustness", "their_models:trained", *options]) == 2
        assert f"`{name}` must be" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("place", ["at import", "in the function"])
@pytest.mark.parametrize("command", ["probe", "robustness"])
def test_users_code_that_exits_is_no_success(
    tmp_path, monkeypatch, capsys, command, place
):
    # Found: the command ended with the status of the user's code, and said nothing.
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    name = f"their_{command}_{place[:2]}"
    exits = "import sys\ndef model():\n    sys.exit(0)\n"
    exits += "sys.exit(0)\n" if place == "at import" else ""
    (tmp_path / f"{name}.py").write_text(exits)
    assert main([command, f"{name}:model"]) == 2
    assert "which raised SystemExit: 0" in capsys.readouterr().err


def test_a_traceback_has_its_own_status_and_no_control_characters(monkeypatch, capsys):
    import eigenheads_papers

    def broken():
        raise AssertionError("\x1b[2J")

    monkeypatch.setattr(eigenheads_papers, "experiment_keys", broken)
    assert main(["list"]) == 70
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "\x1b" not in said


def test_a_folder_with_an_escape_sequence_is_written_out(tmp_path, capsys):
    out = tmp_path / "a\x1b[2Jb"
    options = ["--preset", "smoke", "--out", str(out)]
    assert main(["reproduce", "marion2025/bayes", *options]) == 0
    assert main(["report", "--out", str(out)]) == 0
    assert (out / "report.html").is_file()
    said = capsys.readouterr()
    assert r"a\x1b[2Jb" in said.out
    assert "\x1b[2J" not in said.out + said.err


def test_an_interrupt_after_the_last_line_ends_in_its_sentence(monkeypatch, capsys):
    from eigenheads.cli import status

    def late(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(status, "run_app", late)
    assert main(["list"]) == 130
    assert "Interrupted." in capsys.readouterr().err
