import sys
import threading

import pytest
import torch

from espalier.training.host import ROOM, keep_pages, one_thread


def test_one_thread_inside_and_the_callers_number_after():
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    with pytest.raises(ZeroDivisionError), one_thread():
        raise ZeroDivisionError
    assert torch.get_num_threads() == before


def test_nobody_takes_it_back_while_another_computes():
    before = torch.get_num_threads()
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with one_thread():
            inside.set()
            leave.wait(10)

    holder = threading.Thread(target=hold)
    with one_thread():
        holder.start()
        assert inside.wait(10)
        with one_thread():
            pass
        assert torch.get_num_threads() == 1
        leave.set()
        holder.join()
    assert torch.get_num_threads() == before


def test_pages_are_kept_on_linux_with_glibc():
    assert keep_pages() in (True, False)
    assert keep_pages() is keep_pages()


def test_elsewhere_nothing_is_asked(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_pages.__wrapped__() is False


def test_a_forgotten_model_leaves_its_room_to_the_next() -> None:
    size = 100_003
    one = ROOM.vector(size)
    one.fill_(1.0)
    part, place = one[5:], one.data_ptr()
    other = ROOM.vector(size)
    assert other.data_ptr() != place and other.dtype == torch.float32 and other.shape == (size,)
    del one
    third = ROOM.vector(size)  # a view still needs the first
    third.fill_(2.0)
    assert third.data_ptr() != place and float(part.sum()) == size - 5
    del part
    fourth = ROOM.vector(size)
    if sys.platform.startswith("linux"):
        assert fourth.data_ptr() == place
    other.fill_(3.0)
    ROOM.clear()  # what is in use stays in use
    assert ROOM.vector(size).data_ptr() not in {t.data_ptr() for t in (other, third, fourth)}
    assert float(other[-1]) == 3.0 and float(third[0]) == 2.0


def test_threads_share_the_room() -> None:
    size, wrong = 5_000_003, []  # a slab has room for one of them

    def work(number: int) -> None:
        for _ in range(20):
            vector = ROOM.vector(size)
            vector[:8] = number
            if vector[:8].tolist() != [number] * 8:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
