"""The console within gunicorn: a worker whose streams end when it is told to stop."""

import gevent
from gunicorn.workers.ggevent import GeventWorker

# Seconds between two looks whether to stop.
LOOK_EVERY = 0.2


class StreamingWorker(GeventWorker):  # type: ignore[misc] # gunicorn has no types
    def run(self) -> None:
        gevent.spawn(self._end_streams)
        super().run()

    def _end_streams(self) -> None:
        while self.alive:
            gevent.sleep(LOOK_EVERY)
        # Not at the module's top: gunicorn reads that before gevent has patched threads.
        from console import changes

        changes.stop()
