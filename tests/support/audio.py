"""Audio for tests: a sound that is the same everywhere, and WAV files of any form."""

import struct

import numpy as np

PCM = 1
FLOAT = 3
EXTENSIBLE = 0xFFFE
SUBFORMAT_END = bytes.fromhex("000000001000800000aa00389b71")


def sound(rate, seconds, seed):
    """A rising tone with noise."""
    times = np.arange(int(rate * seconds)) / rate
    noise = np.random.default_rng(seed).normal(0, 0.05, len(times))
    return (0.5 * np.sin(2 * np.pi * (200 * times + 900 * times**2)) + noise).astype(np.float32)


def stored(channels, bits, kind):
    """Samples (n, channels) from -1 to 1 as the bytes of a WAV file."""
    if kind == FLOAT:
        return channels.astype(f"<f{bits // 8}").tobytes()
    if bits == 8:
        return np.rint(channels * 127 + 128).astype(np.uint8).tobytes()
    wide = np.rint(channels * (2 ** (bits - 1) - 1)).astype("<i8")
    low_bytes = wide.view(np.uint8).reshape(*wide.shape, 8)[..., : bits // 8]
    return low_bytes.tobytes()


def chunk(name, content):
    padding = b"\0" * (len(content) % 2)
    return name + struct.pack("<I", len(content)) + content + padding


def wav(samples, rate, bits, kind=PCM, *, extensible=False, before=b"", **changes):
    """A WAV file of samples (n, channels).

    before    chunks before the samples
    changes   numbers of the header that are wrong: channels, stated_rate, frame_bytes, data_size
    """
    count = changes.get("channels", samples.shape[1])
    frame_bytes = changes.get("frame_bytes", samples.shape[1] * bits // 8)
    code = EXTENSIBLE if extensible else kind
    stated = changes.get("stated_rate", rate)
    about = struct.pack("<HHIIHH", code, count, stated, rate * frame_bytes, frame_bytes, bits)
    if extensible:
        about += struct.pack("<HHIH", 22, bits, 0, kind) + SUBFORMAT_END
    data = stored(samples, bits, kind)
    size = changes.get("data_size", len(data))
    samples = b"data" + struct.pack("<I", size) + data
    content = b"WAVE" + chunk(b"fmt ", about) + before + samples
    return b"RIFF" + struct.pack("<I", len(content)) + content
