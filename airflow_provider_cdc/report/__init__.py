"""What a run did, on one page, for people: as HTML and as Markdown, in the run's folder."""
