"""A connection between two processes: messages as MessagePack, several in a frame where they come together."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec

from regard.serving.processes.message_types import unpacked
from regard.serving.processes.messages import Message, encode

HEADER = 4  # bytes before each frame: its length
READ = 1 << 18  # bytes that are taken at a time


class Connection:
    """Sends and receives messages. Made and closed in an event loop; `send` may be called in any thread.

    kinds   the union of the messages that are received
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kinds: Any
    ) -> None:
        self._reader, self._writer = reader, writer
        self._decode = msgspec.msgpack.Decoder(list[kinds], ext_hook=unpacked).decode
        self._waiting: deque[Message] = deque()
        self._scheduled = False
        self._loop = asyncio.get_running_loop()

    def send(self, message: Message) -> None:
        """Send a message soon, together with others that are sent meanwhile. It does not block."""
        self._waiting.append(message)
        if not self._scheduled:  # where two threads see this, the second call finds nothing to send
            self._scheduled = True
            try:
                self._loop.call_soon_threadsafe(self.flush)
            except RuntimeError:  # the event loop is closed, and the connection with it
                self._waiting.clear()

    def flush(self) -> None:
        """Send what waits to be sent, now. Called in the event loop."""
        self._scheduled = (
            False  # before the messages are taken: one that comes now is sent by the next call
        )
        messages = []
        while self._waiting:
            messages.append(self._waiting.popleft())
        if messages and not self._writer.is_closing():
            content = encode(messages)
            self._writer.write(len(content).to_bytes(HEADER, "big") + content)

    async def messages(self) -> AsyncIterator[Any]:
        """The messages that arrive, until the other side closes the connection or ends."""
        read, buffer = self._reader.read, bytearray()
        while True:
            try:
                data = await read(READ)
            except OSError:
                return
            if not data:
                return
            buffer += data
            for frame in _frames(
                buffer
            ):  # all that have arrived, with one wake-up of the event loop
                for message in self._decode(frame):
                    yield message

    async def flushed(self) -> None:
        """Wait until all that was sent is on its way."""
        self.flush()
        try:
            await self._writer.drain()
        except OSError:  # the other side has gone
            return

    def close(self) -> None:
        self._writer.close()


def _frames(buffer: bytearray) -> Iterator[bytes]:
    """The frames that are complete, which leave the buffer."""
    at, size = 0, len(buffer)
    while size - at >= HEADER:
        end = at + HEADER + int.from_bytes(buffer[at : at + HEADER], "big")
        if end > size:
            break
        yield bytes(buffer[at + HEADER : end])
        at = end
    if at:
        del buffer[:at]
