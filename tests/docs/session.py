"""An interactive Python session in JSON lines: a block of ``>>>`` examples in, what each of them printed out."""

import doctest
import json
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

sys.path.insert(0, "")
session = {"__name__": "__main__"}


def printed_by(source: str) -> str:
    printed = StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            exec(compile(source, "<stdin>", "single"), session)
        except Exception as error:
            print("Traceback (most recent call last):\n  ...")
            print(*traceback.format_exception_only(error), sep="", end="")
    return printed.getvalue()


for line in sys.stdin:
    examples = doctest.DocTestParser().get_examples(json.loads(line))
    print(json.dumps([[one.source, one.want, printed_by(one.source)] for one in examples]), flush=True)
