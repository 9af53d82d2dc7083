"""A simulator: real policies on recorded texts, real draft distributions and a virtual clock."""
