#!/usr/bin/env python3
"""An executable miniature of the engine: one rule, bases, logs in pieces, a ledger, and the Airflow tasks in these terms.

    python tests/models/engine_model.py [-n WORLDS] [-s FIRST]   random worlds: compares every published copy with the truth
    python tests/models/engine_model.py --drop all [-n WORLDS]   drops one condition after the other: each must be found
    python tests/models/engine_model.py --drop R1 --trace        prints the history of the first counterexample

The rule: a base read has everything up to L, and nothing after P. The row of a key at X is the row after its last event in
(L, X], else the row before its first event in (X, P], else the base row. This is exact if no DDL of the table lies in the
hull of L, P and X, or if the rows are carried over the DDL. Every decision of a run is an entry of one ledger, and each
entry names its predecessor, so that attempts and zombies cannot fork the history of a run.

A position is a length of the log. A row is a tuple of (column, value). Tasks are generators: at each ``yield`` the server,
another attempt or a zombie may go on, or the attempt is killed. To refuse is never wrong, so it is counted. `Server.truth` is
the oracle. The package does not import this module: the module states what the package has to do, in a form that can be run.
"""
import argparse, itertools, random, sys, time  # noqa: E401
from collections import Counter, namedtuple
from types import SimpleNamespace

CONDITIONS = {
    "A0": "DDL is looked for up to X, not over the whole hull of L, P and X",
    "A-B": "of a read that lasted across X, only the changes behind X count",
    "C2": "a start is not waited for: reads may miss transactions that it contains",
    "C5": "the bound is noted before the last read",
    "C6": "the bound is what is executed, not the end of the log",
    "R1": "a part counts for its table, not for the start under which it was read",
    "R4": "after a move, the tables that are kept stay at the old X",
    "R6": "DDL is noticed by columns, not by statements or versions",
    "R7": "reads from before a crash of the server count",
    "R9": "a requested position moves",
    "R13": "a move does not wait until X contains the end of the log, so of each recorded piece",
    "R15": "changes of a keyless table count from its start, not from its own exact position",
    "R18": "a read is carried over DDL that came before its end",
    "B2": "a new column gets the present default, not that of its statement",
    "B5": "segments are not cut at statements, so some images are mapped twice",
    "S1": "a piece is acknowledged before it is recorded",
    "S2": "an attempt acknowledges its own end, not that of the recorded chain",
    "S3": "a piece may begin behind the end of the chain",
    "S4": "a stretch may have two pieces",
    "S6": "the rows of a prepared transaction are not kept across pieces",
    "S10": "a piece may reach across X",
    "L1": "entries do not name their predecessor, so a zombie's entry joins another history",
    "L2": "a net change counts although the run has moved or begun anew since it was computed",
    "L3": "an entry counts although the ledger was removed meanwhile",
    "L4": "the end of a read is noted for its table, not for the start under which it was read",
    "L5": "a move does not compare copies and carried tables with what was last recorded of them",
    "L6": "an entry is guarded by what an attempt knew before it worked, not by the state to which it is appended",
    "G8": "a base has the position of the newest copy of any table, not its own",
    "X1": "a requested position may lie behind the log that is on disk",
    "P1": "rows of a view count although the table got another file",
    "P2": "keys that were touched after a pass are not read again",
    "E0": "a shard is left out alone, without its merged table",
    "E1": "changes of shards are united by key before they are applied",
    "F1": "a change feed ends at the first X, not at the final one",
}
DROPPED, TRACE, ODD, KEYLESS, MERGED, MOVES = "", [], 99, "q", {"m1": "m", "m2": "m"}, 6

def holds(condition): return DROPPED != condition
def say(*words): TRACE.append(" ".join(map(str, words)))
def class_of(row): return row[0][1] % 2
def copy_of(table): return MERGED.get(table, table)

class Wrong(Exception): pass  # a promise is broken; everything else is a refusal
class Refused(Exception):
    """A run stops with a reason. ``tables``: because of these. ``own``: it lacks log that only the run itself can let go."""
    def __init__(self, why, tables=(), own=False):
        super().__init__(why)
        self.tables, self.own = tables, own
class LogGone(Refused): pass
class SchemaChanged(Refused): pass

# ================================================================================================ the source
Bound = namedtuple("Bound", "end mark incarnation")  # everything that ended reads saw lies before ``end``
Ddl = namedtuple("Ddl", "table kind columns rows column at")  # rows: what it makes of a row; None: it empties the table
# A position from which tables are read or rolled forward: what is recorded of the tables there, and the log from there on
# (PostgreSQL: of a slot with this id). versions: those of the tables in the catalog.
Start = namedtuple("Start", "id position columns versions")

def project(row, columns, table):
    values = dict(row)
    if not set(columns) <= values.keys(): raise SchemaChanged("a column is gone", [table])
    return tuple((name, values[name]) for name in columns)

def put(rows, key, row):
    rows.pop(key, None)
    if row is not None: rows[key] = row

