"""Files as a stranger may leave them, and what a reader may answer to them."""

import copy
import json
import os
import re
import zipfile

from hypothesis import strategies as st

GRAMMAR = re.compile(r"[\w.() :/'-]+: `[^`]+`.* must .+; got .+\.(?: .+)?")
# A place, how many bytes are replaced there, and by what.
EDITS = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(0, 40), st.binary(max_size=40)),
    min_size=1,
    max_size=4,
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["\x1b[2J", "\ud800", "[/]", "≥", "reproduced", "../..", "/etc"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def check_sentence(error, part=""):
    """Check that an error is one printable sentence in our grammar, with `part`."""
    text = str(error)
    assert GRAMMAR.fullmatch(text), text
    assert text.isprintable(), text
    assert part in text, text


def edited(content, edits):
    """Return bytes with some of them replaced."""
    for place, count, new in edits:
        place %= len(content) + 1
        content = content[:place] + new + content[place + count :]
    return content


def places_in(document, way=()):
    """Yield the way to every value of a nested document, and to one that is new."""
    if isinstance(document, dict):
        yield (*way, "other")
        document = document.items()
    else:
        document = enumerate(document[:1]) if isinstance(document, list) else ()
    for key, value in document:
        yield (*way, key)
        yield from places_in(value, (*way, key))


def put(document, place, value):
    """Return a copy of a nested document with a value at one place."""
    changed = copy.deepcopy(document)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return changed


# --- Functions that return a change of a folder --------------------------------------


def with_value(name, *place, value):
    """Put a value at a place of a JSON file."""

    def change(folder):
        file = folder / name
        file.write_text(json.dumps(put(json.loads(file.read_text()), place, value)))

    return change


def with_pipe(name):
    """Replace a file by a pipe, which blocks its reader."""

    def change(folder):
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return change


def with_device(name):
    """Replace a file by one without an end."""

    def change(folder):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("/dev/zero")

    return change


def with_terabyte(name):
    """Enlarge a file, which takes no room on the disk."""

    def change(folder):
        with (folder / name).open("ab") as file:
            file.truncate(2**40)

    return change


def with_bomb(name):
    """Compress the members of an archive, which might be any size when unpacked."""

    def change(folder):
        with zipfile.ZipFile(folder / name) as archive:
            members = {member: archive.read(member) for member in archive.namelist()}
        with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, content in members.items():
                archive.writestr(member, content)

    return change
