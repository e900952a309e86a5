"""Finds the Python programs that shell commands start, their missing imports, and the requirements.txt next to them. It is run with the
name of a file that holds the question; no program is executed."""

import json
import os
import re
import shlex
import sys

import sandfarm_probe as probe

PYTHON = re.compile(r"i?python(3(\.\d+)?)?$")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)$", re.DOTALL)
WRAPPERS = frozenset(("command", "env", "exec", "nice", "nohup", "stdbuf", "sudo", "time", "timeout"))
MOST_FILES = 300  # user files read for one question
MOST_BYTES = 1 << 20  # read from one file


class Program:
    """One Python program: its code, the first directory of its search path, and its working directory."""

    def __init__(self, cwd, folder, code=None, files=(), paths=()):
        self.cwd, self.folders, self.code, self.files = cwd, [folder, *paths], code, list(files)


def simple(command):
    """The simple commands of a shell command, as lists of words."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=";&|()<>\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words, skip, redirected = [], False, False
    try:
        for token in lexer:
            if redirected:
                redirected = False  # the name of a file
            elif token and not token.strip("&<>") and set(token) & {"<", ">"}:
                redirected = True
            elif token and not token.strip(";&|()<>\n"):
                if "\n" in token or not skip:
                    skip = False
                    yield words
                    words = []
            elif token.startswith("#") and not words:
                skip = True
            elif not skip:
                words.append(token)
    except ValueError:
        return  # unterminated quotes
    yield words


def programs(command, cwd):
    """The Python programs that a shell command starts."""
    for words in simple(command):
        paths = []
        while words:
            assignment = ASSIGNMENT.match(words[0])
            if assignment:
                if assignment[1] == "PYTHONPATH":
                    paths += [os.path.join(cwd, p) for p in assignment[2].split(os.pathsep) if p]
            elif os.path.basename(words[0]) in WRAPPERS:
                while len(words) > 1 and re.match(r"-|\d+(\.\d+)?[smhd]?$", words[1]):
                    words = words[1:]
            else:
                break
            words = words[1:]
        if not words:
            continue
        if words[0] == "cd":
            cwd = os.path.join(cwd, os.path.expanduser(words[1] if len(words) > 1 else "~"))
        elif PYTHON.match(os.path.basename(words[0])):
            found = program(words[1:], cwd, paths)
            if found:
                yield found
        elif words[0].endswith(".py"):
            yield script(os.path.join(cwd, words[0]), cwd, paths)


def program(words, cwd, paths):
    """The program in an interpreter's arguments; None if there is none."""
    rest = iter(words)
    for word in rest:
        if re.match(r"-[a-zA-Z]*c$", word):
            return Program(cwd, cwd, code=next(rest, ""), paths=paths)
        if re.match(r"-[a-zA-Z]*m$", word):
            name = next(rest, "")
            return Program(cwd, cwd, files=own(name, [cwd, *paths]), paths=paths)
        if word in ("-W", "-X"):
            next(rest, None)
        elif word == "-":
            return None
        elif not word.startswith("-"):
            return script(os.path.join(cwd, word), cwd, paths)
    return None


def script(path, cwd, paths):
    if os.path.isdir(path):
        return Program(cwd, path, files=[os.path.join(path, "__main__.py")], paths=paths)
    return Program(cwd, os.path.dirname(path) or ".", files=[path], paths=paths)


def own(name, folders):
    """The files of a module in one of the folders; all files of a package, since they import each other."""
    top = name.partition(".")[0]
    for folder in folders:
        path = os.path.join(folder, top)
        if top and os.path.isfile(path + ".py"):
            return [path + ".py"]
        if top and os.path.isdir(path):
            found = []
            for at, _, names in os.walk(path):
                found += [os.path.join(at, n) for n in sorted(names) if n.endswith(".py")]
                if len(found) > MOST_FILES:
                    break
            if found:
                return found[:MOST_FILES]
    return []


def read(path):
    try:
        if os.path.isfile(path) and os.path.getsize(path) <= MOST_BYTES:
            with open(path, encoding="utf-8", errors="replace") as f:
                return f.read()
    except OSError:
        pass
    return ""


def missing(p, most):
    """The missing imports of a program and of the modules next to it."""
    names, seen, todo = {}, set(), list(p.files)
    codes = [p.code] if p.code else []
    while codes or (todo and len(seen) < most):
        if codes:
            code = codes.pop()
        else:
            path = os.path.realpath(todo.pop())
            if path in seen:
                continue
            seen.add(path)
            code = read(path)
        tree = probe.parse(code) if "import" in code else None
        for name in probe.imported(tree) if tree else ():
            files = own(name, p.folders)
            todo += files
            if not files:
                absent = probe.absent(name)
                if absent:
                    names[absent] = None
    return list(names)


def requirements(p, workspace):
    """The requirements.txt next to a program, relative to the workspace."""
    for folder in (p.cwd, p.folders[0]):
        path = os.path.realpath(os.path.join(folder, "requirements.txt"))
        if os.path.isfile(path) and path.startswith(workspace + os.sep):
            yield os.path.relpath(path, workspace)


def answer(question):
    workspace = os.path.realpath(question["workspace"])
    names, files = {}, {}
    before = list(sys.path)
    for command in question["commands"]:
        for p in programs(command, question["cwd"]):
            files.update(dict.fromkeys(requirements(p, workspace)))
            sys.path[:] = p.folders + before[1:]
            probe.importlib.invalidate_caches()
            try:
                names.update(dict.fromkeys(missing(p, MOST_FILES)))
            except (RecursionError, MemoryError):
                pass
    return {"missing": list(names)[: probe.MOST], "requirements": list(files)[:10]}


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as f:
        print(json.dumps(answer(json.load(f))))