class Server:
    """MySQL: the log has statements, and the server purges it. PostgreSQL: slots keep the log, the catalog has versions, and a
    crash cuts the log that is not on disk. A transaction is in the log, then visible, then (MySQL) executed."""
    def __init__(self, rng, world):
        self.rng, self.world, self.mysql = rng, world, world.kind == "mysql"
        self.log, self.purged, self.flushed, self.incarnation, self.slots = [], 0, 0, 0, {"standing": 0}
        self.ids, self.prepared, self.left, self.ddl_left, self.defaults = 0, {}, 0, 0, {}
        self.columns, self.versions = dict.fromkeys(world.tables, ("a", "b")), dict.fromkeys(world.tables, 0)
        self.first = {t: {k: self.row(t) for k in range(4) if rng.random() < 0.6} for t in world.tables}
        self.tip, self.shown = ({t: dict(rows) for t, rows in self.first.items()} for _ in "ts")
        say(world, "\nfirst rows", self.first)
    def row(self, table): return tuple((name, self.value(table)) for name in self.columns[table])
    def value(self, table):
        self.ids += 1
        odd = self.world.odd and self.rng.random() < 0.04
        return ODD if odd else self.rng.randrange(3) if table == KEYLESS else 1000 + self.ids
    # -- what happens by itself
    def step(self):
        rng, haste = self.rng, self.rng.random() < self.world.haste
        hidden = [e for e in self.log if not e.visible]
        late = next((e for e in self.log if e.visible and not e.executed), None)
        acts = [act for act, possible in (
            (self.commit, self.left), (self.commit, self.left), (self.record_commit, self.prepared),
            (self.alter, self.ddl_left and not hidden and not self.prepared),  # DDL takes its table for itself
            (lambda: self.show(hidden[0] if self.mysql else rng.choice(hidden)), hidden and haste),
            (lambda: setattr(late, "executed", True), late and rng.random() < self.world.lag),
            (self.flush, self.flushed < len(self.log) and rng.random() < self.world.flushes),
            (self.crash, self.world.crashes and rng.random() < 0.02), (self.purge, self.world.purges and rng.random() < 0.04),
        ) if possible]
        if acts: rng.choice(acts)()
    def append(self, kind, changes=(), done=False, ddl=None, xid=0):
        """T commit, P prepare, C commit of what was prepared, D statement, M mark. A change: (table, key, before, after)."""
        self.ids += 1
        self.log.append(SimpleNamespace(kind=kind, changes=changes, ddl=ddl, xid=xid, id=self.ids, visible=done, executed=done))
        say(f"log[{len(self.log) - 1}] {kind}", *changes, xid or "", f"{ddl.kind} {ddl.table}" if ddl else "")
    def commit(self):
        taken = {c[:2] for e in self.log if not e.visible for c in self.changes_of(e)}
        taken |= {c[:2] for changes in self.prepared.values() for c in changes}
        changes, rng, self.left = [], self.rng, self.left - 1
        for table in rng.choices(self.world.tables, k=rng.choice((1, 1, 2, 3))):
            key = rng.randrange(6) if table != KEYLESS else rng.choice([*self.tip[table], 1000 + self.ids])
            if (table, key) not in taken:
                taken.add((table, key))
                before = self.tip[table].get(key)
                changes.append((table, key, before, None if before and rng.random() < 0.3 else self.row(table)))
        if changes and self.mysql and self.world.xa and rng.random() < 0.25:
            self.append("P", changes, done=True, xid=self.ids)
            self.prepared[self.log[-1].xid] = changes
        elif changes:
            self.append("T", changes)
            self.take(changes, self.tip)
    def take(self, changes, tables):
        for table, key, _, after in changes: put(tables[table], key, after)
    def record_commit(self):
        xid = self.rng.choice([*self.prepared])
        self.append("C", xid=xid)
        self.take(self.prepared.pop(xid), self.tip)
    def changes_of(self, entry):
        if entry.kind == "C": return next(e.changes for e in self.log if e.kind == "P" and e.xid == entry.xid)
        return entry.changes if entry.kind == "T" else ()
    def show(self, entry):
        entry.visible, entry.executed = True, entry.executed or not self.mysql
        self.take(self.changes_of(entry), self.shown)
    def flush(self): self.flushed = len(self.log)
    def name(self, position): return position, [e.id for e in self.log[:position][-1:]]  # and of the last entry in front of it
    def purge(self): self.purged = self.rng.randrange(self.purged, self.executed() + 1)
    def crash(self):
        self.world.crashes, self.incarnation = self.world.crashes - 1, self.incarnation + 1
        del self.log[self.flushed :]
        for e in self.log: e.visible = e.executed = True
        (self.tip, self.columns), (self.shown, _) = self.truth(len(self.log)), self.truth(len(self.log))
        self.versions = {t: len(self.ddls(t, 0)) for t in self.world.tables}
        say(f"CRASH: the log is cut to {self.flushed}")
    def alter(self):
        table, kind = self.rng.choice(self.world.ddl_tables), self.rng.choice(self.world.ddl)
        columns, free = self.columns[table], [c for c in "abcd" if c not in self.columns[table]]
        one, two, value, new = columns[0], columns[1], self.value(KEYLESS), free[0] if free else ""
        rows = {
            "add": lambda row: (*row, (new, value)), "drop": lambda row: row[:-1], "default": lambda row: row,
            "rename": lambda row: (*row[:-1], (new, row[-1][1])), "truncate": None,
            "exchange": lambda row: tuple(({one: two, two: one}.get(n, n), v) for n, v in row),
        }[kind]
        if kind in ("add", "rename") and not new or kind == "drop" and len(columns) < 3: return
        if kind in ("add", "default"): self.defaults[table, new if kind == "add" else columns[-1]] = value
        now = tuple(n for n, _ in rows(tuple((c, 0) for c in columns))) if rows else columns
        self.append("D", done=True, ddl=Ddl(table, kind, now, rows, new, len(self.log)))
        self.ddl_left, self.versions[table], self.columns[table] = self.ddl_left - 1, self.versions[table] + 1, now
        for tables in (self.tip, self.shown): tables[table] = {k: rows(row) for k, row in tables[table].items()} if rows else {}
        self.flush()
    def truth(self, x):  # the rows and the columns of all tables at a position
        tables, columns = {t: dict(rows) for t, rows in self.first.items()}, dict.fromkeys(self.first, ("a", "b"))
        for e in self.log[:x]:
            if e.ddl:
                columns[e.ddl.table], rows = e.ddl.columns, tables[e.ddl.table]
                tables[e.ddl.table] = {k: e.ddl.rows(row) for k, row in rows.items()} if e.ddl.rows else {}
            self.take(self.changes_of(e), tables)
        return tables, columns
    # -- what sessions of a run do: the methods of `Source`
    def executed(self): return next((i for i, e in enumerate(self.log) if not e.executed), len(self.log))
    def end(self):  # the end of the log for its readers
        return len(self.log) if self.mysql else self.flushed
    def ddls(self, table, since, until=None):
        return tuple(e.ddl for e in self.log[since:until] if e.ddl and e.ddl.table == table)
    def settle(self, position):  # wait until everything before a position is visible
        incarnation = self.incarnation
        while holds("C2") and incarnation == self.incarnation and not all(e.visible for e in self.log[:position]): yield
    def start_at(self, id, position, tables):
        self.slots[id] = position
        return Start(id, position, {t: self.columns[t] for t in tables}, {t: self.versions[t] for t in tables})
    def record_start(self, id, tables):  # fix a position of which everything is visible, and then record the tables
        while True:
            before, incarnation = dict(self.versions), self.incarnation
            if not self.mysql:
                self.flush()
                self.slots[id] = len(self.log)
            position = self.executed() if self.mysql and holds("C2") else len(self.log)
            yield
            if not self.mysql: yield from self.settle(position)
            found = self.start_at(id, position, tables)
            if self.mysql or incarnation == self.incarnation and all(before[t] == v for t, v in found.versions.items()):
                return found
    def start_in_past(self, id, position, tables):
        """A start at an earlier position, for `as_of` and for copies that are rolled forward."""
        if (self.purged if self.mysql else self.slots["standing"]) > position:
            raise LogGone("the log does not reach back", tables)
        return self.start_at(id, position, tables)
    def bound_reads(self):
        if not self.mysql:
            self.append("M", done=True)  # the mark that the log must have when it is read
        bound = Bound(len(self.log) if holds("C6") else self.executed(), self.ids, self.incarnation)
        yield
        while not self.mysql and self.flushed < bound.end and self.incarnation == bound.incarnation: yield
        return bound
    def read(self, table, part, start):  # the rows of a part at this moment
        if not self.mysql and not all(d.rows for d in self.ddls(table, start.position)):
            raise SchemaChanged("another file", [table])
        return {k: project(r, start.columns[table], table) for k, r in self.shown[table].items() if k % 2 == part}
    def read_exact(self, table, values, start):
        """Rows of a keyless table at one exact position: under a lock, or in an exported snapshot."""
        for e in self.log:
            if not e.visible: self.show(e)
            e.executed = True
        self.flush()
        if not self.mysql and self.versions[table] != start.versions[table] and holds("R6"):
            raise SchemaChanged("another version", [table])
        rows = [project(row, start.columns[table], table) for row in self.shown[table].values()]
        return Unit(values, len(self.log), tuple(row for row in rows if values in (None, class_of(row))))
    def altered(self, start, tables):  # the tables whose definition is not the recorded one (`check_tables`)
        mine, recorded = (self.columns, start.columns) if self.mysql or not holds("R6") else (self.versions, start.versions)
        return dict.fromkeys((t for t in tables if mine[t] != recorded[t]), "its definition differs")
    def check_log(self, start, since):
        if self.mysql and self.purged > since: raise LogGone(f"purged to {self.purged}, needed from {since}")
        if not self.mysql and self.slots.get(start.id, 10**9) > since:
            raise LogGone(f"the slot {start.id} is at {self.slots.get(start.id)}, needed from {since}", own=True)
    def acknowledge(self, start, end):
        if start.id in self.slots: self.slots[start.id] = max(self.slots[start.id], end)
    def discard(self, start): self.slots.pop(start.id, None)

