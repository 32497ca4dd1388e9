"""XA transactions in a log segment. The server logs the changes of an XA transaction when it is prepared. The changes
take effect only when the transaction is committed.

If a transaction is prepared and decided (committed or rolled back) in the same segment, the outcome is applied to the
net change at the decision. For other transactions, the segment records the changes or the outcome under the
transaction's *ids*. The ids are the XID and, for each table that was read at one position, the XID with the table's
index. Such a table needs a separate id because a commit may be after the position of one table and before the position
of another.
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
    """An XA transaction, from XA START on.

    ``arena[start:stop]`` contains the records of the transaction, and may contain other records. ``error`` is an error
    found in its changes, if any. The error stops the run only if the changes count.
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
        """Handle XA START of a transaction."""
        self.open = Prepared(len(self.transactions), xid, int(self._change.state[USED]))
        self.transactions.append(self.open)
        return self.open

    def prepare(self) -> Prepared:
        """Handle XA PREPARE, or XA COMMIT ONE PHASE, of the open transaction."""
        assert self.open is not None
        prepared, self.open = self.open, None
        prepared.stop = int(self._change.state[USED])
        self.undecided[prepared.xid] = prepared
        return prepared

    def decide(self, xid: str, counts: Bytes, order: int) -> None:
        """Apply the outcome of a transaction that was prepared in this segment.

        :param counts: for each table, whether the commit counts; all zero for XA ROLLBACK.
        :raises CdcError: the transaction's ``error``, if its changes count.
        """
        prepared = self.undecided[xid]
        if prepared.error is not None and counts.any():
            raise prepared.error
        change = self._change
        # Each record may need a second slot in the hash table. A record has at least HEADER words, so the size of the
        # range limits the number of records in it.
        most = (prepared.stop - prepared.start) // HEADER
        if not change.has_slots(most):
            self.reserve(most, 0)
        del self.undecided[xid]
        decide(change.arrays, prepared.start, prepared.stop, prepared.number, counts, change.keyless, order)

    def reserve(self, records: int, words: int) -> None:
        """Make room in the net change. This moves the records."""
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
        """Record the outcome of a transaction that was prepared in an earlier segment. Return the ids under which its
        changes count.

        :param ignored: whether the transaction was rolled back, or committed within the initial position. Such a
            transaction has no effect on tables without a bound.
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
        """Finish the segment. Return the ids of all transactions that are prepared, but not decided, in the segment.

        :raises CdcError: an undecided transaction has an ``error``.
        """
        for prepared in self.undecided.values():
            if prepared.error is not None:
                raise prepared.error
        return [name for xid in self.undecided for name in self._ids(xid)]

    def pending(self, number: int, one: TrackedTable) -> str:
        """Return the id for storing the changes that an undecided transaction made to a table."""
        xid = self.transactions[number].xid
        return one.pending(xid) if one.bounded else xid

    def _ids(self, xid: str) -> list[str]:
        return [xid, *(tracked_table.pending(xid) for tracked_table in self._tracked if tracked_table.bounded)]
