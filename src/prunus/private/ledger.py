"""What every client has spent, on disk before anything is sent.

A ledger is a text file: a header, then one line for each charge, with a checksum. A charge is written and synced before
`charge` returns, and callers send only after that; so whatever happens in between, the ledger may say more than was
sent, never less. A line that a kill cut short has no newline, was never acted on, and is cut off when the file is
opened again. Any other damage is refused: a ledger that cannot be read in full must not be trusted.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prunus.errors import BadFile, BadInput
from prunus.private.accounting import Accountant, BudgetSpent, Release

_FORMAT = "prunus-privacy-ledger"
_BLOCK = 64


class Ledger:
    """Per-client accounting with one budget (epsilon, delta) for each client, in a durable file.

    Several processes may share a file: a lock is held while a charge is written, and what others wrote is read first.
    """

    def __init__(self, path: str | os.PathLike[str], epsilon: float = math.inf, delta: float = 1e-5) -> None:
        if not epsilon > 0.0 or not 0.0 <= delta < 1.0:
            raise BadInput(f"A budget needs epsilon above 0 and delta in [0, 1), got {epsilon!r} and {delta!r}.")
        self.path = Path(path)
        self.epsilon, self.delta = float(epsilon), float(delta)
        self._accounts: dict[str, Accountant] = {}
        self._safe: dict[tuple[str, Release], int] = {}
        self._read_to = 0
        self.rounds = 0
        with self._locked():
            pass

    # ------------------------------------------------------------------------------------------------------- charges

    def charge(self, client: str, round_: int, release: Release) -> None:
        """Write down a release of `client`, synced; `BudgetSpent`, with nothing written, where it is too much."""
        self.charge_all([client], round_, release)

    def charge_all(self, clients: list[str], round_: int, release: Release) -> None:
        """The same for several clients, all or none, with one sync."""
        if not all(isinstance(client, str) and client for client in clients):
            raise BadInput("Clients are named by texts that are not empty.")
        if len(set(clients)) < len(clients):
            raise BadInput("A client may appear only once in a charge.")
        with self._locked() as file:
            for client in clients:
                self._require(client, release)
            record = {key: _written(value) for key, value in asdict(release).items()}
            body = b"".join(_line({"client": client, "round": round_, "release": record}) for client in clients)
            _append(file, body)
            self._read_to += len(body)
            for client in clients:
                self._account(client).add(release)
                self._safe[client, release] = self._safe.get((client, release), 1) - 1
            self.rounds = max(self.rounds, round_ + 1)

    def can_afford(self, client: str, release: Release) -> bool:
        """Whether one more such release stays within the budget."""
        try:
            self._require(client, release)
        except BudgetSpent:
            return False
        return True

    def _require(self, client: str, release: Release) -> None:
        if math.isinf(self.epsilon) or self._safe.get((client, release), 0) > 0:
            return
        # A block of releases is checked at once: composing at every round would cost more than the round.
        for key in [key for key in self._safe if key[0] == client]:
            del self._safe[key]
        count = _BLOCK
        while count and not self._account(client).fits(release, count, self.epsilon, self.delta):
            count //= 4
        if count == 0:
            raise BudgetSpent(
                f"Client {client!r} has spent epsilon {self.spent(client):.4g} of {self.epsilon:g} at delta "
                f"{self.delta:g}, and another round would pass it: nothing was sent; leave the client out."
            )
        self._safe[client, release] = count

    # ------------------------------------------------------------------------------------------------------- reading

    @property
    def clients(self) -> list[str]:
        """Everybody who was ever charged."""
        return sorted(self._accounts)

    def spent(self, client: str) -> float:
        """Epsilon spent by a client, at the ledger's delta."""
        return self._account(client).epsilon(self.delta)

    def charges(self, client: str) -> int:
        """How many releases a client was charged for."""
        return sum(self._account(client).releases.values())

    def refresh(self) -> None:
        """Read what other processes wrote."""
        with self._locked():
            pass

    def _account(self, client: str) -> Accountant:
        return self._accounts.setdefault(client, Accountant())

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The open file under an exclusive lock, with everything in it read."""
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise BadInput(f"The ledger {self.path} cannot be opened: {error.strerror}; choose another path.") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._catch_up(file)
            yield file
        finally:
            os.close(file)

    def _catch_up(self, file: int) -> None:
        size = os.fstat(file).st_size
        if size < self._read_to:
            raise BadFile(f"The ledger {self.path} became shorter while it was in use; restore it from a copy.")
        if size == self._read_to and size:
            return
        text = os.pread(file, size - self._read_to, self._read_to)
        whole = text[: text.rfind(b"\n") + 1]
        first = self._read_to == 0
        lines = whole.splitlines()
        if first and lines:
            self._check_header(_parsed(lines.pop(0), 1, self.path))
        for number, line in enumerate(lines, start=2):
            self._take(_parsed(line, number, self.path))
        self._read_to += len(whole)
        if len(whole) < len(text):
            # Cut short by a kill: it was never acted on.
            os.ftruncate(file, self._read_to)
            os.fsync(file)
        if self._read_to == 0:
            header = _line({"format": _FORMAT, "version": 1, "epsilon": _written(self.epsilon), "delta": self.delta})
            _append(file, header)
            self._read_to = len(header)
            _sync_folder(self.path.parent)

    def _check_header(self, header: Any) -> None:
        if header.get("format") != _FORMAT or header.get("version") != 1:
            raise BadFile(f"{self.path} is no privacy ledger of version 1; choose another file.")
        if header.get("delta") != self.delta:
            raise BadInput(
                f"The ledger {self.path} was begun with delta {header.get('delta')}, not {self.delta:g}: use the same."
            )

    def _take(self, record: Any) -> None:
        try:
            client, round_ = record["client"], int(record["round"])
            release = Release(**{key: _read(value) for key, value in record["release"].items()})
        except (KeyError, TypeError, ValueError):
            raise BadFile(f"The ledger {self.path} holds a record that is no charge; restore it from a copy.") from None
        self._account(client).add(release)
        # Somebody else charged this client: what was found affordable before may not be any more.
        for key in [key for key in self._safe if key[0] == client]:
            del self._safe[key]
        self.rounds = max(self.rounds, round_ + 1)


def _line(record: dict[str, Any]) -> bytes:
    body = json.dumps(record, sort_keys=True, allow_nan=False).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _parsed(line: bytes, number: int, path: Path) -> Any:
    check, _, body = line.partition(b" ")
    if check != b"%08x" % zlib.crc32(body):
        raise BadFile(f"Line {number} of the ledger {path} is damaged; restore it from a copy before going on.")
    return json.loads(body)


def _written(value: Any) -> Any:
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def _read(value: Any) -> Any:
    return math.inf if value == "inf" else value


def _append(file: int, body: bytes) -> None:
    os.lseek(file, 0, os.SEEK_END)
    while body:
        body = body[os.write(file, body) :]
    os.fsync(file)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