# ================================================================================================ records
Unit = namedtuple("Unit", "values upper rows")  # rows of a keyless table (values: which ones) at the exact position ``upper``
# The rows from which a table comes to X. They contain everything before ``since`` (L), and nothing after ``until`` (P). The log
# of ``start`` has the changes after L. copy: the run whose published copy this is.
Basis = namedtuple("Basis", "table start since until columns rows units incarnation copy", defaults=({}, (), 0, ""))
# A stretch of the log that was read; a piece is a recorded one. net: table -> [(index of the first change, key, before it, after
# the last one)], keyless: every change. pending: xid -> its changes. decided: xid -> the index of its commit.
Segment = namedtuple("Segment", "since until net pending decided")
# The entries of a ledger
Begun = namedtuple("Begun", "starts bases recorded eras x asked")  # recorded: table -> the start that last recorded it
PieceTaken = namedtuple("PieceTaken", "start piece")
ReadsEnded = namedtuple("ReadsEnded", "bases bound x layers")  # layers: (table, key) -> the row that was read again at x
Moved = namedtuple("Moved", "x start again bases eras pieces")  # again: table -> why; pieces: the last ones, up to x
Extracted, Committed = namedtuple("Extracted", "changes feeds"), namedtuple("Committed", "files left_out")
Published, Ended = namedtuple("Published", "run"), namedtuple("Ended", "run")

class State(namedtuple("State", "number token begun x starts recorded bases eras pieces moves reads delta commit ended",
                       defaults=(0, "begin", None, None, {}, {}, {}, {}, {}, 0, None, None, None, None))):
    """What the entries of a ledger mean together. eras: table -> the statements over which its basis is carried."""
    def after(self, token, entry):
        s = self._replace(number=self.number + 1, token=token)
        if isinstance(entry, Begun):
            return State(s.number, token, entry, entry.x, entry.starts, entry.recorded, entry.bases, entry.eras)
        if isinstance(entry, PieceTaken):
            return s._replace(pieces=s.pieces | {entry.start: (*s.pieces.get(entry.start, ()), entry.piece)})
        if isinstance(entry, ReadsEnded):
            return s._replace(reads=entry, bases=s.bases | entry.bases, x=s.x if entry.x is None else entry.x)
        if isinstance(entry, Moved):
            return s._replace(
                x=entry.x, moves=s.moves + 1, reads=None, delta=None, starts=s.starts | {entry.start.id: entry.start},
                pieces=s.pieces | {id: (*s.pieces[id], *more) for id, more in entry.pieces.items()},
                recorded=s.recorded | dict.fromkeys(entry.start.columns, entry.start.id),
                bases={t: b for t, b in (s.bases | entry.bases).items() if t not in entry.again},
                eras={t: e for t, e in (s.eras | entry.eras).items() if t not in entry.again})
        return s._replace(**{{Extracted: "delta", Committed: "commit"}.get(type(entry), "ended"): entry})
    def permits(self, entry):  # the guard of each entry. `append` asks, because an attempt may have any state at hand
        only = Published if self.commit else Begun if self.ended or not self.begun else None
        needs = {PieceTaken: not self.reads, ReadsEnded: not self.reads, Extracted: self.reads, Committed: self.delta}
        return isinstance(entry, only) if only else needs.get(type(entry), True)
    tables = property(lambda self: sorted(self.recorded))
    def recorded_in(self, table):  # the start that last recorded a table. It is read from there if it has no basis
        return self.starts[self.recorded[table]]
    def start_of(self, table):  # the start whose log brings a table to X
        return self.starts[self.bases[table].start if table in self.bases else self.recorded[table]]
    def reads_on(self, id):  # the tables whose changes the pieces of a start have: those that are read, not those of copies
        return [t for t in self.tables if self.start_of(t).id == id and not (t in self.bases and self.bases[t].copy)]
    def chain_end(self, id): return self.pieces[id][-1].until if self.pieces.get(id) else self.starts[id].position
    def columns_at(self, table, index):  # the columns that a table has in the log at ``index``, as far as the run knows
        columns = (self.bases[table].columns if table in self.bases else self.start_of(table).columns[table])
        return next((e.columns for e in reversed(self.eras.get(table, ())) if e.at <= index), columns)
    def limit(self, table):
        """Where the log of a table ends: at X, or at the end of the reads if they may have seen what is behind X."""
        return self.x if self.bases[table].until <= self.x else self.reads.bound.end

class Store(dict):
    def create(self, path, data):  # make an object, unless there is one of this name
        return path not in self and not self.update({path: data})
    def __missing__(self, path): raise Refused(f"a file is gone: {path.split('/')[1]}")

