"""Runs a program that is refused io_uring, as container engines' filters refuse it: `without_io_uring.py PROGRAM ARGUMENT...`.

By a filter of system calls (seccomp(2)), which needs no rights: it answers EPERM to io_uring_setup, io_uring_enter and
io_uring_register, and lets all else through.
"""

import ctypes
import errno
import os
import struct
import sys

# linux/prctl.h, linux/seccomp.h, linux/bpf_common.h
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
LOAD_WORD, JUMP_IF_AT_LEAST, RETURN = 0x20, 0x35, 0x06
# The three calls have these numbers on every architecture but Alpha.
FIRST, LAST = 425, 427

# (operation, instructions skipped if so, if not, operand); a program's call is at offset 0 of what a filter is shown.
PROGRAM = [
    (LOAD_WORD, 0, 0, 0),
    (JUMP_IF_AT_LEAST, 0, 2, FIRST),
    (JUMP_IF_AT_LEAST, 1, 0, LAST + 1),
    (RETURN, 0, 0, ERRNO | errno.EPERM),
    (RETURN, 0, 0, ALLOW),
]


class Filter(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def main():
    libc = ctypes.CDLL(None, use_errno=True)
    instructions = b"".join(struct.pack("=HBBI", *instruction) for instruction in PROGRAM)
    asked = Filter(len(PROGRAM), instructions)
    for arguments in (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(asked)):
        if libc.prctl(*arguments) != 0:
            sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    os.execvp(sys.argv[1], sys.argv[1:])


main()
