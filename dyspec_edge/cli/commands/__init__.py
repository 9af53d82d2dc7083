"""The commands of `dyspec-edge`, by what they do; each is a click command with its own options.

What a command needs is imported when it runs, so that the others start quickly.
"""
