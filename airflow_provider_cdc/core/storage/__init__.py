"""The lake's storage: folders, URIs, durable files, and records that only one writer can create."""
