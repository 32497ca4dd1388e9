"""Net changes as files: composing them by key, and filtering their images."""
