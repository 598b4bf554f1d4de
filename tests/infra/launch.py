"""Become a command that dies with its parent: ``python launch.py PARENT_PID USER COMMAND…``; ``-`` keeps the user."""

import ctypes
import os
import pwd
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: str, user: str, *command: str) -> None:
    if user != "-":
        account = pwd.getpwnam(user)
        os.setgroups([account.pw_gid])
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent):
            sys.exit("the parent is gone")
    os.execvp(command[0], command)


main(*sys.argv[1:])
