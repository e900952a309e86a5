"""Runs the test suites of E2B's SDKs against a farm, from clones of E2B's repositories, and prints what passed.

    E2B_API_URL=… E2B_SANDBOX_URL=… E2B_API_KEY=… python3 run.py --source DIR --work DIR [--only SUITE …]

DIR of --source has the clones E2B and code-interpreter. Nothing is written there: the JavaScript suites run in copies, and packages are
installed below --work. not-applicable.txt lists the tests that cannot apply to a farm, with reasons; they are not run. The exit status is 0 if
at least 95 % of the others pass.
"""

import argparse
import fnmatch
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

HERE = pathlib.Path(__file__).resolve().parent
LEAST = 0.95
SUITE_SECONDS = 3600

# Suite: the folder in the clones, and the name of its package.
SUITES = {
    "e2b-python": ("E2B/packages/python-sdk", "e2b"),
    "interpreter-python": ("code-interpreter/python", "e2b-code-interpreter"),
    "e2b-js": ("E2B/packages/js-sdk", "e2b"),
    "interpreter-js": ("code-interpreter/js", "@e2b/code-interpreter"),
}


def exclusions(suite):
    """The tests of a suite that cannot apply: patterns of files and names, and reasons."""
    found, reason = [], ""
    for line in (HERE / "not-applicable.txt").read_text().splitlines():
        if line.startswith("# "):
            continue
        if line and not line[0].isspace():
            reason = line
        elif line.strip():
            name, file, test = line.split(maxsplit=2)
            if fnmatch.fnmatch(suite, name):
                found.append((file, test, reason))
    return found


def why_not(excluded, file, test):
    """Why a test cannot apply; empty if it can."""
    return next((reason for files, tests, reason in excluded if fnmatch.fnmatch(file, files) and fnmatch.fnmatch(test, tests)), "")


def run(command, **options):
    return subprocess.run([str(part) for part in command], check=True, timeout=SUITE_SECONDS, **options)


class Python:
    def __init__(self, args, suite):
        self.args, self.suite = args, suite
        self.folder = args.source / SUITES[suite][0]

    def version(self, folder):
        return re.search(r'^version = "(.+)"', (self.args.source / folder / "pyproject.toml").read_text(), re.M)[1]

    def prepare(self):
        """The suites import parts of the SDKs that are not public, so the versions are those of the clones."""
        pins = [f"{name}=={self.version(folder)}" for folder, name in list(SUITES.values())[:2]]
        venv = self.args.work / "venv"
        if not venv.exists():
            run([sys.executable, "-m", "venv", venv])
            run([venv / "bin/python", "-m", "pip", "install", "-q", *pins, "-r", HERE / "requirements.txt"])
        return venv / "bin/python"

    def test(self):
        python, report = self.prepare(), self.args.work / f"{self.suite}.xml"
        report.unlink(missing_ok=True)
        env = {**os.environ, "PYTHONPATH": str(HERE), "E2B_SUITE": self.suite, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [python, "-m", "pytest", "-q", "-p", "not_applicable", "-p", "no:cacheprovider", "-n", self.args.parallel, "--timeout=120"]
        command += ["-o", "junit_family=xunit1", f"--junitxml={report}", "tests", *self.args.rest]
        subprocess.run([str(part) for part in command], cwd=self.folder, env=env, timeout=SUITE_SECONDS, check=False)
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            name = f"{case.get('file') or case.get('classname')}::{case.get('name')}"
            bad, skipped = [case.find(kind) for kind in ("failure", "error")], case.find("skipped")
            if skipped is not None:
                yield name, "skipped", skipped.get("message") or ""
            else:
                first = next((b for b in bad if b is not None), None)
                yield name, "passed" if first is None else "failed", "" if first is None else (first.get("message") or "").split("\n")[0]


class JavaScript:
    def __init__(self, args, suite):
        self.args, self.suite = args, suite
        self.folder = args.source / SUITES[suite][0]

    def prepare(self):
        copy = self.args.work / self.suite
        if (copy / "node_modules/vitest").exists():
            return copy
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.folder, copy, ignore=shutil.ignore_patterns("node_modules", "dist"))
        package = json.loads((copy / "package.json").read_text())
        own = json.loads((HERE / "package.json").read_text())["dependencies"]
        if package["name"] != "e2b":
            own["e2b"] = json.loads((self.args.source / SUITES["e2b-js"][0] / "package.json").read_text())["version"]
        package["dependencies"] = {**package["dependencies"], **own}
        for key in ("devDependencies", "packageManager", "scripts"):
            package.pop(key, None)
        (copy / "package.json").write_text(json.dumps(package))
        run(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--legacy-peer-deps", "--loglevel=error"], cwd=copy)
        shutil.copy(HERE / "vitest.config.mjs", copy / "sandfarm.config.mjs")
        return copy

    def test(self):
        copy, report = self.prepare(), self.args.work / f"{self.suite}.json"
        report.unlink(missing_ok=True)
        excluded = exclusions(self.suite)
        command = ["node", "node_modules/vitest/vitest.mjs", "run", "--config", "sandfarm.config.mjs", "--reporter=json", f"--outputFile={report}"]
        command += [f"--exclude={file}" for file, test, _ in excluded if test == "*"] + self.args.rest
        subprocess.run(command, cwd=copy, timeout=SUITE_SECONDS, check=False)
        for file in json.loads(report.read_text())["testResults"]:
            name = os.path.relpath(file["name"], copy)
            if not file["assertionResults"] and file["status"] != "passed":
                yield f"{name}::(file)", "failed", file.get("message", "").split("\n")[0]
            for case in file["assertionResults"]:
                reason = why_not(excluded, name, case["fullName"])
                if reason:
                    yield f"{name}::{case['fullName']}", "skipped", f"not applicable: {reason}"
                    continue
                status = case["status"] if case["status"] in ("passed", "failed") else "skipped"
                yield f"{name}::{case['fullName']}", status, (case.get("failureMessages") or [""])[0].split("\n")[0]
        for file, test, reason in excluded:
            if test == "*":
                for path in copy.glob(file):
                    if "node_modules" not in path.parts:
                        yield f"{os.path.relpath(path, copy)}::(file)", "skipped", f"not applicable: {reason}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=lambda p: pathlib.Path(p).resolve(), required=True)
    parser.add_argument("--work", type=lambda p: pathlib.Path(p).resolve(), required=True)
    parser.add_argument("--only", nargs="*", choices=SUITES, default=list(SUITES))
    parser.add_argument("--parallel", default="2", help="how many Python tests run at once")
    args, args.rest = parser.parse_known_args()
    args.work.mkdir(parents=True, exist_ok=True)
    total = {"passed": 0, "failed": 0, "skipped": 0}
    for suite in args.only:
        count = dict.fromkeys(total, 0)
        kind = Python if suite.endswith("python") else JavaScript
        failed = []
        for name, status, message in kind(args, suite).test():
            count[status] += 1
            if status == "failed":
                failed.append(f"    {name}: {message[:200]}")
        print(f"{suite}: {count['passed']} passed, {count['failed']} failed, {count['skipped']} not applicable", *failed, sep="\n", flush=True)
        for status in total:
            total[status] += count[status]
    ran = total["passed"] + total["failed"]
    share = total["passed"] / ran if ran else 0
    print(f"all: {total['passed']} passed, {total['failed']} failed, {total['skipped']} not applicable: {share:.1%} of {ran}")
    sys.exit(share < LEAST)


if __name__ == "__main__":
    main()
