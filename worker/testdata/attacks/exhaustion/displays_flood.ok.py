from IPython.display import display

handle = display({"text/plain": "x"}, raw=True, display_id="one")
handle.update({"text/plain": "y"}, raw=True)
