"""Net changes as files: reducing them by key, and filtering their images."""
