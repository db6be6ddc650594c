"""As much of a shell as Ctrl-Z needs: one job in front of the terminal, which `fg` continues."""

import os
import signal
import sys

signal.signal(signal.SIGTTOU, signal.SIG_IGN)
signal.signal(signal.SIGTSTP, signal.SIG_IGN)

job = os.fork()
if job == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpgrp())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.execvp(sys.argv[1], sys.argv[1:])

while True:
    _, status = os.waitpid(job, os.WUNTRACED)
    os.tcsetpgrp(0, os.getpgrp())
    if not os.WIFSTOPPED(status):
        break
    print("job is stopped", flush=True)
    assert input() == "fg"
    os.tcsetpgrp(0, job)
    print("job goes on", flush=True)
    os.killpg(job, signal.SIGCONT)
print("job ended with", os.waitstatus_to_exitcode(status), flush=True)
