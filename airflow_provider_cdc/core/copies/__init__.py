"""Published copies: which is the latest, their histories, which of them are kept."""
