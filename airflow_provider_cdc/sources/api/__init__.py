"""The interface between databases and everything else."""
