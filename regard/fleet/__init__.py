"""Runs on many machines: the runs of a sweep or a comparison as tasks of a Ray cluster.

    with Fleet("auto") as fleet:
        fleet.together([...])          calls that wait for tasks, each in a thread of its own
        fleet.run(task, on_message)    one task, from its start to its result

    address.py   what may be typed as an address, and whether anybody answers there
    board.py     an actor by which tasks say how far they are
    cluster.py   Fleet: the driver's side
    place.py     the folder in which a task works: the driver's own, or one whose files are returned
    worker.py    what a task does, on its machine

A task names a function of this package and gets JSON; it returns JSON, and files if its machine
does not have the driver's folder. Every machine needs the same version of regard.
"""

from regard.fleet.cluster import Fleet, FleetStopped, OnMessage, Task
from regard.fleet.worker import Wire

__all__ = ["Fleet", "FleetStopped", "OnMessage", "Task", "Wire"]
