"""`/docs` works on a machine without the internet."""

from __future__ import annotations

import re
from urllib.parse import urljoin

import httpx


async def test_the_page_and_all_that_it_loads_come_from_here(client: httpx.AsyncClient) -> None:
    page = (await client.get("/docs")).text
    assert "://" not in page
    loaded = re.findall(r"""(?:src|href)=["']([^"']+)|url: '([^']+)'""", page)
    paths = {urljoin("/docs", attribute or document) for attribute, document in loaded}
    assert {"/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css", "/openapi.json"} <= paths
    for path in paths:
        assert (await client.get(path)).status_code == 200, path


async def test_the_page_tells_no_validator_elsewhere_about_us(client: httpx.AsyncClient) -> None:
    assert '"validatorUrl": null' in (await client.get("/docs")).text


async def test_nothing_else_of_the_package_is_served(client: httpx.AsyncClient) -> None:
    for path in ("/docs/redoc.standalone.js", "/docs/..%2f__init__.py", "/docs/"):
        assert (await client.get(path)).status_code == 404, path
