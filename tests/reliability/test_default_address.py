"""A server that is started without a host is reached from this machine alone."""

import socket

import pytest

from reliability.test_served_process import Process


def test_a_server_binds_to_the_loopback_address_alone():
    """Bound to all addresses, it would answer at another one of the loopback network too."""
    server = Process()
    try:
        assert socket.create_connection(("127.0.0.1", server.port), timeout=60).close() is None
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", server.port), timeout=60)
    finally:
        server.process.kill()
        server.process.wait(60)
        server.reader.shutdown()
        server.process.stderr.close()
