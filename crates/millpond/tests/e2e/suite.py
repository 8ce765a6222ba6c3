"""Runs a file of tests that are written for nose, as Ceph's `test_rbd.py` is, and says what came of each: a line with `ok`, `skipped` or
`failed` and its name, and why. Called with the file, and with names of tests if only those are to be run."""

import sys
import traceback
import types
import unittest


def with_setup(before=None, after=None):
    """What nose's does: runs something before and after a test."""

    def decorate(test):
        test.before, test.after = before, after
        return test

    return decorate


case = unittest.TestCase()
nose, tools = types.ModuleType("nose"), types.ModuleType("nose.tools")
nose.with_setup, nose.SkipTest, nose.tools = with_setup, unittest.SkipTest, tools
tools.eq_, tools.assert_raises, tools.assert_not_equal = case.assertEqual, case.assertRaises, case.assertNotEqual
sys.modules["nose"], sys.modules["nose.tools"] = nose, tools

path, wanted = sys.argv[1], sys.argv[2:]
suite = types.ModuleType("suite")
with open(path) as file:
    exec(compile(file.read(), path, "exec"), suite.__dict__)


def tests():
    """Each test by its name: what is run before, itself, and what is run after, in the order of the file."""
    for name, thing in list(vars(suite).items()):
        if getattr(thing, "__module__", None) not in (None, "suite"):
            continue
        if name.startswith("test_") and callable(thing):
            yield name, getattr(thing, "before", None), thing, getattr(thing, "after", None)
        elif name.startswith("Test") and isinstance(thing, type):
            for method in [method for method in vars(thing) if method.startswith("test_")]:
                one = thing()
                before, after = getattr(one, "setUp", None), getattr(one, "tearDown", None)
                yield f"{name}.{method}", before, getattr(one, method), after


def run(before, test, after):
    """What came of it, and why."""
    try:
        if before:
            before()
    except unittest.SkipTest:
        return "skipped", ""
    except Exception:
        return "failed", traceback.format_exc()
    result = "ok", ""
    try:
        test()
    except unittest.SkipTest:
        result = "skipped", ""
    except Exception:
        result = "failed", traceback.format_exc()
    try:
        if after:
            after()
    except Exception:
        # One that failed leaves what it made.
        if result[0] != "failed":
            result = "failed", traceback.format_exc()
    return result


suite.setup_module()
for name, before, test, after in tests():
    if wanted and name not in wanted:
        continue
    what, why = run(before, test, after)
    last = why.strip().splitlines()[-1:] or [""]
    print(what, name, last[0], flush=True)
    if wanted and why:
        print(why, flush=True)
try:
    suite.teardown_module()
except Exception as error:
    # What failed before may have left images.
    print(f"# {error}", flush=True)
