"""The interface of a source, through which jobs and operators access a database.

Every kind of database implements `Source`. A method is abstract if every kind must have it. Other methods have a
default, for what a database may lack:

- If there is nothing to do, the default does nothing, or returns an empty result. For example, a server that
  keeps no objects for runs has none to release.
- If a user may request something that the database cannot do, the default raises `ConfigurationError`, or returns the
  reason. It never looks as if the request were fulfilled.

`tests/sources/api/test_source.py` lists the methods that each kind overrides.

A source object has settings but no session. It is cheap to create, and can be pickled, because Spark sends it to
executors. Each call that needs a session opens a session. `Source` itself has no state.
"""

from __future__ import annotations

from airflow_provider_cdc.sources.api.log import Log
from airflow_provider_cdc.sources.api.planning import Planning
from airflow_provider_cdc.sources.api.reading import Reading
from airflow_provider_cdc.sources.api.starts import Starts


class Source(Planning, Starts, Reading, Log):
    """One database server, as the jobs and operators use it."""
