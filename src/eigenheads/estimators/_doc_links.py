"""Links from scikit-learn's HTML view of our estimators to their documentation."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, metadata
from typing import Any

from sklearn.base import BaseEstimator

_PAGE = "api/generated/{estimator_module}.{estimator_name}.html"
# Stands in addresses of the project until it has a home.
_PLACEHOLDER = "OWNER"


def documentation_address(urls: Iterable[str]) -> str:
    """Return the address of the documentation among the URLs of a package, or nothing.

    Examples
    --------
    >>> documentation_address(["Source, https://a.org", "Documentation, https://b.org"])
    'https://b.org'
    >>> documentation_address(["Documentation, https://OWNER.github.io"])
    ''
    """
    for url in urls:
        label, _, address = url.partition(", ")
        if label == "Documentation" and _PLACEHOLDER not in address:
            return address.rstrip("/")
    return ""


def link_to_documentation(names: Iterable[object], address: str | None = None) -> None:
    """Let the HTML view of every estimator among these objects link to its page.

    Parameters
    ----------
    names
        Public objects of the package; those that are no estimators are left alone.
    address
        Address of the documentation; None means that of the package's metadata.
    """
    if address is None:
        try:
            address = documentation_address(
                metadata("eigenheads").get_all("Project-URL", [])
            )
        except PackageNotFoundError:
            address = ""
    for one in names:
        if isinstance(one, type) and issubclass(one, BaseEstimator):
            # scikit-learn links its own pages unless these names are set.
            cls: Any = one
            cls._doc_link_module = "eigenheads" if address else ""
            cls._doc_link_template = f"{address}/{_PAGE}"
