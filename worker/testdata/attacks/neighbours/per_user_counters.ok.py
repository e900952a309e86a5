import select

with select.epoll() as e:
    assert e.poll(0) == []
