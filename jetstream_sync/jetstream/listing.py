"""Listings of the JetStream API, and what is missing in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, overload

from .. import errors

S = TypeVar("S")
T = TypeVar("T")


class Listing(Sequence[T]):
    """
    The streams, consumers, buckets or objects of a listing, sorted by name.

    A listing is incomplete if the server names items whose state is not known: their servers do not
    reply, or cannot run them. Iterating over an incomplete listing raises `IncompleteListingError` after
    the last known item. ``len()``, slices and comparisons raise it too, and so does ``in`` for an item
    that is not found. With ``allow_incomplete=True`` the call that returned the listing was told that the
    known items are enough, and nothing raises.
    """

    __slots__ = ("_allow_incomplete", "_items", "_kind", "_unnamed", "missing", "offline")

    def __init__(
        self,
        items: list[T],
        kind: str,
        missing: Mapping[str, str],
        offline: Mapping[str, str],
        unnamed: int,
        allow_incomplete: bool,
    ) -> None:
        self._items = items
        self._kind = kind
        self._unnamed = unnamed
        self._allow_incomplete = allow_incomplete
        self.missing: Mapping[str, str] = dict(sorted(missing.items()))
        """The names of the items whose state is not known, each with the reason."""
        self.offline: Mapping[str, str] = dict(sorted(offline.items()))
        """Those of `missing` that a server has but cannot run, each with the server's reason."""

    @property
    def is_complete(self) -> bool:
        """Whether the listing has every item that the server counted."""
        return not (self.missing or self._unnamed)

    def check(self) -> None:
        """
        Raise if an item is missing, also with ``allow_incomplete=True``.

        Raises:
            IncompleteListingError: the state of some items is not known; the error names them.

        """
        if not self.is_complete:
            raise errors.IncompleteListingError(self._kind, self.missing, self._unnamed)

    def _parts(self) -> tuple[list[T], int, bool]:
        return self._items, self._unnamed, self._allow_incomplete

    def _require_all(self) -> None:
        if not self._allow_incomplete:
            self.check()

    def __iter__(self) -> Iterator[T]:
        yield from self._items
        self._require_all()

    def __len__(self) -> int:
        self._require_all()
        return len(self._items)

    def __bool__(self) -> bool:
        return bool(self._items) or len(self) > 0

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice) or not -len(self._items) <= index < len(self._items):
            self._require_all()
        return self._items[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, Listing)):
            return NotImplemented
        return list(self) == list(other)

    __hash__: ClassVar[None]  # type: ignore[assignment]

    def __repr__(self) -> str:
        missing = f", missing={self.missing!r}" if self.missing else ""
        return f"Listing({self._items!r}{missing})"


def selected(
    listing: Listing[T], kind: str, prefix: str, select: Callable[[T], S | None]
) -> Listing[S]:
    """Return what a function returns for each item, and the missing names with a prefix."""
    items, unnamed, allow_incomplete = listing._parts()  # noqa: SLF001 - of this module
    chosen = [made for made in map(select, items) if made is not None]
    missing, offline = (
        {
            name.removeprefix(prefix): reason
            for name, reason in names.items()
            if name.startswith(prefix)
        }
        for names in (listing.missing, listing.offline)
    )
    return Listing(chosen, kind, missing, offline, unnamed, allow_incomplete)


class Pages:
    """The items of a list, in the order of the server, and what the server says of the others."""

    def __init__(self) -> None:
        #: The items by name.
        self.items: dict[str, Any] = {}
        #: Names of items without a known state -> why it is not known.
        self.missing: dict[str, str] = {}
        #: The missing ones that a server cannot run -> its reason.
        self.offline: dict[str, str] = {}
        #: Number of items that the server counted and did not name.
        self.short = 0

    def count(self) -> int:
        """Return the number of items that the server named."""
        return len(self.items) + len(self.missing)

    def add(self, response: Mapping[str, Any], items: str, route: str) -> int:
        """Add the items of a page, and return the number of different items in it."""
        # "missing" lists the names whose info was unavailable. An item whose servers are all offline
        # is both in it and in the list, with a state of zeros.
        page = {name_of(item, items, route): item for item in listed(response, items, route)}
        names = listed(response, "missing", route) if "missing" in response else []
        offline = response.get("offline") or {}
        if not isinstance(offline, dict):
            raise errors.InvalidResponseError(f"{route} answered with offline={offline!r:.60}")
        reasons = {name: str(reason) for name, reason in offline.items()}
        for name in (name_of(name, "missing", route) for name in names):
            reasons.setdefault(
                name, "its servers are offline" if name in page else "its servers did not reply"
            )
        for name, item in page.items():
            if name not in reasons:
                self.items.setdefault(name, item)
                self.missing.pop(name, None)
        for name, reason in reasons.items():
            if name not in self.items:
                self.missing[name] = reason
                if name in offline:
                    self.offline[name] = reason
        return len(page.keys() | reasons.keys())


def listed(response: Mapping[str, Any], items: str, route: str) -> list[Any]:
    """Return the list that a reply has under a key; ``null`` is an empty one."""
    found = response.get(items, response)
    if found is None:
        return []
    if not isinstance(found, list):
        shown = f"{found!r:.60}" if items in response else "nothing"
        raise errors.InvalidResponseError(f"{route}: expected a list of {items}, got {shown}")
    return found


def name_of(item: Any, items: str, route: str) -> str:
    """Return the name of a list item: the item itself, its ``name``, or its config's ``name``."""
    # An unreachable consumer has an empty name, and the name in its config.
    name = item
    if isinstance(item, dict):
        config = item.get("config")
        name = item.get("name") or (config.get("name") if isinstance(config, dict) else None)
    if not isinstance(name, str) or not name:
        raise errors.InvalidResponseError(f"{route}: one of the {items} has no name: {item!r:.60}")
    return name
