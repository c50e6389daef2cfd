"""The chat page: one file, with its own style and script, which reaches nothing but this server."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

from starlette.responses import Response


class Page:
    """The page, with a policy that lets browsers run nothing but what stands in it."""

    def __init__(self) -> None:
        self._content = resources.files("ggplug_models.serve").joinpath("page.html").read_bytes()
        style, script = (_digests(tag, self._content) for tag in (b"style", b"script"))
        self._headers = {
            "Content-Security-Policy": (
                f"default-src 'none'; style-src {style}; script-src {script}; connect-src 'self'; img-src data:; "
                "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
            ),
            "Cache-Control": "no-cache",
        }

    async def response(self) -> Response:
        """The answer to a request for it."""
        return Response(self._content, media_type="text/html", headers=self._headers)


def _digests(tag: bytes, content: bytes) -> str:
    """The digests of what stands between these tags, as a policy names them."""
    found = re.findall(rb"<%s>(.*?)</%s>" % (tag, tag), content, re.DOTALL)
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(each).digest()).decode()}'" for each in found)
