"""Sessions that both kinds of databases share."""
