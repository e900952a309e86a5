try:
    raise ExceptionGroup("two", [ValueError(1), KeyError(2)])
except* ValueError:
    pass
except* KeyError:
    pass
