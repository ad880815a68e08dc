"""Parts for packages that build on this one: errors, files, threads, notebooks.

The package ``eigenheads-papers`` is made with these. An error names the call that the
user made and what to do; a file is whole or absent; threads report their progress.
"""

from eigenheads._checks import (
    Got,
    check_callable,
    check_choice,
    check_count,
    check_flag,
    check_instance,
    check_items,
    check_number,
    check_numbers,
    check_path,
    check_positive,
    check_text,
    escape_controls,
    fail,
    shown,
)
from eigenheads._errors import (
    UsageError,
    UsageRuntimeError,
    call_as,
    for_workers,
    public_call,
)
from eigenheads._extras import how_to_get, missing, require
from eigenheads._files import (
    MAX_ARRAYS,
    arrays_digest,
    check_gzip,
    check_regular,
    check_stored,
    read_arrays,
    remove_leftovers,
    write_arrays,
    write_atomically,
)
from eigenheads._notebook import NotebookBar, format_number, html_table, is_notebook
from eigenheads._parallel import (
    RunPool,
    advance,
    blocks,
    interrupted_between_blocks,
    n_threads,
    reporting,
    threads,
    weighing,
)
from eigenheads._rng import derived_seed, generator, stream, torch_generator
from eigenheads._typing import FloatArray

__all__ = [
    "MAX_ARRAYS",
    "FloatArray",
    "Got",
    "NotebookBar",
    "RunPool",
    "UsageError",
    "UsageRuntimeError",
    "advance",
    "arrays_digest",
    "blocks",
    "call_as",
    "check_callable",
    "check_choice",
    "check_count",
    "check_flag",
    "check_gzip",
    "check_instance",
    "check_items",
    "check_number",
    "check_numbers",
    "check_path",
    "check_positive",
    "check_regular",
    "check_stored",
    "check_text",
    "derived_seed",
    "escape_controls",
    "fail",
    "for_workers",
    "format_number",
    "generator",
    "how_to_get",
    "html_table",
    "interrupted_between_blocks",
    "is_notebook",
    "missing",
    "n_threads",
    "public_call",
    "read_arrays",
    "remove_leftovers",
    "reporting",
    "require",
    "shown",
    "stream",
    "threads",
    "torch_generator",
    "weighing",
    "write_arrays",
    "write_atomically",
]
