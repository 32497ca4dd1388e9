"""Net changes and change feeds, as both kinds of databases make them."""
