"""What notebooks ask of a kernel beside running code: completion, help, history and comms. Each answer is the content of Jupyter's reply."""

import base64
import json

import comm
import sandfarm_display as display
from comm.base_comm import BaseComm
from IPython import get_ipython
from IPython.core.completer import provisionalcompleter, rectify_completions
from IPython.utils.tokenutil import token_at_cursor


def complete(shell, code, cursor_pos=None):
    cursor = len(code) if cursor_pos is None else cursor_pos
    with provisionalcompleter():
        found = list(rectify_completions(code, shell.Completer.completions(code, cursor)))
    types = [{"start": c.start, "end": c.end, "text": c.text, "type": c.type, "signature": c.signature} for c in found]
    return {
        "status": "ok",
        "matches": [c.text for c in found],
        "cursor_start": found[0].start if found else cursor,
        "cursor_end": found[0].end if found else cursor,
        "metadata": {"_jupyter_types_experimental": types},
    }


# How many characters an inspection has of each type: an answer has up to a MiB.
INSPECTED = 256 << 10


def cut(text):
    return text if len(text) <= INSPECTED else text[:INSPECTED] + "\n[the rest is left out: %d characters]" % (len(text) - INSPECTED)


def inspect(shell, code, cursor_pos=None, detail_level=0):
    name = token_at_cursor(code, len(code) if cursor_pos is None else cursor_pos)
    try:
        data = shell.object_inspect_mime(name, detail_level=detail_level)
    except KeyError:
        return {"status": "ok", "found": False, "data": {}, "metadata": {}}
    if not shell.enable_html_pager:
        data.pop("text/html", None)
    return {"status": "ok", "found": True, "data": {kind: cut(text) for kind, text in data.items()}, "metadata": {}}


def is_complete(shell, code):
    status, indent = shell.input_transformer_manager.check_complete(code)
    return {"status": status, "indent": " " * (indent or 0)} if status == "incomplete" else {"status": status}


def history(shell, hist_access_type="tail", output=False, raw=True, session=0, start=0, stop=None, n=None, pattern="*", unique=False):
    manager = shell.history_manager
    if hist_access_type == "tail":
        found = manager.get_tail(n, raw=raw, output=output, include_latest=True)
    elif hist_access_type == "range":
        found = manager.get_range(session, start, stop, raw=raw, output=output)
    else:
        found = manager.search(pattern, raw=raw, output=output, n=n, unique=unique)
    return {"status": "ok", "history": list(found)}


def expressions(shell, expressions):
    """The values of expressions, after a cell."""
    return {"status": "ok", "values": json.loads(display.as_json(shell.user_expressions(expressions)))}


def comm_info(shell, target_name=None):
    comms = comm.get_comm_manager().comms
    found = {key: {"target_name": c.target_name} for key, c in comms.items() if target_name in (None, c.target_name)}
    return {"status": "ok", "comms": found}


def comm_message(shell, kind, content):
    """Passes a message of a notebook to a comm."""
    buffers = [base64.b64decode(buffer) for buffer in content.pop("buffers", ())]
    message = {"header": {"msg_type": kind, "msg_id": ""}, "metadata": content.pop("metadata", {}), "content": content, "buffers": buffers}
    getattr(comm.get_comm_manager(), kind)(None, "", message)
    return {"status": "ok"}


class Comm(BaseComm):
    """A comm whose messages go to the agent. It keeps none."""

    def publish_msg(self, msg_type, data=None, metadata=None, buffers=None, **keys):
        content = {"comm_id": self.comm_id, "data": data or {}, **keys}
        if metadata:
            content["metadata"] = metadata
        if buffers:
            content["buffers"] = [base64.b64encode(buffer).decode("ascii") for buffer in buffers]
        get_ipython().send(msg_type, json.loads(display.as_json(content)))


QUESTIONS = {"complete": complete, "inspect": inspect, "is_complete": is_complete, "history": history, "comm_info": comm_info, "expressions": expressions}


def answer(shell, kind, content):
    """Answers a question of a notebook."""
    if kind in ("comm_open", "comm_msg", "comm_close"):
        return comm_message(shell, kind, content)
    return QUESTIONS[kind](shell, **content)
