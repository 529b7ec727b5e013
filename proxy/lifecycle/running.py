"""Which requests run now, and whose they are, so that one of them can be named from outside.

Knows ids and keys' digests, never keys, texts or engines. Ids that clients choose may repeat: all requests
of an id are meant by it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field

from fastapi import Request

__all__ = ["Running", "Ticket", "owner_of"]


def owner_of(request: Request) -> bytes:
    """Whose a request is: the digest of the key that it shows; the same for all that show none."""
    shown = request.headers.get("authorization", "").strip()
    return hashlib.blake2b(shown.encode("utf-8", "surrogatepass"), digest_size=16).digest()


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """One running request. `choices`: ids of its generations; none where nothing of it can be stopped."""

    request_id: str
    owner: bytes = field(repr=False)
    choices: tuple[str, ...]


class Running:
    """The requests that run now."""

    def __init__(self) -> None:
        self._tickets: dict[str, list[Ticket]] = {}

    def __len__(self) -> int:
        return sum(len(tickets) for tickets in self._tickets.values())

    def enter(self, request: Request, choices: tuple[str, ...]) -> Ticket:
        """Note a request that begins. `leave` must follow."""
        ticket = Ticket(str(request.scope["desist.request_id"]), owner_of(request), choices)
        self._tickets.setdefault(ticket.request_id, []).append(ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Forget a request. More than once is fine."""
        left = [each for each in self._tickets.get(ticket.request_id, ()) if each is not ticket]
        if left:
            self._tickets[ticket.request_id] = left
        else:
            self._tickets.pop(ticket.request_id, None)

    def name_for(self, request_id: str, new_id: Callable[[], str]) -> str:
        """A request's name for its engine: its id, unless that is in use (clients may send one twice)."""
        return request_id if request_id not in self._tickets else f"{request_id}~{new_id()}"

    def find(self, request_id: str, owner: bytes | None) -> tuple[Ticket, ...]:
        """The running requests of this id that `owner` has begun (None: whoever has)."""
        found = self._tickets.get(request_id, ())
        return tuple(each for each in found if owner is None or hmac.compare_digest(each.owner, owner))
