"""The HTML view of an estimator links to its page in our documentation."""

from eigenheads import estimators
from eigenheads.estimators._parameters import link_to_documentation


def test_the_view_links_to_the_page_of_the_estimator():
    cls = estimators.RobustPCA
    try:
        link_to_documentation([cls, estimators.group_bags], "https://docs.example")
        page = cls()._repr_html_()
    finally:
        link_to_documentation([cls])
    name = "eigenheads.estimators.RobustPCA"
    assert f"https://docs.example/api/generated/{name}.html" in page


def test_without_a_home_there_is_no_link():
    link_to_documentation([estimators.RobustPCA], "")
    page = estimators.RobustPCA()._repr_html_()
    assert "api/generated" not in page
    assert "modules/generated" not in page  # scikit-learn's own pages
