"""The shell's own state ruined: its history, its namespace, its counters, its hooks."""
# next: KernelDied AttributeError TypeError
# error: KernelDied AttributeError TypeError
# alone: true

shell = get_ipython()
shell.execution_count = 10**30
shell.user_ns.clear()
shell.events.register = None
shell.events.callbacks.clear()
shell.run_cell_async = None
shell.display_pub = shell.displayhook = None
raise TypeError
