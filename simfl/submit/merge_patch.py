"""Merging of a patch into a manifest of Kubernetes: JSON merge patch, with lists of named items merged by name.

Mappings are merged key by key, and null deletes a key (RFC 7396). Lists of mappings that all have a name, such as
containers and worker groups, are merged by it, as in Kubernetes' strategic merge; other lists are replaced.
"""

from __future__ import annotations

from typing import Any

KEYS = ("name", "groupName", "key")  # of items of lists


def merged(content: Any, patch: Any) -> Any:
    """Return `content` with the patch merged into it; neither is changed."""
    if isinstance(patch, dict):
        before = content if isinstance(content, dict) else {}
        found = {**before, **{key: merged(before.get(key), value) for key, value in patch.items()}}
        return {key: value for key, value in found.items() if not (key in patch and patch[key] is None)}
    if isinstance(patch, list) and (key := _key_of(patch)) and isinstance(content, list) and _key_of(content) == key:
        changes = {item[key]: item for item in patch}
        kept = [merged(item, changes.pop(item[key], {})) for item in content]
        return [*kept, *(merged({}, item) for item in changes.values())]
    return patch


def _key_of(items: list[Any]) -> str | None:
    """Return the key that names each item; None if they have no names."""
    return next((key for key in KEYS if items and all(isinstance(one, dict) and key in one for one in items)), None)
