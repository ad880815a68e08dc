"""Commands of the command line, and those that other packages add."""

import inspect
from importlib.metadata import entry_points
from typing import Annotated

import typer

from eigenheads import __version__
from eigenheads._errors import UsageError
from eigenheads.cli._models import probe_command, robustness_command
from eigenheads.cli.status import EXIT_STATUSES, say

# Commands of the package eigenheads-papers, which is installed on its own.
OF_PAPERS = (
    "demo",
    "list",
    "describe",
    "reproduce",
    "report",
    "sweep",
    "train",
    "evaluate",
)
GROUP = "eigenheads.commands"

app = typer.Typer(
    name="eigenheads",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help=(
        "Attention heads as statistical estimators: look inside a trained model, "
        "reproduce the claims of papers, and compare theory with simulation.\n\n"
        "Start with [bold]eigenheads demo[/], or [bold]eigenheads list[/] and then "
        "[bold]eigenheads reproduce marion2025/fig4[/]."
    ),
    epilog=EXIT_STATUSES,
)


class NotInstalled(UsageError, RuntimeError):
    """Error: a command belongs to a package that is not installed."""


def _show_version(is_asked: bool) -> None:
    if is_asked:
        print(__version__)
        raise typer.Exit


# A callback without code gives the program itself the option --version.
@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    pass


def live_command(
    browser: Annotated[
        bool,
        typer.Option(help="Open the page in a web browser, or only print its path."),
    ] = True,
) -> None:
    """Open the live page, which simulates training of attention in the browser.

    The page works offline, from the file system.
    """
    from eigenheads.live import live_page, open_live_page

    say(f"Live page: {live_page()}")
    if browser and not open_live_page():
        say("No web browser could be started. Open this file in one.")


def _add_commands() -> None:
    """Add the commands of other packages, then our own."""
    names = set()
    for point in entry_points(group=GROUP):
        try:
            add = point.load()
        except ModuleNotFoundError as error:
            # A package that was removed may leave its entry point behind.
            if error.name != point.module.partition(".")[0]:
                raise
            continue
        add(app)
        names.add(point.name)
    if "papers" not in names:
        for name in OF_PAPERS:
            # Any arguments are accepted, so that the sentence comes in every case.
            settings = {"ignore_unknown_options": True, "allow_extra_args": True}
            hidden = app.command(name, hidden=True, context_settings=settings)
            hidden(_missing_command)
    app.command("probe")(probe_command)
    app.command("robustness")(robustness_command)
    app.command("live")(live_command)
    # Typer shows docstrings with their line breaks; help texts should flow instead.
    for command in app.registered_commands:
        command.help = _flowing(getattr(command.callback, "__doc__", "") or "")


def _missing_command(context: typer.Context) -> None:
    """Say which package has this command."""
    raise NotInstalled(
        f"`{context.info_name}` is a command of the package "
        "eigenheads-papers. Run `pip install eigenheads-papers`."
    )


def _flowing(text: str) -> str:
    """Join the lines of paragraphs; Rich wraps them to the width of the terminal."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    # An indented paragraph is a list of examples, whose line breaks must stay.
    return "\n\n".join(
        paragraph if paragraph.startswith(" ") else " ".join(paragraph.split())
        for paragraph in paragraphs
    )


_add_commands()
