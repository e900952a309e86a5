"""Exceptions whose text cannot be had, is endless, or is another one: printing an error must end."""
# error: Liar AttributeError

class Liar(Exception):
    def __str__(self):
        raise ValueError("no text")

    def __repr__(self):
        raise ValueError("no text")

    __cause__ = property(lambda self: Liar())
    __traceback__ = property(lambda self: 7)


raise Liar
