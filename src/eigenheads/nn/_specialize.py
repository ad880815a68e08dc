"""One code object for each setting, so that compiled layers never fall back.

``torch.compile`` keeps what it compiled by the code object of the outermost function
and gives up, running that function uncompiled from then on, after eight versions of it.
A pursuit is unrolled, so each number of iterations is a version; and all layers
share one ``forward``. Here every number of iterations gets a copy of the function.
"""

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any


@cache
def specialized(function: Callable[..., Any], setting: int) -> Callable[..., Any]:
    """Return a copy of `function` with a code object of its own for `setting`.

    Examples
    --------
    >>> def double(x): return 2 * x
    >>> specialized(double, 3)(5), specialized(double, 3) is specialized(double, 3)
    (10, True)
    """
    assert isinstance(function, FunctionType)
    copy = FunctionType(
        function.__code__.replace(co_name=f"{function.__name__}_{setting}"),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__doc__ = function.__doc__
    return copy
