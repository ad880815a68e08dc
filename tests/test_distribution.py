"""What a user installs: built from the source archive, complete, and it runs."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from eigenheads import __version__

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "eigenheads"
# Everything that the installed package needs beside its own modules.
SMOKE = """
import eigenheads
from eigenheads.report import render_report
from eigenheads.datasets import SingleLocation
from eigenheads.theory import LocationLandscape

assert "<table" in render_report([])
landscape = LocationLandscape(SingleLocation(d=10**6), inverse_temperature=0.01)
assert 0 < landscape.risk(kappa=1.0, nu=1.0) < 1
print(eigenheads.__file__)
"""


def run(*command, cwd):
    # The source tree must not be found by chance.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    shown = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    return shown.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """Return the source archive and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    build = (sys.executable, "-m", "hatchling", "build", "-d", folder)
    run(*build, "-t", "sdist", cwd=ROOT)
    (source,) = folder.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    run(*build, "-t", "wheel", cwd=folder / source.name.removesuffix(".tar.gz"))
    (wheel,) = folder.glob("*.whl")
    return source, wheel


def test_the_wheel_has_every_file_of_the_package(archives):
    _, wheel = archives
    expected = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"eigenheads/py.typed", "eigenheads/live/index.html"} < expected
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == expected


def test_the_source_archive_has_what_a_developer_needs(archives):
    source, _ = archives
    with tarfile.open(source) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "Makefile", "constraints.txt"} <= packed
    assert "tests/test_distribution.py" in packed
    assert "docs/papers/marion2025.md" in packed


def test_the_wheel_installs_into_a_clean_environment_and_runs(archives, tmp_path):
    _, wheel = archives
    home = tmp_path / "environment"
    venv.create(home, with_pip=False, symlinks=True)
    python, command = home / "bin" / "python", home / "bin" / "eigenheads"
    install = ("install", "--quiet", "--no-deps", "--no-index", wheel)
    run(sys.executable, "-m", "pip", "--python", python, *install, cwd=tmp_path)
    # Only the dependencies are borrowed: a path in a .pth file comes last, and its
    # own .pth files, such as that of an editable install, are not read.
    (site,) = home.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    assert run(python, "-c", SMOKE, cwd=tmp_path).startswith(str(site))
    assert run(command, "--version", cwd=tmp_path).strip() == __version__
    assert "marion2025/fig4" in run(command, "list", cwd=tmp_path).split()
    page = run(command, "live", "--no-browser", cwd=tmp_path).partition(": ")[2]
    assert "Watch attention learn" in Path(page.strip()).read_text("utf-8")
