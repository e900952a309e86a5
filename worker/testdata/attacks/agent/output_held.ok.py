import subprocess

subprocess.Popen(["sleep", "1"], start_new_session=True)
