"""What sensors wait for without holding a worker: each trigger asks now and then, in Airflow's triggerer."""

from airflow_provider_cdc import airflow_version

airflow_version.check()
