"""What programs ask for over HTTP, and the page at /.

    protocol (chat.py ...)  ->  Request  ->  Scheduler  ->  Piece, Piece, ...  ->  protocol

Every protocol is a translation to one `Request` and back; one thread owns the passes of the models.
"""
