import { load, main, payload, versionOf } from "./adapter.mjs";

const { PgBoss } = await load("pg-boss");

async function start(connectionString, max, options) {
  const boss = new PgBoss({ connectionString, max, ...options });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  return boss;
}

await main({
  version: versionOf("pg-boss"),
  settings:
    "batchSize 500, burstWhenBatchFull, useListenNotify with notify on the queue, pollingIntervalSeconds 0.5: " +
    "https://pgboss.io/api/workers, https://pgboss.io/api/constructor",
  unfinished: "select count(*) from pgboss.job where name = 'bench' and state in ('created', 'retry', 'active')",

  async install(dsn) {
    const boss = await start(dsn, 2);
    await boss.createQueue("bench", { notify: true });
    await boss.stop();
  },

  async producer(dsn, clients) {
    const boss = await start(dsn, clients, { supervise: false, schedule: false });
    return {
      one: (n) => boss.send("bench", payload(n)),
      many: (numbers) => boss.insert("bench", numbers.map((n) => ({ data: payload(n) }))),
      close: () => boss.stop({ graceful: false }),
    };
  },

  async work(dsn, ran) {
    const boss = await start(dsn, 10, { useListenNotify: true });
    await boss.work(
      "bench",
      { batchSize: 500, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 },
      async (jobs) => {
        for (const job of jobs) ran(job.data.n);
      },
    );
  },
});
