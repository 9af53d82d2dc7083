"""What people type: commands, options, the chat, and how figures look on a terminal.

The top of the house: nothing imports this room, and a library user never needs it.
"""
