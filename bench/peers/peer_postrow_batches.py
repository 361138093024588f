"""Postrow with a handler of batches."""

from adapter import main
from peer_postrow import Postrow

import postrow
from postrow.worker import Worker


class PostrowBatches(Postrow):
    settings = "consumer(batch=500, concurrency=4); all else as postrow"

    def work(self, dsn, ran):
        app = postrow.App(dsn)

        @app.queue("bench").consumer(batch=500, concurrency=4)
        async def handle(messages):
            for message in messages:
                ran(message.payload["n"])

        Worker(app).run()


if __name__ == "__main__":
    main(PostrowBatches())