class Ledger:
    """The decisions of a run in one order. An entry can be created once, and its name contains its predecessor."""
    def __init__(self, store, run): self.store, self.run = store, run
    def place(self, state): return f"{self.run}/ledger/{state.number + 1:06}" + (f"-{state.token}" if holds("L1") else "")
    def state(self):
        state = State()
        while self.place(state) in self.store: state = state.after(*self.store[self.place(state)])
        return state
    def append(self, state, entry, token):
        """Record an entry after ``state``. False: another entry is there, or the ledger was removed meanwhile."""
        if holds("L6") and not state.permits(entry) or not self.store.create(self.place(state), (token, entry)): return False
        say(self.run, f"entry {state.number + 1}:", type(entry).__name__, getattr(entry, "x", ""))
        return not holds("L3") or self.state().number > state.number  # nobody finds an entry whose predecessors are gone

class Run:
    """One attempt of a task of one run."""
    def __init__(self, airflow, id, token):
        self.id, self.token, self.tokens, self.asked, self.bounding = id, token, 0, airflow.asked.get(id), False
        self.server, self.store, self.world, self.ledger = airflow.server, airflow.store, airflow.world, Ledger(airflow.store, id)
    def append(self, state, entry):
        self.tokens += 1
        return self.ledger.append(state, entry, f"{self.token}.{self.tokens}")
    def state(self):
        state = self.ledger.state()
        if state.begun is None or isinstance(state.ended, Ended): raise Refused("the run has ended: clear lock_and_record")
        return state

# ================================================================================================ the log
def read_segment(run, state, start, since, until, tables):
    """Read a stretch of the log. The reader stops at a statement on a table over which the run does not carry it."""
    server, net, pending, decided, places = run.server, {t: [] for t in tables}, {}, {}, {}
    server.check_log(start, since)
    if until > len(server.log): raise LogGone("the log ends before the end of the stretch")
    for index, e in enumerate(server.log[since:until], since):
        if e.ddl and server.mysql and e.ddl.table in net and e.ddl not in state.eras.get(e.ddl.table, ()):
            unseen = not holds("R6") and e.ddl.columns == start.columns[e.ddl.table] or not holds("A0") and index >= state.x
            if not unseen: raise SchemaChanged(f"{e.ddl.kind} at {index}", [e.ddl.table])
        if e.kind == "P": pending[e.xid] = e.changes
        if e.kind == "C" and pending.pop(e.xid, None) is None:
            decided[e.xid] = index
            continue
        for table, key, before, after in server.changes_of(e):
            if table not in net: continue
            for row in (before, after):  # PostgreSQL: the log describes the columns of each row
                if row and not server.mysql and tuple(n for n, _ in row) != state.columns_at(table, index):
                    raise SchemaChanged(f"other columns at {index}", [table])
            if table == KEYLESS or (table, key) not in places:
                places[table, key] = len(net[table])
                net[table].append((index, key, before, after))
            else:
                net[table][places[table, key]] = (*net[table][places[table, key]][:3], after)
    return Segment(since, until, net, pending, decided)

class Log:
    """The log from a start on: the recorded pieces, and the rest."""
    def __init__(self, run, state, id):
        self.run, self.state, self.start, self.end = run, state, state.starts[id], state.chain_end(id)
        self.pieces = state.pieces.get(id, ())
    def read_on(self, until, tables=None):
        """Read from the end of the chain on. A piece has both images of each row, and does not reach across X."""
        since, x, server = self.end, self.state.x, self.run.server
        if x is not None and since < x < until and holds("S10"): until = x
        if not holds("S3") and server.mysql: since = min(max(since, server.purged), until)
        tables = self.state.reads_on(self.start.id) if tables is None else tables
        piece = read_segment(self.run, self.state, self.start, since, until, tables)
        if not self.pieces:  # what was prepared before the start and may be committed after it
            earlier = {e.xid: e.changes for e in server.log[server.purged : self.start.position] if e.kind == "P"}
            piece = piece._replace(pending=earlier | piece.pending)
        self.pieces, self.end = (*self.pieces, piece), until
        return piece
    def cuts(self, tables, *more):  # a segment ends at each statement over which its tables are carried
        eras = {e.at + 1 for t in tables for e in self.state.eras.get(t, ()) if holds("B5")}
        return sorted(c for c in eras | {*more} if self.end < c <= max(more, default=0))
    def segments(self, limits):  # return all segments up to where the tables need them. ``limits``: table -> where its log ends
        state, until, server = self.state, max(limits.values()), self.run.server
        for stop in self.cuts(limits, *limits.values(), min(state.x, until)):
            self.read_on(stop, [t for t, limit in limits.items() if limit >= stop])
            yield
        end, mark, _ = state.reads.bound
        if not server.mysql and self.end >= end > state.chain_end(self.start.id) and mark not in {e.id for e in server.log[:end]}:
            raise LogGone("the log has lost the mark of the reads")
        return [s for s in self.pieces if s.since < until]

def spool(run):
    """Beside the reads: read the log in pieces, record each, and only then let the source remove it."""
    server = run.server
    while True:
        yield
        state = run.state()
        if state.reads or state.commit: return
        for id, start in state.starts.items() if not run.bounding else ():
            log = Log(run, state, id)
            if not state.reads_on(id) or log.end >= server.end() or server.rng.random() < 0.5: continue
            piece = log.read_on(server.rng.randrange(log.end, server.end()) + 1)
            yield
            if not holds("S1"):
                server.acknowledge(start, piece.until)
                yield
            recorded, now = run.append(state, PieceTaken(id, piece)), run.ledger.state()
            if not holds("S4") and not recorded and id in now.starts and not now.reads: run.append(now, PieceTaken(id, piece))
            yield
            if id in run.ledger.state().starts:
                server.acknowledge(start, run.ledger.state().chain_end(id) if holds("S2") else piece.until)

# ================================================================================================ reads
def parts_of(state, table): return (0, 1) if table != KEYLESS or state.begun.x is not None else ()

