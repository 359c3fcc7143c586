// Goal: the answers of real nodes that the Rust crate is held to (light/tests/vectors.json) verify here with the same outcome, and nothing else does.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { existsSync, readFileSync } from "node:fs";
import test from "node:test";

import { EPOCH_CHANGES_MAX, LightClient, LightError, SLOTS_MAX, sha256 } from "../slipstream-light.js";

const vectors = JSON.parse(readFileSync(new URL("../../tests/vectors.json", import.meta.url)));
const [first, last] = vectors.waypoints;

const begin = ({ waypoint, answer } = first) => LightClient.fromWaypoint(waypoint, answer);

const followed = async () => {
  const client = begin();
  await client.learn(vectors.epochChanges);
  return client;
};

const question = ({ address, slots, batch }) => ({ address, slots, at: batch, ageMsMax: 60_000, nowMs: vectors.nowMs });

/** The code of the refusal. Any other error is a fault. */
const refusal = async (attempt) => {
  try {
    await attempt();
  } catch (error) {
    if (error instanceof LightError) return error.code;
    throw error;
  }
  return "accepted";
};

/** The text with bit `bit` of byte `at` behind 0x flipped. */
const flip = (text, at, bit) => {
  const byte = parseInt(text.slice(2 + 2 * at, 4 + 2 * at), 16) ^ (1 << bit);
  return text.slice(0, 2 + 2 * at) + byte.toString(16).padStart(2, "0") + text.slice(4 + 2 * at);
};

const length = (text) => text.length / 2 - 1;

test("SHA-256 is SHA-256 at every length of padding", () => {
  for (let n = 0; n < 260; n++) {
    const bytes = Uint8Array.from({ length: n }, (_, i) => (i * 31 + n) & 0xff);
    assert.deepEqual(Buffer.from(sha256(bytes)), createHash("sha256").update(bytes).digest(), `${n} bytes`);
  }
});

test("the answers of a real chain verify", async () => {
  const client = begin();
  assert.equal(client.epoch, 0n);
  assert.equal(await client.learn(vectors.epochChanges), vectors.epochChanges.length);
  assert.deepEqual([client.waypoint, client.genesis], [last.waypoint, first.answer.genesis]);
  const byWaypoint = begin(last);
  assert.deepEqual([byWaypoint.epoch, byWaypoint.genesis], [client.epoch, client.genesis]);
  for (const vector of vectors.proofs) {
    for (const one of [client, byWaypoint]) {
      const { account, slots, number, certified } = await one.verify(question(vector), vector.answer);
      const { expected } = vector;
      assert.equal(number, BigInt(expected.batch));
      assert.ok(certified >= number);
      assert.equal(account?.balance ?? 0n, BigInt(expected.balance));
      assert.equal(account?.nonce ?? 0n, BigInt(expected.nonce));
      assert.deepEqual(slots, expected.slots.map(BigInt));
      assert.equal((account?.codeHash ?? null) !== null, expected.hasCode);
      assert.equal(account !== null, expected.exists);
    }
  }
});

test("no bit of a proof can be another one", async () => {
  const client = await followed();
  const { answer, ...vector } = vectors.proofs.find(({ answer }) => answer.storage.length > 1 && answer.account?.codeHash);
  const attempt = (bent) => refusal(() => client.verify(question(vector), bent));
  assert.equal(await attempt(answer), "accepted");
  for (const field of ["certificate", "genesisProof", "header", "headerProof", "accountProof", "address"]) {
    for (let at = 0; at < length(answer[field]); at++) {
      const code = await attempt({ ...answer, [field]: flip(answer[field], at, at % 8) });
      assert.notEqual(code, "accepted", `${field}, byte ${at}`);
    }
  }
  const alter = (account) => attempt({ ...answer, account: account && { ...answer.account, ...account } });
  const codeHash = flip(answer.account.codeHash, 31, 0);
  for (const account of [{ balance: "0x1" }, { nonce: "0xff" }, { codeHash }, { codeHash: null }, null]) {
    assert.equal(await alter(account), "state");
  }
  for (const [i, slot] of answer.storage.entries()) {
    const replaced = (other) => attempt({ ...answer, storage: answer.storage.map((it, j) => (i === j ? other : it)) });
    assert.equal(await replaced({ ...slot, value: `0x${(BigInt(slot.value) + 1n).toString(16)}` }), "state");
    if (slot.value !== "0x0") assert.equal(await replaced({ ...slot, value: "0x0" }), "state");
    assert.equal(await replaced({ ...slot, key: flip(slot.key, 31, 0) }), "other-question");
    for (let at = 0; at < length(slot.proof); at++) {
      assert.notEqual(await replaced({ ...slot, proof: flip(slot.proof, at, (at + 3) % 8) }), "accepted", `slot ${i}, byte ${at}`);
    }
  }
});

