"""The line between daemon and node: who may speak there, and what becomes of others."""

from __future__ import annotations

import json
import os
import random
import socket
import ssl
import stat
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpusched import __version__
from gpusched.core.commands import Launch
from gpusched.executors.cluster.line import Keys, NodeHello, dial, from_node
from gpusched.folder.files import read_json
from gpusched.protocol import BadFrame, encode
from tests.executors.cluster.bed import Bed, train
from tests.executors.conftest import listening_addresses
from tests.executors.contract import exit_of, the_exit
from tests.rig import wait_until


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    bed = Bed(tmp_path_factory.mktemp("cluster"))
    yield bed
    bed.close()


@pytest.fixture
def address(bed: Bed) -> tuple[str, int]:
    where = read_json(Keys(bed.paths.root).address)
    return where["host"], where["port"]


def wait_for_the_end(bed: Bed, line: socket.socket) -> None:
    """Wait until the daemon closes this line; the loop turns meanwhile."""
    line.settimeout(0.01)

    def is_over() -> bool:
        bed.executor.poll(bed.executor.now() + 0.01)
        try:
            return not line.recv(4096)
        except (TimeoutError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True

    wait_until(is_over, "the daemon to hang up")


def has_shaken_hands(bed: Bed, line: ssl.SSLSocket) -> bool:
    """Turn the loop, and tell whether the handshake is over. Raises OSError where the daemon refuses it."""
    bed.executor.poll(bed.executor.now() + 0.01)
    with suppress(ssl.SSLWantReadError):
        line.do_handshake()
        return True
    return False


def is_well(bed: Bed) -> bool:
    """Whether the nodes of the bed still train."""
    trial = bed.rig.new_trial()
    bed.executor.execute(Launch(trial, 1, ("node1/cpu:0",), train(2)))
    return the_exit(bed.rig.watch(exit_of(trial)), trial).outcome == "finished"


def test_keys_are_the_users_alone(bed: Bed) -> None:
    keys = Keys(bed.paths.root)
    assert stat.S_IMODE(keys.folder.stat().st_mode) == 0o700
    for file in keys.folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert stat.S_IMODE(bed.home("node0").stat().st_mode) == 0o700


def test_one_port_is_open_and_on_the_clusters_interface_alone(bed: Bed) -> None:
    assert listening_addresses([os.getpid()]) == {"0100007F"}
    assert not listening_addresses(
        [pid for node in ("node0", "node1") for pid in bed.all_pids(node)]
    )


def test_noise_is_hung_up_on(bed: Bed, address: tuple[str, int]) -> None:
    rng = random.Random(5)
    for noise in (b"GET / HTTP/1.1\r\n\r\n", encode(NodeHello("node0")), rng.randbytes(4000)):
        with socket.create_connection(address) as line:
            line.sendall(noise)
            wait_for_the_end(bed, line)
    assert is_well(bed)


def test_a_certificate_of_another_experiment_is_refused(
    bed: Bed, address: tuple[str, int], tmp_path: Path
) -> None:
    theirs = Keys(tmp_path)
    theirs.make()
    for with_certificate in (True, False):
        rules = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        rules.check_hostname, rules.verify_mode = False, ssl.CERT_NONE
        if with_certificate:
            rules.load_cert_chain(theirs.certificate, theirs.key)
        with socket.create_connection(address) as plain, suppress(OSError):
            plain.setblocking(False)
            with rules.wrap_socket(plain, do_handshake_on_connect=False) as line:
                wait_until(lambda line=line: has_shaken_hands(bed, line), "the handshake")
                line.send(encode(NodeHello("node0")))
                wait_for_the_end(bed, line)
    assert is_well(bed)


def test_a_node_speaks_to_no_other_daemon(bed: Bed, tmp_path: Path) -> None:
    """A process that listens where the daemon did, without the daemon's key, is not told anything."""
    ours, theirs = Keys(tmp_path / "ours"), Keys(tmp_path / "theirs")
    ours.make()
    theirs.make()
    rules = theirs.context(ssl.PROTOCOL_TLS_SERVER)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        ours.address.write_text(f'{{"host": "127.0.0.1", "port": {port}}}')

        def answer() -> None:
            line, _ = listener.accept()
            with suppress(OSError), rules.wrap_socket(line, server_side=True):
                pass

        thread = threading.Thread(target=answer)
        thread.start()
        assert dial(ours) is None
        thread.join()


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        ("0.0.1", f"gpusched is {__version__} here and 0.0.1 at the daemon: install 0.0.1 here"),
        (__version__, "no daemon of this search answers at 127.0.0.1:1: "),
    ],
)
def test_what_keeps_a_node_from_its_daemon_is_in_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], theirs: str, told: str
) -> None:
    """A node had not joined, and its log was empty."""
    keys = Keys(tmp_path)
    keys.make()
    where = {"host": "127.0.0.1", "port": 1, "version": theirs}
    keys.address.write_text(json.dumps(where))
    assert [dial(keys), dial(keys)] == [None, None]
    assert capsys.readouterr().out.count(told) == 1


@pytest.mark.parametrize(
    "line",
    [
        b'{"kind":"happened","events":[["Reported",{"at":0}]]}',
        b'{"kind":"happened","events":[["Nonsense",{}]]}',
        b'{"kind":"happened","events":[["TrialExited",{"at":0,"trial":0,"incarnation":1,"outcome":"won"}]]}',
        b'{"kind":"joined"}',
        b"null",
    ],
)
def test_a_frame_that_is_none_is_refused(line: bytes) -> None:
    with pytest.raises(BadFrame):
        from_node(line).read()
