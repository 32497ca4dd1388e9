"""What a DAG's author uses."""
