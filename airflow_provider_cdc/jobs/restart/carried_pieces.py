"""Carries the recorded pieces of the log over schema changes, together with the rows that were read.

The pieces before a schema change have row images with the columns that the table had then. When the net change is
composed, these images become images of the present table. The last piece is read when the run moves. The source reads
it with the schema changes, so it has images of the present table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_cdc.core.kinds import parse_position
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.plan import InitialPoint
from airflow_provider_cdc.core.run.spool_chain import reaching
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.tables.table import Column
from airflow_provider_cdc.jobs.changes.carried_images import CarriedImages
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.spool.kept_pieces import KeptPieces, Shape, recorded_pieces, up_to
from airflow_provider_cdc.jobs.spool.piece import Piece

if TYPE_CHECKING:
    from airflow_provider_cdc.jobs.restart.carry import FinishedRead


def pieces_to_carry(step: Step, key: str) -> KeptPieces | None:
    """Return the pieces that were recorded since reads began. None: there are none, or the source cannot carry them."""
    return recorded_pieces(step, key) if step.source.carries_pieces else None


def carried_pieces(
    step: Step, finished: Mapping[str, FinishedRead], carried: Mapping[str, RunTable], point: InitialPoint
) -> str:
    """Record the log of carried tables up to the new position. Return the name of the record. Empty: there are no
    pieces.

    :param finished: the reads, by the table's name. All of them began under one manifest.
    :param carried: the present tables, by the same names.
    :raises LogGone: the log after the last piece is gone.
    :raises SchemaChanged: the log has row images that cannot be carried.
    """
    one = next(iter(finished.values()))
    if (pieces := one.pieces) is None:
        return ""
    shapes = {
        name: (*pieces.shapes.get(name, ()), Shape(len(pieces.links), read.entry.table.columns))
        for name, read in finished.items()
    }
    start = parse_position(step.manifest.kind, one.reads.position)
    source = step.source.of_run(reaching(one.reads.identity, pieces.links[-1]), start)
    shaped = replace(pieces, shapes=shapes)
    return up_to(step, source, one.reads.identity, start, shaped, [*carried.values()], point.position)


def carried_images(step: Step, pieces: KeptPieces, tables: Mapping[str, tuple[int, RunTable]]) -> CarriedImages | None:
    """Return the earlier columns of ``tables`` in the segments of ``pieces``. None: there are none.

    :param tables: the tables with their indices in the run, by name.
    """
    shapes = {name: pieces.shapes[name] for name in tables if name in pieces.shapes}
    if not shapes:
        return None
    columns: dict[int, dict[int, tuple[Column, ...]]] = {}
    for number, link in enumerate(pieces.links):
        then = {
            tables[name][0]: next(shape.columns for shape in several if number < shape.end)
            for name, several in shapes.items()
            if number < several[-1].end
        }
        if then:
            for record in records.read_named(Piece, step.folder, link.record).segments:
                columns[record.segment] = then
    return CarriedImages(step.source, {tables[name][0]: tables[name][1].table for name in shapes}, columns)
