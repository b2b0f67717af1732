"""`/docs`: the API to read and to try out. Its scripts come from here: it works without the internet."""

from __future__ import annotations

from importlib.resources import files

from fastapi.openapi.docs import get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

PAGE = "/docs"
_ASSETS = ("swagger-ui.css", "swagger-ui-bundle.js", "favicon.png")
#: Everything that the page is made of.
PATHS = frozenset({PAGE, *(f"{PAGE}/{name}" for name in _ASSETS)})
_STATIC = files("fastapi_offline") / "static"
#: They change with the version of the package only.
_HEADERS = {"Cache-Control": "max-age=3600", "X-Content-Type-Options": "nosniff"}


async def page(request: Request) -> Response:
    # Relative addresses: the gateway may stand behind a path of a proxy.
    return get_swagger_ui_html(
        openapi_url="openapi.json",
        title=request.app.title,
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="docs/favicon.png",
        # Unset, the page sends the document's address to a validator of somebody else.
        swagger_ui_parameters={"validatorUrl": None, "tryItOutEnabled": True},
    )


async def asset(request: Request) -> Response:
    return FileResponse(str(_STATIC / request.url.path.rpartition("/")[2]), headers=_HEADERS)


routes: list[BaseRoute] = [
    Route(PAGE, page, include_in_schema=False),
    *(Route(f"{PAGE}/{name}", asset, include_in_schema=False) for name in _ASSETS),
]
