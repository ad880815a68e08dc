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
# Folder of each distribution, and its package.
DISTRIBUTIONS = {
    "eigenheads": (ROOT, ROOT / "src" / "eigenheads"),
    "eigenheads_papers": (
        ROOT / "papers",
        ROOT / "papers" / "src" / "eigenheads_papers",
    ),
}
# Everything that the installed package needs beside its own modules.
SMOKE = """
import eigenheads
from eigenheads_papers.report import render_report
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
    """Return the source archive and the wheel that is built from it, of both."""
    made = {}
    for name, (project, _) in DISTRIBUTIONS.items():
        folder = tmp_path_factory.mktemp(name)
        build = (sys.executable, "-m", "hatchling", "build", "-d", folder)
        run(*build, "-t", "sdist", cwd=project)
        (source,) = folder.glob("*.tar.gz")
        with tarfile.open(source) as archive:
            archive.extractall(folder, filter="data")
        run(*build, "-t", "wheel", cwd=folder / source.name.removesuffix(".tar.gz"))
        (wheel,) = folder.glob("*.whl")
        made[name] = source, wheel
    return made


@pytest.mark.parametrize(
    ("name", "some"),
    [
        ("eigenheads", {"py.typed", "live/index.html", "datasets/texts.txt"}),
        ("eigenheads_papers", {"py.typed", "records/marion2025/fig4/record.json"}),
    ],
)
def test_the_wheel_has_every_file_of_the_package(archives, name, some):
    package = DISTRIBUTIONS[name][1]
    expected = {
        path.relative_to(package.parent).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {f"{name}/{file}" for file in some} < expected
    with zipfile.ZipFile(archives[name][1]) as archive:
        packed = {file for file in archive.namelist() if ".dist-info/" not in file}
    assert packed == expected


def test_the_source_archive_has_what_a_developer_needs(archives):
    source, _ = archives["eigenheads"]
    with tarfile.open(source) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "Makefile", "constraints.txt"} <= packed
    assert "tests/test_distribution.py" in packed
    assert "docs/papers/marion2025.md" in packed


def test_the_wheels_install_into_a_clean_environment_and_run(archives, tmp_path):
    home = tmp_path / "environment"
    venv.create(home, with_pip=False, symlinks=True)
    python, command = home / "bin" / "python", home / "bin" / "eigenheads"
    pip = (sys.executable, "-m", "pip", "--python", python)
    install = (*pip, "install", "--quiet", "--no-deps", "--no-index")
    run(*install, archives["eigenheads"][1], cwd=tmp_path)
    # Only the dependencies are borrowed: a path in a .pth file comes last, and its
    # own .pth files, such as that of an editable install, are not read.
    (site,) = home.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    alone = subprocess.run(
        [command, "reproduce", "marion2025/fig4", "--preset", "smoke"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert alone.returncode == 2
    assert alone.stderr == (
        "eigenheads: `reproduce` is a command of the package eigenheads-papers. "
        "Run `pip install eigenheads-papers`.\n"
    )
    run(*install, archives["eigenheads_papers"][1], cwd=tmp_path)
    assert run(python, "-c", SMOKE, cwd=tmp_path).startswith(str(site))
    assert run(command, "--version", cwd=tmp_path).strip() == __version__
    assert "marion2025/fig4" in run(command, "list", cwd=tmp_path).split()
    page = run(command, "live", "--no-browser", cwd=tmp_path).partition(": ")[2]
    assert "Watch attention learn" in Path(page.strip()).read_text("utf-8")
