"""Tools that make and judge drafts."""
