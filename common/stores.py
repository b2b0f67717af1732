"""Opens the store that the settings name. One of the project's two factories."""

from __future__ import annotations

from urllib.parse import urlsplit

from common.errors import SettingsError
from common.redis_store.store import RedisStore
from common.settings import Settings
from common.store import Store


def open_store(settings: Settings) -> Store:
    """Raises SettingsError for a URL whose scheme no adapter speaks."""
    match urlsplit(settings.redis_url).scheme:
        case "redis" | "rediss" | "unix":
            return RedisStore(settings)
        case scheme:
            raise SettingsError(f"IWL_REDIS_URL: no store speaks {scheme!r} (redis, rediss, unix)")
