"""The words that options accept."""

ALLOW, WAIT, REFUSE = "allow", "wait", "refuse"
AUTO, OFF = "auto", "off"
BEGIN_ANEW = "begin_anew"
CONSISTENCIES = ("auto", "watermark", "lock", "exported", "again")
FAIL, SKIP = "fail", "skip"
FIRST_SHARD, BY_NAME = "first_shard", "name"
FORMATS = ("parquet", "iceberg")
FULL, CHANGES = "full", "changes"
NEW_COLUMN, REPLACE = "new_column", "replace"
ORIGIN_IN_KEY = "origin_in_key"
PRESENT = "present"
RESTART_TABLE, GIVE_UP_PAST = "restart_table", "give_up_past"
STOP, WARN = "stop", "warn"
TEXT, LIST = "text", "list"
UNREPRESENTABLE = ("error", "null", "string")
