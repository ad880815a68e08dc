"""Parts for packages that build on this one: errors, files, notebooks.

The package ``eigenheads-papers`` is made with these. An error names the call that the
user made and what to do; a file is whole or absent; threads report their progress.
"""

from eigenheads._checks import (
    Got,
    check_choice,
    check_count,
    check_flag,
    check_instance,
    check_items,
    check_number,
    check_path,
    escape_controls,
    fail,
)
from eigenheads._errors import (
    UsageError,
    for_workers,
    how_to_get,
    public_call,
    require,
)
from eigenheads._files import (
    check_gzip,
    check_regular,
    check_stored,
    read_arrays,
    remove_leftovers,
    write_arrays,
    write_atomically,
)
from eigenheads._notebook import format_number, html_table
from eigenheads._parallel import (
    advance,
    interrupted_between_blocks,
    n_threads,
    progress_view,
    reporting,
    weighing,
)
from eigenheads._rng import derived_seed, generator, torch_generator
from eigenheads._typing import FloatArray

__all__ = [
    "FloatArray",
    "Got",
    "UsageError",
    "advance",
    "check_choice",
    "check_count",
    "check_flag",
    "check_gzip",
    "check_instance",
    "check_items",
    "check_number",
    "check_path",
    "check_regular",
    "check_stored",
    "derived_seed",
    "escape_controls",
    "fail",
    "for_workers",
    "format_number",
    "generator",
    "how_to_get",
    "html_table",
    "interrupted_between_blocks",
    "n_threads",
    "progress_view",
    "public_call",
    "read_arrays",
    "remove_leftovers",
    "reporting",
    "require",
    "torch_generator",
    "weighing",
    "write_arrays",
    "write_atomically",
]
