"""Hints of the errors that a roll-forward raises."""

DAMAGED = (
    "another program changed the file, or the storage lost it: clear preflight and the tasks after it, or wait for the "
    "next run; with refresh=auto, the table is then read in full"
)
FOREIGN = (
    "the copy's files were changed, or the table was changed without an entry in the log (sql_log_bin=0): read the "
    "table in full (refresh=full), and report the error if it recurs"
)
