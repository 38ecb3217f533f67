"""The console's gunicorn worker. It ends its event streams when it is told to stop."""

import gevent
from gunicorn.workers.ggevent import GeventWorker

# Seconds between two checks whether to stop.
LOOK_EVERY = 0.2


class StreamingWorker(GeventWorker):  # type: ignore[misc] # gunicorn has no types
    def run(self) -> None:
        gevent.spawn(self._end_streams)
        super().run()

    def _end_streams(self) -> None:
        while self.alive:
            gevent.sleep(LOOK_EVERY)
        # Imported here because gunicorn imports this module before gevent has patched threads.
        from console.live import watches

        watches.stop()
