assert len([1, 2]) == 2 and isinstance(1, int)
