"""Where the candidates for a tree's nodes come from."""