def complete_reads(run):
    """Read what has no basis, bound the reads, and move if a table was altered. Snapshot does this, and extract_delta after a
    move. It does not matter which attempt of which task has read a part."""
    server, store, ends = run.server, run.store, {}
    while True:
        state, run.bounding = run.state(), False
        if state.reads: return state
        missing, altered, records = [t for t in state.tables if t not in state.bases], {}, {}
        early = (yield from server.bound_reads()) if not holds("C5") else None
        for table in missing:
            start = state.starts[state.recorded[table]]
            if server.rng.random() < 0.3:  # the watch of each minute
                altered |= server.altered(start, [t for t in missing if state.recorded[t] == start.id])
            if altered and server.rng.random() < 0.5: break  # move at once: the parts that are left are read later
            try:
                for part in parts_of(state, table):
                    path = f"{run.id}/parts/{start.id if holds('R1') else ''}/{table}/{part}"
                    if path not in store or store[path][1] != server.incarnation and holds("R7"):
                        ends.pop((start.id, table), None)
                        store[path] = yield from read_part(run, start, table, part)
                        yield
                    records[table, part] = store[path]
                ended = (start.id if holds("L4") else "", table)
                if ended not in ends and not server.altered(start, [table]):
                    ends[ended] = len(server.log)  # an end of the log after the last part
            except SchemaChanged as error:
                altered[table] = str(error)
        run.bounding = True  # this attempt records no more pieces until the entry is made
        bound = early or (yield from server.bound_reads())
        if any(state.chain_end(id) > bound.end for id in state.starts): continue  # a zombie's piece is behind the bound
        if holds("R7"):
            if any(record[1] != bound.incarnation for record in records.values()): continue
            old = [t for t, b in state.bases.items() if not b.copy and b.incarnation != bound.incarnation]
            altered |= dict.fromkeys(old, "the server restarted after it was read")
        for table in state.tables:  # a table to which the log behind X is applied must not be altered until the bound
            if table in missing or state.x is not None and state.bases[table].until > state.x:
                altered |= server.altered(state.recorded_in(table), [table])
        new = {t: basis for t in missing if (basis := basis_of(state, t, records, bound, ends)) is not None}
        if not altered and state.begun.x is None:
            try:
                if (again := (yield from read_again(run, state, new, bound))) is not None: run.append(state, again)
            except SchemaChanged as error:
                altered = {error.tables[0]: str(error)}
        elif not altered:
            run.append(state, ReadsEnded(new, bound, None, None))
        if altered: yield from move(run, state, altered, new)
        yield

def read_part(run, start, table, part):
    server = run.server
    while True:
        incarnation = server.incarnation
        if table == KEYLESS: return server.read_exact(table, part, start), incarnation
        rows, end = server.read(table, part, start), len(server.log)
        yield
        while not server.mysql and server.flushed < end and server.incarnation == incarnation: yield  # until no crash can undo it
        if server.incarnation == incarnation or not holds("R7"): return rows, incarnation

def basis_of(state, table, records, bound, ends):
    start, found = state.starts[state.recorded[table]], [records.get((table, part)) for part in parts_of(state, table)]
    if not found or None in found: return None
    common = {"columns": start.columns[table], "incarnation": found[0][1]}
    if table == KEYLESS:
        uppers = [unit.upper for unit, _ in found]
        return Basis(table, start.id, min(uppers), max(uppers), units=tuple(unit for unit, _ in found), **common)
    until = min(ends.get((start.id if holds("L4") else "", table), bound.end), bound.end)
    return Basis(table, start.id, start.position, until, rows={k: row for part, _ in found for k, row in part.items()}, **common)

def read_again(run, state, new, bound):
    """PostgreSQL, keys only: a pass, then a view at U, which becomes X. The rows at X come from the server, not from images."""
    server, layers, bases = run.server, {}, state.bases | new
    def touched(table, since, until):
        server.check_log(state.starts[bases[table].start], since)
        return {c[1] for e in server.log[since:until] for c in server.changes_of(e) if c[0] == table}
    reached = server.end()
    yield from server.settle(reached)
    for table, basis in bases.items():
        for key in touched(table, basis.since, reached):
            row = server.shown[table].get(key)
            layers[table, key] = row and project(row, basis.columns, table)
        yield
    server.flush()
    upper = len(server.log)
    yield from server.settle(upper)
    view, _ = server.truth(upper)
    for table in state.tables:
        if server.altered(state.recorded_in(table), [table]): raise SchemaChanged("another version in the view", [table])
    for table in state.tables:
        yield
        lost = not all(d.rows for d in server.ddls(table, upper))  # the table has another file: the view shows it empty
        if lost and holds("P1"): return None
        if table == KEYLESS:
            start = state.starts[state.recorded[table]]
            unit = Unit(None, upper, () if lost else tuple(view[table].values()))
            new = new | {table: Basis(table, start.id, upper, upper, start.columns[table], {}, (unit,), bound.incarnation)}
            continue
        for key in touched(table, reached, upper) if holds("P2") else ():
            row = None if lost else view[table].get(key)
            layers[table, key] = row and project(row, bases[table].columns, table)
    if server.incarnation == bound.incarnation: return ReadsEnded(new, Bound(upper, 0, bound.incarnation), upper, layers)

# ================================================================================================ moves
def move(run, state, altered, ended):
    """X goes to a later position. Bases stay, parts of unfinished reads stay; altered tables are read again, or carried.
    ``ended``: the reads that have ended, also those of altered tables."""
    server, altered, bases, end = run.server, dict(altered), state.bases | ended, run.server.end()
    if state.begun.asked is not None and holds("R9"): raise Refused("a requested position never moves")
    if state.moves >= MOVES: raise Refused("too many moves")
    for id in state.starts if server.mysql and holds("R6") else ():  # one move for all statements that the log shows by now
        for table in state.reads_on(id):
            if found := [d for d in server.ddls(table, state.chain_end(id)) if d not in state.eras.get(table, ())]:
                altered.setdefault(table, found[0].kind)
    start = yield from server.record_start(f"{run.id}.{run.token}.{run.tokens}", sorted(altered))
    while holds("R13") and start.position < end:  # X contains the statements, each piece, and what ended reads have seen
        yield
        start = yield from server.record_start(start.id, sorted(altered))
    found = {t: carried(server, state, bases.get(t), start, why) for t, why in altered.items()}
    eras = {t: statements for t, statements in found.items() if statements}
    again, pieces = {t: why for t, why in altered.items() if t not in eras}, {}
    kept = state._replace(x=start.position, eras=state.eras | eras, bases={t: b for t, b in bases.items() if t not in again},
                          recorded={t: id for t, id in state.recorded.items() if t not in again})
    try:
        for table in [t for t in state.tables if holds("L5") or t not in state.eras]:  # what is kept is unchanged up to the new X
            if table not in altered and not server.mysql and server.altered(state.recorded_in(table), [table]):
                raise SchemaChanged("altered before the later position", [table])
        for id in state.pieces:
            log = Log(run, kept, id)
            for stop in log.cuts(kept.reads_on(id), start.position) if kept.reads_on(id) else ():
                try: pieces.setdefault(id, []).append(log.read_on(stop))
                except LogGone:
                    raise SchemaChanged("the log after its pieces is gone", kept.reads_on(id)) from None
                yield
    except SchemaChanged as error:
        server.discard(start)
        return (yield from move(run, state, altered | dict.fromkeys(error.tables, str(error)), ended))
    yield
    if not run.append(state, Moved(None if state.begun.x is None else start.position, start, again, ended, eras, pieces)):
        return server.discard(start)  # another attempt was first
    say(run.id, "moves to", start.position, "again", again, "carried", {t: [e.kind for e in es] for t, es in eras.items()})
    yield
    tidy(run)

