"""What people type: commands, options, the chat, and how figures look on a terminal.

The top room: no other room imports it, and a program that embeds the engine does not need it.
"""
