"""Opens the store that the settings name. One of the project's two factories."""

from __future__ import annotations

from urllib.parse import urlsplit

from common.errors import SettingsError
from common.redis_store.store import RedisStore
from common.settings import Settings
from common.store import Store


def open_store(settings: Settings) -> Store:
    """Raises SettingsError for a URL whose scheme no adapter speaks."""
    try:
        url = urlsplit(settings.redis_url)
        _ = url.port
    except ValueError:
        # Its own message quotes a part, which may be one of the password.
        raise SettingsError("IWL_REDIS_URL: not a URL; a password needs percent-encoding") from None
    match url.scheme:
        case "redis" | "rediss" | "unix":
            return RedisStore(settings)
        case _:
            raise SettingsError("IWL_REDIS_URL: give a URL that begins with redis://, rediss:// or unix://")