def carried(server, state, basis, start, why):
    """The statements over which a finished read is carried to the position of ``start``. None: the table is read again."""
    if basis is None or basis.copy or basis.table == KEYLESS or state.begun.x is None or "restarted" in why or "gone" in why:
        return None
    found = server.ddls(basis.table, basis.since, start.position)
    early = any(d.at < basis.until for d in found) and holds("R18")
    known = found and all(d.rows for d in found) and found[-1].columns == start.columns[basis.table]
    return found if known and not early else None

def tidy(run):
    """Let the source remove what no basis needs. Each attempt does this: the one that moved the run may have been killed."""
    state = run.ledger.state()
    for id, start in state.starts.items():
        if not any(state.start_of(t).id == id for t in state.tables): run.server.discard(start)
        elif state.pieces.get(id): run.server.acknowledge(start, state.chain_end(id))

# ================================================================================================ the rule
# What brings a basis to X. now: the row at X of each touched key, or None. was: the row that a copy must have. counts: how often
# a row of a keyless table is added, less how often it is removed.
Change = namedtuple("Change", "now was counts")

def mapped(server, row, eras, index):
    """What the statements behind ``index`` make of a row from there."""
    for era in eras:
        if row is not None and era.at > index:
            row = era.rows(row)
            if era.kind == "add" and not holds("B2"): row = (*row[:-1], (era.column, server.defaults[era.table, era.column]))
    return row

def changes_in(segments, table):
    """All changes of a table in the order of the log, each with the end of the stretch over which it was netted. The changes of
    a prepared transaction are at its commit."""
    prepared, found = {}, []
    for segment in segments:
        for xid, index in segment.decided.items():
            if xid not in prepared and holds("S6"): raise LogGone("the rows of a prepared transaction are gone")
            found += [(index, index + 1, k, b, a) for t, k, b, a in prepared.get(xid, ()) if t == table]
        prepared |= segment.pending if holds("S6") else {}
        found += [(index, segment.until, key, before, after) for index, key, before, after in segment.net[table]]
    return sorted(found, key=lambda one: one[0])

def compose(server, state, basis, segments):
    """The rule: the row of a key at X is the `after` of its last change in (L, X], else the `before` of its first change in
    (X, P], else the row of the basis. Keyless: the rows of each unit, plus the changes in (U, X], less those in (X, U]."""
    change, behind, x, limit = Change({}, {}, Counter()), set(), state.x, state.limit(basis.table)
    if not holds("R4") and state.moves and basis.start == state.begun.recorded.get(basis.table): x = state.begun.x
    for index, netted, key, *images in changes_in([s for s in segments if s.since < limit], basis.table):
        before, after = (mapped(server, row, state.eras.get(basis.table, ()), index) for row in images)
        if basis.table == KEYLESS:
            for unit in basis.units:
                upper = unit.upper if holds("R15") else state.starts[basis.start].position
                sign = (upper <= index < x) - (x <= index < upper)
                for row, count in ((before, -sign), (after, sign)):
                    if row is not None and unit.values in (None, class_of(row)): change.counts[row] += count
        elif netted <= x and (holds("A-B") or basis.until <= x):
            change.was.setdefault(key, before)
            change.now[key] = after
        elif x <= index < limit and key not in behind:
            behind.add(key)
            if change.now.setdefault(key, before) != before and not DROPPED:  # a witness that costs nothing
                raise Wrong(f"STOPPED: {basis.table} {key}: both sides of X disagree: {change.now[key]}, {before}")
    return change

def apply(server, basis, change, eras):
    """The rows at X: in the same way for a read, a kept read, a published copy, and rows that were read again."""
    if basis.table == KEYLESS:
        counts = Counter(mapped(server, row, eras, -1) for unit in basis.units for row in unit.rows)
        counts.update(change.counts)
        if any(n < 0 for n in counts.values()): raise Wrong(f"STOPPED: {basis.table}: a count below zero: {counts}")
        return {(row, i): row for row, n in counts.items() for i in range(n)}
    rows = {key: mapped(server, row, eras, -1) for key, row in basis.rows.items()}
    for key, row in change.was.items() if basis.copy else ():  # the second witness
        if rows.get(key) != row: raise Wrong(f"STOPPED: {basis.table} {key}: the copy has {rows.get(key)}, the log {row}")
    for key, row in change.now.items(): put(rows, key, row)
    return rows

# ================================================================================================ the Airflow tasks
def lock_and_record(run):
    """Fix the position, unless the run goes on. If the source has removed log that the run needs, it begins anew."""
    while True:
        state = run.ledger.state()
        if state.begun and not isinstance(state.ended, Ended):
            try:
                for id in {state.start_of(t).id for t in state.tables} if not state.commit else ():
                    run.server.check_log(state.starts[id], state.chain_end(id))
                return
            except LogGone as error:
                say(run.id, "begins anew:", error)
        yield
        begun = yield from begin(run, run.world.tables)
        if run.append(state, begun): return
        for start in begun.starts.values(): run.server.discard(start)

def begin(run, tables):
    """Choose the bases (in the code: preflight), and fix X."""
    server, name, starts, bases, eras = run.server, f"{run.id}.{run.token}.{run.tokens}", {}, {}, {}
    if run.asked is None:
        start = yield from server.record_start(name, tables)
    else:
        yield from server.settle(run.asked)
        start = server.start_in_past(name, run.asked, tables)
        late = run.asked > server.executed() or run.asked > server.end() and holds("X1")
        if late or any(server.ddls(t, start.position) for t in tables): raise Refused("the requested position cannot be reached")
    for table in tables:
        if (base := choose_base(run, f"{name}.{table}", table, start.position)) is not None:
            bases[table], eras[table], starts[f"{name}.{table}"] = base
    x, asked = None if run.world.again else start.position, None if run.asked is None else server.name(run.asked)
    return Begun(starts | {name: start}, bases, dict.fromkeys(tables, name), eras, x, asked)

