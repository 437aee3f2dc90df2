"""Provider options among the strings that ORT hands over; the engine reads their values."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["PREFIX", "provider_options"]

PREFIX = "ep.vulkanep."
"""What ORT puts before a provider option's key in the session's configuration: the EP's name in lower case."""

# Not ours to read: `device_id` chooses among ORT's hardware devices, and ORT leaves it in the list.
_OF_ORT = frozenset({"device_id"})


def provider_options(entries: Mapping[str, str]) -> dict[str, str]:
    """The provider options among a session's configuration entries, without the prefix."""
    found = {key[len(PREFIX) :]: value for key, value in entries.items() if key.startswith(PREFIX)}
    return {key: value for key, value in found.items() if key not in _OF_ORT}
