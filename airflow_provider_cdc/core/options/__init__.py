"""Options: how one is declared, and all of them."""
