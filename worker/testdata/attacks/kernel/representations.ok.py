class One:
    def _repr_html_(self):
        return "<b>one</b>"


One()
