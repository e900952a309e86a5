"""Displayed values: from IPython's formats to messages of the agent."""

import base64
import json

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from traitlets import Any


def as_json(value):
    """JSON of a part of a displayed value. Jupyter's kernel also accepts dates, bytes, numbers of libraries and iterables."""

    def other(value):
        if isinstance(value, (bytes, bytearray, memoryview)):
            return base64.b64encode(value).decode("ascii")
        if hasattr(value, "isoformat"):
            return value.isoformat()
        if hasattr(value, "tolist"):  # of numpy
            return value.tolist()
        return list(value)

    try:
        return json.dumps(value, default=other, allow_nan=False)
    except ValueError:  # JSON has no NaN
        return json.dumps(without_nan(json.loads(json.dumps(value, default=other))))


def without_nan(value):
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    return repr(value) if isinstance(value, float) and value - value != 0 else value


def as_text(mime, value):
    """One representation of a displayed value as the agent expects it: text unchanged, other bytes in base64, objects as JSON."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        textual = mime.startswith("text/") or mime.endswith(("json", "xml", "javascript"))
        return str(value, "utf-8", "replace") if textual else base64.b64encode(value).decode("ascii")
    if isinstance(value, str):
        picture = mime.startswith(("image/", "application/pdf")) and not mime.endswith("xml")
        return value.replace("\n", "") if picture else value
    return as_json(value)


class Hooks:
    """The hooks that a library may set on displayed values: each gets the message, and returns it or None."""

    def register_hook(self, hook):
        self.hooks = [*getattr(self, "hooks", ()), hook]

    def unregister_hook(self, hook):
        kept = [other for other in getattr(self, "hooks", ()) if other != hook]
        found = len(kept) < len(getattr(self, "hooks", ()))
        self.hooks = kept
        return found

    def through_hooks(self, kind, content):
        message = {"header": {"msg_type": kind}, "msg_type": kind, "content": content}
        for hook in getattr(self, "hooks", ()):
            message = hook(message)
            if message is None:
                return None
        return message["content"]


class Publisher(DisplayPublisher, Hooks):
    hooks = Any(())
    topic = b"display_data"

    def publish(self, data, metadata=None, *args, transient=None, update=False, **kwargs):
        self._validate_data(data, metadata)
        content = {"data": data, "metadata": metadata or {}, "transient": transient or {}}
        content = self.through_hooks("update_display_data" if update else "display_data", content)
        if content is not None:
            show(self.shell, content["data"], content["metadata"], content["transient"].get("display_id"), update)

    def clear_output(self, wait=False):
        content = self.through_hooks("clear_output", {"wait": bool(wait)})
        if content is not None:
            self.shell.send_event({"op": "clear", "wait": bool(content["wait"])})


class Hook(DisplayHook, Hooks):
    """Shows the last value of a cell."""

    hooks = Any(())
    topic = b"execute_result"
    values = None

    def write_output_prompt(self):
        self.values = None

    def write_format_data(self, format_dict, md_dict=None):
        self.values = format_dict, md_dict or {}

    def finish_displayhook(self):
        values, self.values, self._is_active = self.values, None, False
        if values:
            content = {"data": values[0], "metadata": values[1], "execution_count": self.prompt_count}
            content = self.through_hooks("execute_result", content)
            if content is not None:
                show(self.shell, content["data"], content["metadata"], result=True)


def show(shell, data, metadata=None, display_id=None, update=False, result=False):
    """Sends a displayed value to the agent, after the output before it."""
    data = {str(mime): as_text(str(mime), value) for mime, value in data.items()}
    if data:
        message = {"op": "display", "data": data, "display_id": str(display_id or ""), "update": bool(update)}
        if result:
            message["result"] = True
        if metadata:
            message["metadata"] = json.loads(as_json(metadata))
        shell.send_event(message)


def as_message(message):
    """The type and the content of the message of Jupyter that a message to the agent is."""
    if message["op"] == "clear":
        return "clear_output", {"wait": message["wait"]}
    data = {mime: json.loads(value) if mime.endswith("json") else value for mime, value in message["data"].items()}
    content = {"data": data, "metadata": message.get("metadata") or {}, "transient": {}}
    if message["display_id"]:
        content["transient"]["display_id"] = message["display_id"]
    return "update_display_data" if message["update"] else "display_data", content
