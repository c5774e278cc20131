"""Where an estimator is described: the '?' of its HTML leads to its page of the reference."""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata


class DocumentedMixin:
    """An estimator whose HTML links to its page of the reference, where the address of the site is known.

    The address is that of the environment variable ``DKL_SITE`` (of a site that was built here, such as
    ``file:///home/me/dkl/build/reference``), else the URL that the installed distribution names as its documentation.
    """

    @property
    def _doc_link_module(self) -> str:
        # scikit-learn links estimators of this package: none where there is no page, and none of a user's own classes.
        return "dkl" if documentation() else ""

    @property
    def _doc_link_template(self) -> str:
        return f"{documentation()}/reference/api/dkl.{{name}}.html"

    def _doc_link_url_param_generator(self) -> dict[str, str]:
        return {"name": type(self).__name__}


def documentation() -> str:
    """The address of the site, without a slash at its end; empty where none is known."""
    return (os.environ.get("DKL_SITE") or _released()).rstrip("/")


@cache
def _released() -> str:
    """The URL of the documentation in the metadata of the installed distribution, if there is one."""
    try:
        urls = metadata("dkl").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    return next((url for label, _, url in (line.partition(", ") for line in urls) if label == "Documentation"), "")
