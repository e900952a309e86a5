import contextlib
import io

text = io.StringIO()
with contextlib.redirect_stdout(text):
    print("captured")
assert text.getvalue() == "captured\n"
