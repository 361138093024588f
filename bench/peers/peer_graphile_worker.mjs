import { load, main, payload, versionOf } from "./adapter.mjs";

const { Logger, makeWorkerUtils, run, runMigrations } = await load("graphile-worker");
const quiet = new Logger(() => () => {}); // it logs a line a job

await main({
  version: versionOf("graphile-worker"),
  settings:
    "concurrentJobs 24, maxPoolSize 25, localQueue of 500, completeJobBatchDelay and failJobBatchDelay 0: " +
    "https://worker.graphile.org/docs/performance",
  unfinished: "select count(*) from graphile_worker.jobs",

  async install(connectionString) {
    await runMigrations({ connectionString });
  },

  async producer(connectionString, clients) {
    const utils = await makeWorkerUtils({ connectionString, maxPoolSize: clients, logger: quiet });
    return {
      one: (n) => utils.addJob("bench", payload(n)),
      many: (numbers) =>
        utils.addJobs(numbers.map((n) => ({ identifier: "bench", payload: payload(n) }))),
      close: () => utils.release(),
    };
  },

  async work(connectionString, ran) {
    const runner = await run({
      preset: {
        worker: {
          connectionString,
          concurrentJobs: 24,
          maxPoolSize: 25,
          localQueue: { size: 500 },
          completeJobBatchDelay: 0,
          failJobBatchDelay: 0,
          logger: quiet,
        },
      },
      taskList: { bench: async ({ n }) => ran(n) },
    });
    await runner.promise;
  },
});
