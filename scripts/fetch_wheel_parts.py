#!/usr/bin/env python3
"""Downloads only the files of a wheel that match one of the patterns.

    fetch_wheel_parts.py INDEX WHEEL RECORD_SHA256 FOLDER PATTERN...

A wheel is a zip file, which has its directory at the end, and servers of wheels send parts of a file on request. The
script makes FOLDER/WHEEL, a sparse file of the wheel's size. It downloads the directory first, then the parts with the
wanted files; the result can be unpacked like the wheel itself. The hash of the whole wheel, which pip compares, cannot
be used here. Instead RECORD, the wheel's own list of its files, must have the hash RECORD_SHA256, and each file must
have the hash that RECORD lists for it. INDEX is a package index such as https://pypi.org/simple. Exits with 1 if a step
fails.
"""

import base64
import csv
import fnmatch
import hashlib
import html
import http.client
import pathlib
import re
import sys
import time
import typing
import urllib.error
import urllib.parse
import urllib.request
import zipfile

DIRECTORY_BYTES = 2 << 20  # enough for the directory of 20,000 files
ATTEMPTS = 5


class Unsuitable(Exception):
    """The server or the wheel does not allow this download."""


def find(index: str, wheel: str) -> str:
    """The address of the wheel, from the project's page in the index."""
    project = re.sub(r"[-_.]+", "-", wheel.split("-")[0]).lower()
    page = f"{index.rstrip('/')}/{project}/"
    with urllib.request.urlopen(page, timeout=10) as answer:
        for link in re.findall(r'href="([^"#]+)', answer.read().decode()):
            address = urllib.parse.urljoin(answer.url, html.unescape(link))
            if urllib.parse.unquote(address).endswith(f"/{wheel}"):
                return address
    raise Unsuitable(f"{page} has no {wheel}")


def ask(address: str, first: int, end: int) -> http.client.HTTPResponse:
    request = urllib.request.Request(address, headers={"Range": f"bytes={first}-{end - 1}"})
    answer = urllib.request.urlopen(request, timeout=30)
    if answer.status != 206:
        answer.close()
        raise Unsuitable(f"{urllib.parse.urlsplit(address).netloc} sends no parts of files")
    return answer


def size_of(address: str) -> int:
    with ask(address, 0, 1) as answer:
        return int((answer.headers["Content-Range"] or "").split("/")[-1])


def fetch(address: str, file: typing.BinaryIO, first: int, end: int) -> int:
    """Copies these bytes to the same place in the file, and resumes if a connection breaks. Returns their number."""
    number = end - first
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with ask(address, first, end) as answer:
                file.seek(first)
                while first < end and (data := answer.read(min(end - first, 1 << 20))):
                    first += file.write(data)
            if first == end:
                return number
        except urllib.error.HTTPError:
            raise
        except (OSError, http.client.HTTPException):
            if attempt == ATTEMPTS:
                raise
        time.sleep(attempt - 1)
    raise Unsuitable(f"{urllib.parse.urlsplit(address).netloc} broke off {ATTEMPTS} times")


def fetch_members(address: str, file: typing.BinaryIO, size: int, patterns: typing.Sequence[str],
                  record_sha256: str) -> int:
    """Downloads the wanted parts into an empty file of the wheel's size, and checks them. Returns the number of bytes
    downloaded."""
    file.truncate(size)
    directory = max(0, size - DIRECTORY_BYTES)
    downloaded = fetch(address, file, directory, size)
    with zipfile.ZipFile(file) as archive:
        members = sorted(archive.infolist(), key=lambda member: member.header_offset)
        ends = [member.header_offset for member in members[1:]] + [archive.start_dir]
        wanted, parts = [], []
        for member, end in zip(members, ends):
            if any(fnmatch.fnmatch(member.filename, pattern) for pattern in ("*.dist-info/RECORD", *patterns)):
                wanted.append(member)
                if parts and parts[-1][1] == member.header_offset:
                    parts[-1][1] = end
                else:
                    parts.append([member.header_offset, end])
        downloaded += sum(fetch(address, file, first, min(end, directory)) for first, end in parts if first < directory)
        check(archive, wanted, record_sha256)
    return downloaded


def check(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo], record_sha256: str) -> None:
    [record] = [member for member in members if member.filename.endswith(".dist-info/RECORD")]
    lines = archive.read(record)
    if hashlib.sha256(lines).hexdigest() != record_sha256:
        raise Unsuitable("its list of files is not the one that is expected")
    hashes = {name: digest for name, digest, _ in csv.reader(lines.decode().splitlines())}
    for member in members:
        if member == record or member.is_dir():
            continue
        with archive.open(member) as file:
            digest = base64.urlsafe_b64encode(hashlib.file_digest(file, "sha256").digest()).rstrip(b"=").decode()
        if hashes.get(member.filename) != f"sha256={digest}":
            raise Unsuitable(f"{member.filename} in it is not the file that is expected")


def main(index: str, wheel: str, record_sha256: str, folder: str, *patterns: str) -> None:
    path = pathlib.Path(folder, wheel)
    try:
        if urllib.parse.urlsplit(index).username is not None:
            raise Unsuitable("the index asks for a password, which is left to pip")
        address = find(index, wheel)
        size = size_of(address)
        with path.open("w+b") as file:
            downloaded = fetch_members(address, file, size, patterns, record_sha256)
        print(f"    {downloaded / 1e6:.1f} of {size / 1e6:.1f} MB downloaded of {wheel}")
    except Exception as error:  # zipfile raises many kinds for bad files; pip takes over
        path.unlink(missing_ok=True)
        sys.exit(f"note: {wheel} could not be downloaded in parts: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