def choose_base(run, id, table, x):
    """The last copy of a table as its basis, the statements since then, and a start. None: the table is read in full."""
    server, again, heads = run.server, run.world.again, {n: h for n, h in run.store.items() if n.endswith("/latest")}
    head = heads.get(f"lake/{copy_of(table)}/latest")
    if head is None or not run.world.refresh or again and table == KEYLESS or head[1] > x: return None
    position = head[1] if holds("G8") else min(x, max(h[1] for h in heads.values()))
    columns, rows = run.store[f"lake/{copy_of(table)}/{head[0]}"][table]
    found = server.ddls(table, position, x)
    if not all(d.rows for d in found) or found and again or server.ddls(table, x): return None
    try: start = server.start_in_past(id, position, [table])
    except LogGone: return None
    units = (Unit(None, position, tuple(rows.values())),) if table == KEYLESS else ()
    return Basis(table, id, position, position, columns, rows, units, copy=head[0]), found, start

def snapshot(run):
    tidy(run)
    yield from complete_reads(run)

def extract_delta(run):
    """The changes of all tables, start by start, because each start has its own log."""
    while not run.state().commit and not run.state().delta:
        state, id = (yield from complete_reads(run)), None
        changes, feeds = {}, {}
        try:
            for id in state.starts if state.reads.layers is None else ():
                if limits := {t: state.limit(t) for t in state.tables if state.bases[t].start == id}:
                    segments = yield from Log(run, state, id).segments(limits)
                    changes |= {t: compose(run.server, state, state.bases[t], segments) for t in limits}
                    top = state.x if holds("F1") else state.begun.x
                    feeds |= {t: [c[2:] for c in changes_in(segments, t) if c[0] < top]
                              for t in limits if state.bases[t].copy and not state.eras.get(t)}
        except SchemaChanged as error:
            yield from move(run, state, {error.tables[0]: str(error)}, {})
            continue
        except LogGone:
            kept = [t for t in state.reads_on(id) if state.bases[t].until <= state.x]
            if not kept or not state.moves: raise
            yield from move(run, state, dict.fromkeys(kept, "its log is gone"), {})
            continue
        if state.reads.layers is not None:
            layers = state.reads.layers.items()
            changes = {t: Change({k: row for (u, k), row in layers if u == t}, {}, {}) for t in state.tables}
        if not holds("E1") and {"m1", "m2"} <= changes.keys():
            both = changes["m2"].now | changes["m1"].now
            changes |= {t: Change({k: both[k] for k in changes[t].now}, {}, {}) for t in MERGED}
        yield
        run.append(state if holds("L2") else run.state(), Extracted(changes, feeds))

def consolidate(run):
    """Apply the changes, commit the files of all tables at once, publish."""
    while not (state := run.state()).commit:
        if state.delta is None: raise Refused("the step extract_delta is not finished")
        files, left_out = {}, set()
        for table in state.tables:
            rows = apply(run.server, state.bases[table], state.delta.changes[table], state.eras.get(table, ()))
            if any(ODD in dict(row).values() for row in rows.values()):
                left_out |= {t for t in state.tables if copy_of(t) == copy_of(table)} if holds("E0") else {table}
            files[table] = f"{run.id}/staged/{run.token}/{table}"
            run.store[files[table]] = (state.columns_at(table, state.x), rows)
            yield
        files = {t: path for t, path in files.items() if t not in left_out}
        if not files: raise Refused("no table is left")
        if run.append(state, Committed(files, left_out)) and not run.ledger.state().commit:
            raise Wrong("a run that was removed has committed")
        yield
    copies = {}
    for table, path in state.commit.files.items(): copies.setdefault(copy_of(table), {})[table] = run.store[path]
    for name, copy in sorted(copies.items()):
        run.store.create(f"lake/{name}/{run.id}", copy)
        check_copy(run, state, name)
        yield
        if run.store.get(f"lake/{name}/latest", ("", -1))[1] < state.x: run.store[f"lake/{name}/latest"] = (run.id, state.x)
        yield
    if not state.ended: run.append(state, Published(run.id))
    for start in state.starts.values(): run.server.discard(start)

def check_copy(run, state, name):
    """The copy has the rows of the truth at X, and its feed leads to them."""
    true, columns = run.server.truth(state.x)
    if state.begun.asked not in (None, run.server.name(state.x)):
        raise Wrong(f"MOVED: the copy is at {run.server.name(state.x)}, requested was {state.begun.asked}")
    if name == "m" and {*run.store[f"lake/m/{run.id}"]} != {*MERGED}: raise Wrong("WRONG ROWS: a merged table lacks a shard")
    for table, (has, rows) in run.store[f"lake/{name}/{run.id}"].items():
        if has != columns[table] or Counter(rows.values()) != Counter(true[table].values()):
            raise Wrong(f"WRONG ROWS: {table} at {state.x}: has {has} {rows}; should have {columns[table]} {true[table]}")
        replayed = dict(state.bases[table].rows)
        for key, _, after in state.delta.feeds.get(table, ()): put(replayed, key, after)
        if table in state.delta.feeds and table != KEYLESS and replayed != rows:
            raise Wrong(f"WRONG FEED: {table}: it leads to {replayed}, not to {rows}")

def clean(run):
    """Remove a run that will not go on: fence it first, then remove its records and files, the first ones first."""
    state = run.ledger.state()
    if state.begun is None or not run.append(state, Ended(run.id)): return
    for path in sorted(p for p in run.store if p.startswith(f"{run.id}/")):
        yield
        run.store.pop(path, None)

# ================================================================================================ the world
def draw(rng):
    kind, names = rng.choice(("mysql", "postgres")), ("add", "add", "drop", "rename", "exchange", "default")
    again = kind == "postgres" and rng.random() < 0.25
    tables = rng.choice((["s", "t"], ["s", "t"], ["s", "t", "q"], ["t", "q"], ["t", "m1", "m2"], ["m1", "m2"]))
    return SimpleNamespace(
        kind=kind, tables=tables, again=again, ddl=rng.choice((names, ("truncate",), ("exchange",), (*names, "truncate"))),
        ddl_tables=[t for t in tables if t != KEYLESS or rng.random() < 0.3], haste=rng.choice((0.15, 0.5, 1)),
        flushes=rng.choice((0.02, 0.5)), lag=rng.choice((0.06, 0.5)), spools=not again and rng.random() < 0.8,
        refresh=rng.random() < 0.7, purges=kind == "mysql" and rng.random() < 0.2, xa=rng.random() < 0.4, odd=rng.random() < 0.15,
        lost_slots=kind == "postgres" and rng.random() < 0.1, crashes=3 * (kind == "postgres" and rng.random() < 0.5),
        nights=rng.choice((1, 1, 2, 3)))

def attempted(work, run):
    """`run_task`: an error of an attempt does not matter if the ledger went on meanwhile. Then the attempt looks again."""
    while True:
        seen = run.ledger.state().token
        try: return (yield from work(run))
        except Refused as error:
            error.args = (f"{work.__name__}: {error}",)
            if run.ledger.state().token == seen: raise

