"""What every client has spent, on disk before anything is sent.

A ledger is a text file: a header, a line that says how far the ledger reaches, and one line for each charge. Every line
begins with a SHA-256 over the line before it and its own text, so that no line can be changed, dropped or moved. A
charge is written and synced, then the second line is brought up to date and synced, and only then does `charge` return
and callers send; so whatever happens in between, the ledger may say more than was sent, never less. A line that a kill
cut short has no newline, lies beyond what the second line says, was never acted on, and is cut off when the file is
opened again. A ledger that is shorter than its second line says, empty, or damaged in any other way is refused: it must
be restored from a copy. What cannot be seen is the whole file put back to an older copy of itself.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prunus.errors import BadFile, BadInput
from prunus.private.accounting import Accountant, BudgetSpent, Release
from prunus.storage import digest_of, sync_folder

_FORMAT = "prunus-privacy-ledger"
_VERSION = 2
_BLOCK = 64
_REACH = len("reach ") + 20 + 1 + 64 + 1
"""Bytes of the line that says how far the ledger reaches; with the header it lies in one sector of the disk."""


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
        self._chain = ""
        self._reach_at = 0
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
            chain, body = self._chain, b""
            for client in clients:
                chain, line = _line(chain, {"client": client, "round": round_, "release": record})
                body += line
            self._append(file, body, chain)
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
        """All clients that were ever charged."""
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
            if not self.path.exists():
                self._begin()
            file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise BadInput(f"The ledger {self.path} cannot be opened: {error.strerror}; choose another path.") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._catch_up(file)
            yield file
        finally:
            os.close(file)

    def _begin(self) -> None:
        """Put a ledger without charges in place; where another process was quicker, its own stays."""
        header = {"format": _FORMAT, "version": _VERSION, "epsilon": _written(self.epsilon), "delta": self.delta}
        chain, line = _line("", header)
        temporary = self.path.with_name(f".{self.path.name[:60]}.{secrets.token_hex(6)}.prunus.tmp")
        file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _write_all(file, line + _reach(len(line) + _REACH, chain))
            os.fsync(file)
            os.link(temporary, self.path)
            sync_folder(self.path.parent)
        except FileExistsError:
            pass
        finally:
            os.close(file)
            os.unlink(temporary)

    def _append(self, file: int, body: bytes, chain: str) -> None:
        os.lseek(file, self._read_to, os.SEEK_SET)
        _write_all(file, body)
        os.fsync(file)
        self._read_to, self._chain = self._read_to + len(body), chain
        os.pwrite(file, _reach(self._read_to, chain), self._reach_at)
        os.fsync(file)

    def _catch_up(self, file: int) -> None:
        size = os.fstat(file).st_size
        if size < self._read_to:
            raise BadFile(f"The ledger {self.path} became shorter while it was in use; restore it from a copy.")
        text = os.pread(file, size - self._read_to, self._read_to)
        whole = text[: text.rfind(b"\n") + 1]
        lines = whole.splitlines(keepends=True)
        if self._read_to == 0:
            lines = self._open(lines)
        reach = os.pread(file, _REACH, self._reach_at)
        end = int(reach[6:26]) if reach[6:26].isdigit() else -1
        if end == self._read_to and reach != _reach(end, self._chain):
            end = -1
        for line in lines:
            self._chain = self._take(line)
            self._read_to += len(line)
            if end == self._read_to and reach != _reach(end, self._chain):
                end = -1
        if end < 0 or end > self._read_to:
            raise BadFile(
                f"The ledger {self.path} is damaged: it is not as long as it once was, or the line that says how long "
                "it is was changed; restore it from a copy before going on."
            )
        if size > self._read_to:  # a line cut short by a kill: it was never acted on
            os.ftruncate(file, self._read_to)
            os.fsync(file)

    def _open(self, lines: list[bytes]) -> list[bytes]:
        """Check the header; returns the lines of the charges."""
        if len(lines) < 2:
            raise BadFile(
                f"The ledger {self.path} is empty or cut off; restore it from a copy, or choose another path."
            )
        chain, header = _parsed("", lines[0], self.path)
        self._check_header(header)
        self._reach_at, self._read_to, self._chain = len(lines[0]), len(lines[0]) + len(lines[1]), chain
        if len(lines[1]) != _REACH:
            raise BadFile(f"The second line of the ledger {self.path} is damaged; restore it from a copy.")
        return lines[2:]

    def _check_header(self, header: Any) -> None:
        if not isinstance(header, dict) or header.get("format") != _FORMAT or header.get("version") != _VERSION:
            raise BadFile(f"{self.path} is no privacy ledger of version {_VERSION}; choose another file.")
        if header.get("delta") != self.delta:
            raise BadInput(
                f"The ledger {self.path} was begun with delta {header.get('delta')}, not {self.delta:g}: use the same."
            )

    def _take(self, line: bytes) -> str:
        """Count the charge in a line; returns the chain up to it."""
        chain, record = _parsed(self._chain, line, self.path)
        try:
            client, round_ = record["client"], int(record["round"])
            release = Release(**{key: _read(value) for key, value in record["release"].items()})
            if not isinstance(client, str):
                raise TypeError
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise BadFile(f"The ledger {self.path} holds a record that is no charge; restore it from a copy.") from None
        self._account(client).add(release)
        # Another process charged this client: what was found affordable before may not be any more.
        for key in [key for key in self._safe if key[0] == client]:
            del self._safe[key]
        self.rounds = max(self.rounds, round_ + 1)
        return chain


def _line(chain: str, record: dict[str, Any]) -> tuple[str, bytes]:
    """The chain after this record, and its line."""
    body = json.dumps(record, sort_keys=True, allow_nan=False)
    check = digest_of(f"{chain} {body}")
    return check, f"{check} {body}\n".encode()


def _parsed(chain: str, line: bytes, path: Path) -> tuple[str, Any]:
    check, _, body = line.removesuffix(b"\n").decode(errors="replace").partition(" ")
    if check != digest_of(f"{chain} {body}"):
        raise BadFile(
            f"A line of the ledger {path} is damaged, missing or out of its place; restore it from a copy before going "
            "on."
        )
    try:
        return check, json.loads(body)
    except (ValueError, RecursionError):
        raise BadFile(f"The ledger {path} holds a record that is no charge; restore it from a copy.") from None


def _reach(end: int, chain: str) -> bytes:
    return b"reach %020d %s\n" % (end, digest_of(f"reach {end} {chain}").encode())


def _written(value: Any) -> Any:
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def _read(value: Any) -> Any:
    return math.inf if value == "inf" else value


def _write_all(file: int, body: bytes) -> None:
    while body:
        body = body[os.write(file, body) :]
