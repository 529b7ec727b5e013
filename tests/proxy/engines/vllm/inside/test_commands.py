"""Commands over real sockets: taken in order, answered, and no message harms the inbox."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from desist.data.errors import EngineError, ProbeError
from desist.proxy.engines.vllm.inside.commands import CommandInbox
from desist.proxy.engines.vllm.wire import (
    Command,
    CommandDone,
    Identity,
    Ping,
    Reload,
    SetMode,
    StopNow,
    encode,
)
from tests.fakes.server import wait_for

LOCAL = "tcp://127.0.0.1:0"


class Outside:
    """An inbox, a sender and the answers that the inbox gave."""

    def __init__(
        self,
        endpoint: str = LOCAL,
        handle: dict[str, CommandDone] | None = None,
        capacity: int = 100,
    ) -> None:
        self.answers: queue.Queue[CommandDone] = queue.Queue()
        self.prepared_in: list[str] = []
        self.inbox = CommandInbox(
            endpoint,
            prepare=self.prepare,
            answer=self.answers.put,
            handle=None if handle is None else lambda command, prepared: handle.get(command.id),
            capacity=capacity,
        )
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.PUSH)
        self.socket.connect(self.inbox.endpoint)

    def prepare(self, command: Reload) -> object:
        self.prepared_in.append(threading.current_thread().name)
        if command.probe == "missing":
            raise ProbeError("missing holds no probe")
        return ("loaded", command.probe)

    def send(self, *commands: Command) -> None:
        for command in commands:
            self.socket.send(encode(command))

    def answer(self) -> CommandDone:
        return self.answers.get(timeout=20)

    def settle(self) -> None:
        """Returns when the inbox has read all that was sent: it reads in order."""
        self.send(Ping("settle"))
        assert self.answer() == CommandDone("settle", True, "listening")

    def close(self) -> None:
        self.context.destroy(linger=0)
        self.inbox.close(0.1)


@contextlib.contextmanager
def outside(
    endpoint: str = LOCAL, handle: dict[str, CommandDone] | None = None, capacity: int = 100
) -> Iterator[Outside]:
    both = Outside(endpoint, handle, capacity)
    try:
        yield both
    finally:
        both.close()


def test_commands_are_taken_once_and_in_order() -> None:
    commands = [
        StopNow("1", "k", Identity("k", 0, 1), "probe", 3, 0.9, True),
        SetMode("2", "shadow"),
        StopNow("3", "other"),
    ]
    with outside() as both:
        assert both.inbox.take() == []
        both.send(*commands)
        both.settle()
        assert both.inbox.take() == [(command, None) for command in commands]
        assert both.inbox.take() == []


def test_ipc(tmp_path: Path) -> None:
    with outside(f"ipc://{tmp_path}/c") as both:
        assert both.inbox.endpoint == f"ipc://{tmp_path}/c"
        both.settle()


def test_a_ping_is_answered_without_a_step() -> None:
    with outside() as both:
        both.send(Ping("p"))
        assert both.answer() == CommandDone("p", True, "listening")
        assert both.inbox.take() == []


def test_a_reload_is_prepared_in_the_thread_of_the_inbox() -> None:
    with outside() as both:
        command = Reload("r", probe="new", certificates=("a",))
        both.send(command)
        both.settle()
        assert both.inbox.take() == [(command, ("loaded", "new"))]
        assert both.prepared_in == ["desist-commands"]


def test_a_reload_that_cannot_be_prepared_is_refused_and_not_taken() -> None:
    with outside() as both:
        both.send(Reload("r", probe="missing"), SetMode("m", "off"))
        assert both.answer() == CommandDone("r", False, "ProbeError: missing holds no probe")
        both.settle()
        assert both.inbox.take() == [(SetMode("m", "off"), None)]


def test_what_is_handled_at_once_is_not_taken() -> None:
    refused = CommandDone("1", False, "refused here")
    with outside(handle={"1": refused}) as both:
        both.send(StopNow("1", "k"), StopNow("2", "k"))
        assert both.answer() == refused
        both.settle()
        assert both.inbox.take() == [(StopNow("2", "k"), None)]


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xc1",
        b"\x00" * 100,
        b"\x91" * 5000,
        b"\x82\xa4type\xa4ping\xa2id\xa1\xff",
        b"GET / HTTP/1.1",
        encode(Ping("x")) + b"y",
        msgspec.msgpack.encode([1, 2]),
        msgspec.msgpack.encode({"type": "ping", "id": 7}),
        msgspec.msgpack.encode({"type": "halt"}),
    ],
)
def test_noise_is_counted_and_passed_over(message: bytes) -> None:
    with outside() as both:
        both.socket.send(message)
        both.settle()
        assert both.inbox.malformed == 1
        assert both.inbox.take() == []
        assert both.answers.empty()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"type": "halt", "id": "h"}, "halt"),
        ({"type": "mode", "id": "h", "cap": "full"}, "full"),
        ({"type": "stop", "id": "h"}, "key"),
        ({"id": "h"}, "type"),
    ],
)
def test_a_command_that_is_not_known_is_answered(content: dict[str, str], told: str) -> None:
    with outside() as both:
        both.socket.send(msgspec.msgpack.encode(content))
        done = both.answer()
        assert (done.command, done.ok) == ("h", False)
        assert told in done.message
        assert both.inbox.malformed == 1


def test_a_message_of_two_frames_is_refused() -> None:
    with outside() as both:
        both.socket.send_multipart([encode(SetMode("m", "off")), b""])
        done = both.answer()
        assert (done.command, done.ok) == ("m", False)
        both.settle()
        assert both.inbox.take() == []


def test_a_huge_message_reaches_nobody() -> None:
    with outside() as both:
        both.socket.send(encode(StopNow("1", "k" * (2 << 20))))  # the connection is cut, and made again
        again = both.context.socket(zmq.PUSH)
        again.connect(both.inbox.endpoint)
        again.send(encode(Ping("p")))
        assert both.answer() == CommandDone("p", True, "listening")
        assert both.inbox.take() == []


def test_too_many_waiting_commands_are_refused() -> None:
    with outside(capacity=3) as both:
        both.send(*(StopNow(str(number), "k") for number in range(5)))
        assert [both.answer() for _ in range(2)] == [
            CommandDone(name, False, "3 commands wait for the engine's next step. Send it again later.")
            for name in ("3", "4")
        ]
        assert [command.id for command, _ in both.inbox.take()] == ["0", "1", "2"]
        both.send(StopNow("5", "k"))
        both.settle()
        assert [command.id for command, _ in both.inbox.take()] == ["5"]


def test_an_answer_that_cannot_be_given_harms_nothing() -> None:
    def answer(done: CommandDone) -> None:
        raise OSError("nobody listens")

    inbox = CommandInbox(LOCAL, prepare=lambda command: None, answer=answer)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        socket = context.socket(zmq.PUSH)
        socket.connect(inbox.endpoint)
        for command in (Ping("1"), SetMode("2", "off")):
            socket.send(encode(command))
        taken: list[tuple[Command, object | None]] = []
        wait_for(lambda: bool(taken.extend(inbox.take()) or taken), 20)
        assert taken == [(SetMode("2", "off"), None)]
    finally:
        context.destroy(linger=0)
        inbox.close()


def test_every_command_of_two_threads_is_taken_while_they_send() -> None:
    with outside(capacity=5000) as both:

        def work(name: str) -> None:
            socket = both.context.socket(zmq.PUSH)
            socket.connect(both.inbox.endpoint)
            for number in range(500):
                socket.send(encode(StopNow(f"{name}{number}", "k")))
            socket.close(linger=10_000)

        threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        taken: list[tuple[Command, object | None]] = []
        wait_for(lambda: bool(taken.extend(both.inbox.take())) or len(taken) >= 1000, 30)
        for thread in threads:
            thread.join()
        ids = [command.id for command, _ in taken]
        for name in "ab":
            assert [each for each in ids if each.startswith(name)] == [f"{name}{n}" for n in range(500)]
        assert both.answers.empty()


def test_close_answers_what_was_not_taken_and_ends_the_thread() -> None:
    both = Outside()
    both.send(StopNow("1", "k"))
    both.settle()
    both.close()
    both.close()
    assert both.answer() == CommandDone("1", False, "the engine ends")
    assert both.inbox.take() == []
    assert not [thread for thread in threading.enumerate() if thread.name == "desist-commands"]


def test_an_address_in_use_is_named() -> None:
    with outside() as both, pytest.raises(EngineError, match=r"commands address .* in use"):
        CommandInbox(both.inbox.endpoint, prepare=lambda command: None, answer=lambda done: None)