class Attempt:
    """The process of one try of a task: its work, and the spool beside it."""
    def __init__(self, airflow, work, run_id):
        self.run = Run(airflow, run_id, f"try{next(airflow.attempts)}")
        self.work = attempted(work, self.run)
        self.spool = spool(self.run) if work is snapshot and airflow.world.spools else None
    def step(self, rng):  # go on until the next moment. Return how the task has ended; None: it goes on
        spools = self.spool is not None and rng.random() < 0.4
        try: next(self.spool if spools else self.work)
        except (StopIteration, Refused) as end:
            # The spool is an additional service: if it stops at a statement, it begins again, perhaps after a move.
            self.spool = spool(self.run) if spools and isinstance(end, SchemaChanged) else None
            return None if spools else end

class Airflow:
    """Runs the tasks of each night in order: kills attempts, starts second ones, freezes some, clears finished tasks."""
    def __init__(self, seed):
        self.rng, self.attempts, self.zombies, self.asked, self.store = random.Random(seed), itertools.count(1), [], {}, Store()
        self.world = draw(self.rng)
        self.server = Server(self.rng, self.world)
    def night(self, run_id):
        rng, server, at, cleared = self.rng, self.server, 0, 0
        server.left += rng.randrange(8)
        for _ in range(rng.randrange(60)): server.step()
        past = rng.randrange(max(0, server.executed() - 5), server.executed() + 1)
        self.asked.setdefault(run_id, past if rng.random() < 0.2 and not self.world.again else None)
        server.left, server.ddl_left = server.left + rng.randrange(4, 16), rng.choice((0, 0, 1, 1, 2, 4))
        tasks = [lock_and_record, snapshot, extract_delta, consolidate]
        while at < len(tasks):
            self.task(tasks[at], run_id)
            at += 1
            if self.world.crashes and rng.random() < 0.2: server.crash()
            if cleared < 2 and rng.random() < 0.08:
                at, cleared = rng.randrange(at), cleared + 1
                say("CLEARED from", tasks[at].__name__)
            if self.world.lost_slots and rng.random() < 0.2:
                server.slots = {name: at for name, at in server.slots.items() if name == "standing" or rng.random() < 0.5}
        server.slots["standing"] = max(server.slots["standing"], min(h[1] for n, h in self.store.items() if n.endswith("/latest")))
    def task(self, work, run_id):
        rng, attempts, tries = self.rng, [Attempt(self, work, run_id)], 0
        for _ in range(6000):
            z = rng.random()
            if z < 0.3:
                self.server.step()
            elif z < 0.32 and tries < 6:
                tries += 1
                attempts.append(Attempt(self, work, run_id))
                if rng.random() < 0.5:
                    say(work.__name__, "is killed or frozen; another attempt begins")
                    self.zombies += [attempts.pop(0)] * rng.choice((0, 1))  # presumed dead: perhaps it goes on later
                elif rng.random() < 0.05:
                    self.zombies += attempts
                    raise Refused("the user stops the run")
            elif z < 0.45 and self.zombies:
                self.haunt()
            else:
                attempt = rng.choice(attempts)
                if (end := attempt.step(rng)) is None: continue
                attempts.remove(attempt)
                if isinstance(end, StopIteration):
                    self.zombies += attempts
                    return
                if end.own and not self.world.lost_slots: raise Wrong(f"LOG LOST: the run itself let it go: {end}")
                if not attempts: raise end
        raise Refused("stuck")
    def haunt(self):
        zombie = self.rng.choice(self.zombies)
        if zombie.step(self.rng) is not None: self.zombies.remove(zombie)

def one(seed, counts):
    TRACE.clear()
    airflow = Airflow(seed)
    for run_id in [f"run{number}" for number in range(airflow.world.nights) for _ in "12"]:
        if Ledger(airflow.store, run_id).state().commit: continue
        try:
            airflow.night(run_id)
        except Refused as error:
            say("REFUSED", error)
            counts.update(["refused", "  refused by " + "".join(c for c in str(error) if not c.isdigit())[:70]])
            for _ in clean(Attempt(airflow, clean, run_id).run) if airflow.rng.random() < 0.5 else ():
                while airflow.zombies and airflow.rng.random() < 0.7: airflow.haunt()
            continue
        state = Ledger(airflow.store, run_id).state()
        pieces, carried = any(state.pieces.values()), [bool(b.copy) for t, b in state.bases.items() if state.eras.get(t)]
        counts.update(name for name, true in {
            "published": 1, "  moved": state.moves, "  spooled": pieces, "  moved with pieces": state.moves and pieces,
            "  read, carried over DDL": False in carried, "  rolled forward over DDL": True in carried,
            "  rolled forward": any(b.copy for b in state.bases.values()), "  of the past": state.begun.asked,
            "  read again": state.reads.layers, "  tables left out": state.commit.left_out,
            "  reads across X": any(b.since < state.x < b.until for b in state.bases.values()),
            "  keyless at several positions": any(len({u.upper for u in b.units}) > 1 for b in state.bases.values()),
        }.items() if true)

def search(worlds: int, first: int, stop: bool, dropped: str = "") -> "tuple[Counter[str], Exception | None]":
    """Run random worlds without the condition ``dropped``. Return what was counted, and the error of the first wrong world."""
    global DROPPED
    DROPPED, counts, error = dropped, Counter(), None
    for seed in range(first, first + worlds):
        counts["worlds"] += 1
        try: one(seed, counts)
        except (Wrong, KeyError) as wrong:
            counts["WRONG"] += 1
            error = error or wrong
            if stop: break
            print(f"seed {seed}: {wrong}")
    return counts, error

def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("-n", 3000), ("-s", 0), ("--drop", "")): parser.add_argument(name, type=type(default), default=default)
    parser.add_argument("--trace", action="store_true")
    given = parser.parse_args()
    for dropped in [*CONDITIONS] if given.drop == "all" else [given.drop] if given.drop else []:
        counts, error = search(given.n, given.s, True, dropped)
        found = f"world {counts['worlds']:5}: {str(error)[:60]}" if error else f"NOT FOUND in {counts['worlds']}"
        print(f"{dropped:4} {CONDITIONS[dropped][:86]:86} {found}", flush=True)
        if given.trace and error: print(*TRACE, error, sep="\n")
    if given.drop: return 0
    counts, _ = search(given.n, given.s, False)
    print(*(f"{number:7,}  {name}" for name, number in counts.items()), sep="\n")
    print(f"{time.process_time():.1f} s of CPU; {'WRONG' if counts['WRONG'] else 'nothing wrong'}")
    return int(bool(counts["WRONG"]))

if __name__ == "__main__": sys.exit(main())
