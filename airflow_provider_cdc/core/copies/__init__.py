"""Published copies: finds the latest copies, their histories, and the copies to remove."""