test("no bit of an epoch change, or of what comes with a waypoint, can be another one", async () => {
  const [change] = vectors.epochChanges;
  for (let at = 0; at < length(change); at++) {
    const client = begin();
    assert.notEqual(await refusal(() => client.learn([flip(change, at, at % 8)])), "accepted", `byte ${at}`);
    assert.equal(client.epoch, 0n);
  }
  for (const { waypoint, answer } of vectors.waypoints) {
    for (const field of ["ledgerInfo", "genesis", "genesisProof"]) {
      for (let at = 0; at < length(answer[field]); at++) {
        const bent = { ...answer, [field]: flip(answer[field], at, at % 8) };
        assert.notEqual(await refusal(() => LightClient.fromWaypoint(waypoint, bent)), "accepted", `${field}, byte ${at}`);
      }
    }
  }
  assert.equal(await refusal(() => LightClient.fromWaypoint(last.waypoint, first.answer)), "other-waypoint");
  const { waypoint, answer } = vectors.inside;
  assert.equal(await refusal(() => LightClient.fromWaypoint(waypoint, answer)), "waypoint-inside-epoch");
});

test("epochs are followed in order, and what is over counts no more", async () => {
  const [vector] = vectors.proofs;
  assert.equal(await refusal(() => begin().verify(question(vector), vector.answer)), "unknown-epoch");
  const client = await followed();
  const [certificate] = vectors.epochChanges;
  assert.equal(await refusal(() => client.verify(question(vector), { ...vector.answer, certificate })), "past-epoch");
  assert.equal(await refusal(() => client.learn([certificate])), "past-epoch");
  assert.equal(await refusal(() => begin().learn([vector.answer.certificate])), "unknown-epoch");
  assert.equal(await refusal(() => client.learn([vector.answer.certificate])), "epoch-end");
});

test("a proof of something else does not answer", async () => {
  const client = await followed();
  const vector = vectors.proofs.find(({ slots, batch }) => slots.length > 1 && batch === undefined);
  const asked = question(vector);
  const ask = (change) => refusal(() => client.verify({ ...asked, ...change }, vector.answer));
  assert.equal(await ask({}), "accepted");
  assert.equal(await ask({ address: flip(vector.address, 0, 0) }), "other-question");
  assert.equal(await ask({ slots: [...vector.slots].reverse() }), "other-question");
  assert.equal(await ask({ slots: vector.slots.slice(1) }), "other-question");
  assert.equal(await ask({ at: vector.expected.batch + 1 }), "other-question");
  assert.equal(await ask({ nowMs: vectors.nowMs + 70_000 }), "too-old");
  for (const nowMs of [NaN, null, Infinity]) assert.equal(await ask({ nowMs }), "too-old");
  await assert.rejects(client.verify({ ...asked, ageMsMax: undefined }, vector.answer), TypeError);
});

test("what is malformed or too long is refused as that", async () => {
  const client = await followed();
  const [{ answer, ...vector }] = vectors.proofs;
  const attempt = (bent) => refusal(() => client.verify(question(vector), bent));
  const long = `0x${"00".repeat(40_000)}`;
  const bent = [null, [], 5, "0x", {}, { ...answer, more: 1 }];
  for (const field of ["certificate", "genesisProof", "header", "headerProof", "accountProof"]) {
    for (const text of [long, "0x", answer[field].slice(2), `${answer[field]}00`, answer[field].slice(0, -2), 5, null]) {
      bent.push({ ...answer, [field]: text });
    }
  }
  for (const one of bent) assert.equal(await attempt(one), "malformed", JSON.stringify(one)?.slice(0, 200));
  const surplus = { ...answer, storage: Array(SLOTS_MAX + 1).fill({ key: "0x", value: "0x0", proof: "0x" }) };
  assert.equal(await attempt(surplus), "other-question");
  for (const changes of [Array(EPOCH_CHANGES_MAX + 1).fill("0x"), "0x", null, ["0x"], [long]]) {
    assert.equal(await refusal(() => client.learn(changes)), "malformed");
  }
});

test("reading learns epoch changes on the way, and ends where they are withheld", async () => {
  const [vector] = vectors.proofs;
  const node = (changes) => async (method, params) => {
    if (method === "slipstream_getProof") return vector.answer;
    assert.deepEqual([method, params], ["slipstream_getEpochChanges", ["0x0"]]);
    return changes;
  };
  const client = begin();
  assert.equal(await refusal(() => client.read(node([]), question(vector))), "unknown-epoch");
  const { number } = await client.read(node(vectors.epochChanges), question(vector));
  assert.equal(number, BigInt(vector.expected.batch));
});

test("who installs the package can import it by its name, and publish it", async () => {
  const root = new URL("../", import.meta.url);
  const manifest = JSON.parse(readFileSync(new URL("package.json", root)));
  assert.equal((await import(manifest.name)).LightClient, LightClient);
  assert.ok(!manifest.private, "npm packs a private package, and refuses to publish it");
  const { types, default: module } = manifest.exports["."];
  for (const file of [types, module]) {
    const name = file.replace("./", "");
    assert.ok(manifest.files.includes(name) && existsSync(new URL(name, root)), name);
  }
});
