"""Small images and files for messages to models."""

from __future__ import annotations

import base64

from anabranch import Part

__all__ = ["MP3", "PDF", "PIXEL", "PNG", "SAMPLES", "WAV"]

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
PDF = b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n%%EOF\n"
WAV = b"RIFF\x24\x00\x00\x00WAVEfmt \x10\x00\x00\x00"
MP3 = b"\xff\xfb\x90\x64" + bytes(40)

PIXEL = Part.from_bytes(PNG, name="pixel.png")

SAMPLES = {
    "image/png": PNG,
    "image/jpeg": b"\xff\xd8\xff\xe0\x00\x10JFIF\x00",
    "image/gif": b"GIF89a\x01\x00\x01\x00",
    "image/webp": b"RIFF\x1a\x00\x00\x00WEBPVP8L",
    "application/pdf": PDF,
    "audio/wav": WAV,
    "audio/mpeg": MP3,
    "text/plain": "grüße\n".encode(),
}
