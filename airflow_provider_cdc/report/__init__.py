"""The report of a run: one page, as HTML and as Markdown, in the run's folder."""
