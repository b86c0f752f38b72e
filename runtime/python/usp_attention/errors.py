# SPDX-License-Identifier: Apache-2.0
"""What usp raises. The class says who has to act; the text says what is wrong and what to do."""

from __future__ import annotations


class UspError(Exception):
    """Base of all errors of the package."""


class UsageError(UspError, ValueError):
    """Arguments that cannot be understood or combined, or a call that is not allowed here."""


class InvalidInput(UspError, ValueError):
    """Input that is not what it claims to be: documents, plan files, samples."""


class Infeasible(UspError, RuntimeError):
    """Nothing legal, or nothing that fits. `rejected`: the lines that say what was tried and what would fit."""

    def __init__(self, text: str):
        super().__init__(text)
        self.rejected = tuple(line.strip() for line in text.splitlines()[1:] if line.strip())


class EnvironmentFault(UspError, RuntimeError):
    """The machine failed: no memory, no GPU, a port that is taken, a library that does not load."""


class CommunicationError(EnvironmentFault):
    """Ranks did not arrive, failed or ended the job. The mesh is of no use any more: let the process end.

    missing: the ranks; tick: of the schedule, -1 outside of one; operation: what waited; rank: who noticed.
    """

    def __init__(self, text: str, missing: tuple[int, ...] = (), tick: int = -1, operation: str = "", rank: int = -1):
        super().__init__(text)
        self.missing, self.tick, self.operation, self.rank = missing, tick, operation, rank


class DisagreementError(UspError, RuntimeError):
    """Ranks hold different values of `field`; `ranks` hold another one than most. The mesh remains usable."""

    def __init__(self, text: str, field: str = "", ranks: tuple[int, ...] = ()):
        super().__init__(text)
        self.field, self.ranks = field, ranks


class InternalError(UspError, RuntimeError):
    """A broken invariant of usp. Please report it with the text and what led to it."""
