def _run(code, report, name):
    """Runs the code of one file as that of another, the name of which it knows. Its exception goes to a third file, without this frame: its name,
    traceback and text, with NUL between them. stderr has what the code writes alone, as that of a kernel has."""
    import os
    import sys

    pid, names, sys.argv = os.getpid(), globals(), [name]
    names["__file__"] = name
    del names["_run"]
    try:
        with open(code, "rb") as file:
            code = compile(file.read(), name, "exec")
        exec(code, names)
        return
    except SystemExit:
        raise
    except BaseException as raised:
        error = raised.with_traceback(raised.__traceback__.tb_next)
    hook, most = sys.excepthook, 1 << 20
    if os.getpid() == pid:  # a fork reports to nobody
        try:
            import traceback

            parts = traceback.format_exception(type(error), error, error.__traceback__)
            try:
                text = str(error.msg if isinstance(error, SyntaxError) else error)  # the name of the file is in the traceback
            except Exception:
                text = "<exception str() failed>"
            lines, text = ("".join(parts).replace("\0", "").encode(errors="replace"), text.encode(errors="replace"))
            with open(report, "r+b") as file:
                file.write(b"\0".join((type(error).__name__.encode(errors="replace"), lines[-most:], text[:most])))
            hook = None if hook is sys.__excepthook__ else hook
        except Exception:  # as of a file system that is full: Python prints it
            pass
    if hook:  # the code's own, as it may print
        hook(type(error), error, error.__traceback__)
    sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)


_run(*__import__("sys").argv[1:])
