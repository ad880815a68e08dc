"""Stand-ins for generated code, so that the kernel templates are ordinary modules.

A generated module defines these names for one model, in place of the templates' import
of this module.
"""

from typing import Any

N_TOKENS = 1
N_PLANTED = 1
N_WEIGHTS = 1
N_AXES = N_PLANTED + N_WEIGHTS
N_LATENTS = 1
N_COMBINATIONS = 1
WORK_SIZE = 1
USES_OVERLAPS = True
ON_SPHERE = (True,)


def _generated(*_: Any) -> Any:
    raise NotImplementedError("Only modules that `Model` generates define this.")


_fixed_law = _draw_tokens = _times_scale = _generated
_project = _add_products = _add_gram = _generated
_add_outputs = _write_meetings = _add_gradient = _generated
_combination_weights = _loss_gradient = _generated
