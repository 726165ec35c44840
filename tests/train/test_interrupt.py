import signal
import threading

import pytest
import tiny

from hopfax.train import interrupt

pytestmark = pytest.mark.usefixtures("default_handler")
PROGRAM = """
import hashlib, signal, time
from hopfax.train import interrupt

signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
with interrupt.listen(exits=True):
    print("ready", flush=True)
    while not interrupt.is_requested():
        time.sleep(0.01)
    print("noted", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # no Python code runs meanwhile
"""


def test_in_compiled_code_a_second_press_ends_the_process():
    with tiny.start(PROGRAM) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert "".join(process.stderr.readline() for _ in range(2)).strip() == interrupt.MESSAGE
        assert process.stdout.readline() == "noted\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == -signal.SIGINT  # for a shell, 130


def test_hold_disables_check_and_the_end_of_listen_raises():
    with pytest.raises(KeyboardInterrupt), interrupt.listen():
        with interrupt.hold():
            signal.raise_signal(signal.SIGINT)
            interrupt.check()
        assert interrupt.is_requested()
    interrupt.check()


def test_a_second_press_is_raised_at_once():
    with pytest.raises(KeyboardInterrupt), interrupt.listen():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # a scheduler's, no press
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the press should have raised")


def test_other_threads_and_handlers_are_left_alone():
    def listen():
        with interrupt.listen():
            handlers.append(signal.getsignal(signal.SIGINT))

    handlers, terminate = [], signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with pytest.raises(KeyboardInterrupt), interrupt.listen():
        listen()
        signal.raise_signal(signal.SIGTERM)  # also in the background, without Ctrl-C
    assert handlers == [signal.default_int_handler, signal.SIG_IGN]
    assert signal.getsignal(signal.SIGTERM) == terminate
