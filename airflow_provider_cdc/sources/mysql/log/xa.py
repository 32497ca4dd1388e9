"""XA transactions in a log segment: logged when they are prepared, effective only when, and if, they are committed.

A transaction that is prepared and decided in the same segment becomes part of the net change at its decision. For the
others the segment tells what it knows, under the transaction's *ids*: its XID, and for each table that was read at one
position the XID and the table's index, because a commit may lie behind the position of one and before that of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from airflow_provider_cdc.core.kernels.compile import Bytes, Int64s
from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.sources.api.window import SegmentSummary, TrackedTable
from airflow_provider_cdc.sources.log.delta import order_base
from airflow_provider_cdc.sources.log.net_change import NetChange
from airflow_provider_cdc.sources.log.netting import HEADER, USED, decide


@dataclass
class Prepared:
    """A transaction from XA START on.

    Its records are among those of ``arena[start:stop]``. ``error`` is what is wrong with its changes, if something
    is: it stops the run only if they count.
    """

    number: int
    xid: str
    start: int
    stop: int = 0
    error: CdcError | None = None


class XaLedger:
    """The XA transactions of one segment, by number."""

    def __init__(self, change: NetChange, tracked: Sequence[TrackedTable]) -> None:
        self.transactions: list[Prepared] = []
        self.undecided: dict[str, Prepared] = {}
        self.open: Prepared | None = None
        self._change = change
        self._tracked = tracked

    def begin(self, xid: str) -> Prepared:
        """XA START."""
        self.open = Prepared(len(self.transactions), xid, int(self._change.state[USED]))
        self.transactions.append(self.open)
        return self.open

    def prepare(self) -> Prepared:
        """XA PREPARE, or XA COMMIT ONE PHASE, of the open transaction."""
        assert self.open is not None
        prepared, self.open = self.open, None
        prepared.stop = int(self._change.state[USED])
        self.undecided[prepared.xid] = prepared
        return prepared

    def decide(self, xid: str, counts: Bytes, order: int) -> None:
        """The outcome of a transaction prepared in this segment.

        :param counts: by table, whether the commit counts; all zero for XA ROLLBACK.
        :raises CdcError: the transaction's ``error``, if it counts.
        """
        prepared = self.undecided[xid]
        if prepared.error is not None and counts.any():
            raise prepared.error
        change = self._change
        # Every record may need a second entry, and there are no more records than header words fit between the marks.
        most = (prepared.stop - prepared.start) // HEADER
        if not change.has_slots(most):
            self.reserve(most, 0)
        del self.undecided[xid]
        decide(change.arrays, prepared.start, prepared.stop, prepared.number, counts, change.keyless, order)

    def reserve(self, records: int, words: int) -> None:
        """Make room in the net change; it moves the records."""
        waiting = [*self.undecided.values(), *([self.open] if self.open else [])]
        waiting.sort(key=lambda prepared: prepared.number)
        marks: Int64s = np.array(
            [mark for transaction in waiting for mark in (transaction.start, transaction.stop or transaction.start)],
            np.int64,
        )
        self._change.reserve(records, words, marks)
        for transaction, (start, stop) in zip(waiting, marks.reshape(-1, 2).tolist(), strict=True):
            transaction.start = start
            transaction.stop = stop if transaction.stop else 0

    def decided_elsewhere(
        self, xid: str, counts: Bytes, ignored: bool, order: int, summary: SegmentSummary
    ) -> list[str]:
        """Note the outcome of a transaction that was prepared in an earlier segment; returns its ids that count.

        :param ignored: whether it was rolled back, or committed in the initial position: then it has no effect on
            tables that have no bound.
        """
        outcomes = [(xid, not ignored)]
        outcomes += [
            (tracked_table.pending(xid), bool(counts[index]))
            for index, tracked_table in enumerate(self._tracked)
            if tracked_table.bounded
        ]
        for name, counted in outcomes:
            if counted:
                summary.decided[name] = order_base(summary.segment.number) + order
            else:
                summary.rolled_back.append(name)
        return [name for name, counted in outcomes if counted]

    def close(self) -> list[str]:
        """The segment ends: the ids of all transactions that it prepares and does not decide.

        :raises CdcError: one of them has an ``error``.
        """
        for prepared in self.undecided.values():
            if prepared.error is not None:
                raise prepared.error
        return [name for xid in self.undecided for name in self._ids(xid)]

    def pending(self, number: int, one: TrackedTable) -> str:
        """The id under which the changes of an undecided transaction to a table wait."""
        xid = self.transactions[number].xid
        return one.pending(xid) if one.bounded else xid

    def _ids(self, xid: str) -> list[str]:
        return [xid, *(tracked_table.pending(xid) for tracked_table in self._tracked if tracked_table.bounded)]
