"""Code for sessions that both kinds of databases share."""
