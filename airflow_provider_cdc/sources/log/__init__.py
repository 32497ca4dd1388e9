"""Code for net changes and change feeds that both kinds of databases share."""
