"""The protocol of uvicorn over httptools, which reads requests that offer to change to another protocol."""

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class HttpToolsWithoutUpgrades(HttpToolsProtocol):
    """Reads a request that offers an upgrade (`curl --http2`) as if it did not, as HTTP allows.

    httptools ends such a request after its headers: its body would be lost. So the headers are parsed again, without
    the one that offers the upgrade.
    """

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            while data:
                data = self._parse(data)
        except httptools.HttpParserError as error:
            self.send_400_response(str(error))

    def _parse(self, data: bytes) -> bytes:
        """Parse data; what must be parsed after it, where a request offers an upgrade."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            head = self._head_without_upgrade()
            self.parser = httptools.HttpRequestParser(self)
            if hasattr(self.parser, "set_dangerous_leniencies"):
                # As uvicorn sets it: what follows a request that closes the connection is no error.
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            return head + data[upgrade.args[0] :]
        return b""

    def _head_without_upgrade(self) -> bytes:
        line = b"%s %s HTTP/%s" % (
            self.parser.get_method(),
            self.url,
            self.parser.get_http_version().encode(),
        )
        headers = [b"%s: %s" % each for each in self.headers if each[0] != b"upgrade"]
        return b"\r\n".join([line, *headers, b"", b""])

    def on_headers_complete(self) -> None:
        if self.parser.get_method() == b"CONNECT":
            raise ValueError("CONNECT is for proxies")  # httptools makes it an error of the request
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()
            # uvicorn leaves this out for a body that nobody reads any more.
            self.cycle.more_body = False
