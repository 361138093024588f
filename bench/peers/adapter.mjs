// What every adapter on Node shares; the commands and the answers are those of adapter.py.
//
// An adapter gives an object with version, settings, unfinished, install(dsn), producer(dsn, clients), work(dsn, ran);
// a producer has one(n), many(numbers) and close().
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const TICK = 10; // milliseconds between two counts of a worker
const FILLER = "x".repeat(130);
// packages are in the folder that the harness starts us in, not beside this file
const require = createRequire(pathToFileURL(`${process.cwd()}/`));

export const load = (name) => import(pathToFileURL(require.resolve(name)));
export const versionOf = (name) => require(`./node_modules/${name}/package.json`).version;
export const payload = (n) => ({ k: FILLER, n });

const now = () => Date.now() / 1000;
const precise = () => performance.timeOrigin / 1000 + performance.now() / 1000; // as now(), with microseconds
const say = (answer) =>
  new Promise((done) => process.stdout.write(`@ ${JSON.stringify(answer)}\n`, done));
const sleep = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));
const range = (start, end) => Array.from({ length: end - start }, (_, index) => start + index);
const together = (clients, run) => Promise.all(range(0, clients).map(run));

function lines() {
  const reader = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  return async () => (await reader.next()).value;
}

async function enqueue(adapter, dsn, clients, seconds, count) {
  const producer = await adapter.producer(dsn, clients);
  await together(clients, () => producer.one(-1));
  const began = now();
  const end = began + (seconds || Infinity);
  let next = 0;
  let done = 0;
  await together(clients, async () => {
    while (now() < end) {
      const n = next++;
      if (count && n >= count) break;
      await producer.one(n);
      done += 1;
    }
  });
  const took = now() - began;
  await producer.close();
  await say({ count: done, warm: clients, seconds: took });
}

async function bulk(adapter, dsn, count, chunk) {
  const producer = await adapter.producer(dsn, 1);
  const rates = [];
  for (let start = 0; start < count; start += chunk) {
    const numbers = range(start, Math.min(start + chunk, count));
    const began = precise();
    await producer.many(numbers);
    rates.push(numbers.length / (precise() - began));
  }
  await producer.close();
  await say({ count, rates });
}

async function pace(adapter, dsn, rate, seconds) {
  const clients = Math.min(16, Math.max(1, Math.floor(rate / 100)));
  const producer = await adapter.producer(dsn, clients);
  await together(clients, () => producer.one(-1));
  const line = lines();
  await say({ ready: true, warm: clients });
  await line();
  const committed = [];
  const began = precise();
  let next = 0;
  await together(clients, async () => {
    for (let n = next++; n < rate * seconds; n = next++) {
      const wait = began + n / rate - precise();
      if (wait > 0) await sleep(wait);
      await producer.one(n);
      committed.push([n, precise()]);
    }
  });
  const took = precise() - began;
  await producer.close();
  await say({ committed, seconds: took });
}

async function work(adapter, dsn) {
  const runs = [];
  const line = lines();
  await say({ ready: true });
  await line();
  let told = 0;
  setInterval(() => {
    if (runs.length > told) {
      told = runs.length;
      say({ ran: told });
    }
  }, TICK);
  const report = async () => {
    await line();
    await say({ runs });
    process.exit(0); // what it has done is known, and the database is dropped
  };
  report();
  await adapter.work(dsn, (n) => runs.push([n, precise()]));
}

export async function main(adapter) {
  const [command, ...numbers] = process.argv.slice(2);
  const dsn = process.env.PEER_DSN;
  if (command === "about") {
    const { version, settings, unfinished } = adapter;
    await say({ version, settings, unfinished });
  } else if (command === "install") {
    await adapter.install(dsn);
    await say({ installed: true });
  } else if (command === "work") {
    await work(adapter, dsn);
    return;
  } else {
    await { enqueue, bulk, pace }[command](adapter, dsn, ...numbers.map(Number));
  }
  process.exit(0);
}
