// A light client of a Slipstream chain: it follows the chain's validators and checks proofs of accounts and slots, so it need not trust the
// answering node. docs/light-clients.md says what is proved and what is not; docs/formats.md specifies the bytes.
//
// WebCrypto (Ed25519), which Node 20 and today's browsers have, checks signatures. Hashing is done here: the state's tree uses
// compressions of SHA-256 with initial values of its own, which no library offers.
//
// The client checks every proof before it trusts the answer, and refuses content that is too long before decoding.

/** Maximum number of slots of one proof. */
export const SLOTS_MAX = 1024;
/** Maximum number of certificates of one answer of `slipstream_getEpochChanges`. */
export const EPOCH_CHANGES_MAX = 64;

const VALIDATORS_MAX = 128;
const PROOF_SIDE_MAX = 256;
const BYTES_MAX = {
  certificate: 16 << 10,
  ledgerInfo: 8 << 10,
  header: 272,
  accumulatorProof: 2 + 128 * 32,
  stateProof: 4 + 256 * 66,
};

/** Why an answer was not accepted. The type declarations list the values of `code`. */
export class LightError extends Error {
  constructor(code, message) {
    super(message);
    this.name = "LightError";
    this.code = code;
  }
}

const refuse = (code, message) => {
  throw new LightError(code, message);
};

// ---------------------------------------------------------------------------------------------------------------- bytes

const hex = (bytes) => "0x" + Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

const equal = (a, b) => a.length === b.length && a.every((byte, i) => byte === b[i]);

const concat = (...parts) => {
  const whole = new Uint8Array(parts.reduce((length, part) => length + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
};

/** Decodes hexadecimal text to bytes. Checks the text's length first. */
const unhex = (text, what, max, min = 0) => {
  const isShort = typeof text === "string" && text.length >= 2 + 2 * min && text.length <= 2 + 2 * max;
  if (!isShort || text.length % 2 !== 0 || !/^0x[0-9a-fA-F]*$/.test(text)) {
    refuse("malformed", `the ${what} is not 0x and ${min === max ? "" : "at most "}${2 * max} hexadecimal digits`);
  }
  const bytes = new Uint8Array(text.length / 2 - 1);
  for (let i = 0; i < bytes.length; i++) bytes[i] = parseInt(text.slice(2 + 2 * i, 4 + 2 * i), 16);
  return bytes;
};

const quantity = (text, what, bits) => {
  const isOne = typeof text === "string" && text.length <= 2 + bits / 4 && /^0x(0|[1-9a-fA-F][0-9a-fA-F]*)$/.test(text);
  if (!isOne) refuse("malformed", `the ${what} is not a quantity of at most ${bits} bits`);
  return BigInt(text);
};

/** A number as `length` bytes, the least significant first. */
const littleEndian = (number, length) => {
  const bytes = new Uint8Array(length);
  for (let i = 0; i < length; i++, number >>= 8n) bytes[i] = Number(number & 0xffn);
  return bytes;
};

const fields = (value, names, what) => {
  const isObject = typeof value === "object" && value !== null && !Array.isArray(value);
  const found = isObject ? Object.keys(value) : [];
  if (!isObject || found.length !== names.length || !names.every((name) => Object.hasOwn(value, name))) {
    refuse("malformed", `${what} must have exactly the fields ${names.join(", ")}`);
  }
  return value;
};

/** Reads BCS. Refuses surplus or missing bytes, and encodings that are not canonical. */
class Reader {
  constructor(bytes, what) {
    this.bytes = bytes;
    this.what = what;
    this.at = 0;
  }

  malformed(reason) {
    return refuse("malformed", `the ${this.what} is malformed: ${reason}`);
  }

  take(length) {
    if (this.bytes.length - this.at < length) this.malformed("it ends early");
    this.at += length;
    return this.bytes.subarray(this.at - length, this.at);
  }

  u8() {
    return this.take(1)[0];
  }

  u16() {
    const [low, high] = this.take(2);
    return low | (high << 8);
  }

  u64() {
    return this.take(8).reduceRight((number, byte) => (number << 8n) | BigInt(byte), 0n);
  }

  digest() {
    return this.take(32);
  }

  /** A length, then this number of elements. */
  list(max, element) {
    let length = 0;
    for (let shift = 0; ; shift += 7) {
      const byte = this.u8();
      length += (byte & 0x7f) * 2 ** shift;
      if (byte < 0x80) {
        if (byte === 0 && shift > 0) this.malformed("a length is not canonical");
        break;
      }
      if (shift === 28) this.malformed("a length is too long");
    }
    if (length > max) this.malformed(`a list has ${length} elements, but at most ${max} are allowed`);
    return Array.from({ length }, () => element(this));
  }

  option(element) {
    const tag = this.u8();
    if (tag > 1) this.malformed("an option is neither present nor absent");
    return tag === 1 ? element(this) : null;
  }

  end() {
    if (this.at !== this.bytes.length) this.malformed("bytes follow its end");
  }
}

const decode = (bytes, what, read) => {
  const reader = new Reader(bytes, what);
  const value = read(reader);
  reader.end();
  return value;
};

// -------------------------------------------------------------------------------------------------------------- SHA-256

/** The first 32 bits of the fractional parts of the square (or cube) roots of the first primes, as FIPS 180-4 defines them. */
const [INITIAL, ROUNDS] = (() => {
  const primes = [];
  for (let n = 2; primes.length < 64; n++) if (primes.every((prime) => n % prime !== 0)) primes.push(n);
  // The largest integer whose k-th power is at most n.
  const root = (n, k) => {
    let low = 0n;
    for (let bit = 1n << 40n; bit > 0n; bit >>= 1n) if ((low + bit) ** k <= n) low += bit;
    return low;
  };
  const fraction = (prime, k) => Number(root(BigInt(prime) << (32n * k), k) & 0xffffffffn);
  return [
    Uint32Array.from(primes.slice(0, 8), (prime) => fraction(prime, 2n)),
    Uint32Array.from(primes, (prime) => fraction(prime, 3n)),
  ];
})();

const rotate = (word, by) => (word >>> by) | (word << (32 - by));

/** One compression: changes the eight words of `state` by the 64 bytes from `at` on. */
const compress = (state, bytes, at) => {
  const w = new Uint32Array(64);
  for (let i = 0; i < 16; i++) {
    const j = at + 4 * i;
    w[i] = (bytes[j] << 24) | (bytes[j + 1] << 16) | (bytes[j + 2] << 8) | bytes[j + 3];
  }
  for (let i = 16; i < 64; i++) {
    const s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ (w[i - 15] >>> 3);
    const s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ (w[i - 2] >>> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  let [a, b, c, d, e, f, g, h] = state;
  for (let i = 0; i < 64; i++) {
    const s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
    const t1 = (h + s1 + ((e & f) ^ (~e & g)) + ROUNDS[i] + w[i]) | 0;
    const s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
    const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    [h, g, f, e, d, c, b, a] = [g, f, e, (d + t1) | 0, c, b, a, (t1 + t2) | 0];
  }
  [a, b, c, d, e, f, g, h].forEach((word, i) => (state[i] += word));
};

const toBytes = (state) => {
  const bytes = new Uint8Array(32);
  const view = new DataView(bytes.buffer);
  state.forEach((word, i) => view.setUint32(4 * i, word));
  return bytes;
};

/** The SHA-256 digest of bytes. */
export const sha256 = (bytes) => {
  const padded = new Uint8Array(((bytes.length + 8) >> 6 << 6) + 64);
  padded.set(bytes);
  padded[bytes.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setUint32(padded.length - 8, Math.floor(bytes.length / 2 ** 29));
  view.setUint32(padded.length - 4, bytes.length << 3);
  const state = Uint32Array.from(INITIAL);
  for (let at = 0; at < padded.length; at += 64) compress(state, padded, at);
  return toBytes(state);
};

/** H(tag, bytes) of docs/formats.md. */
const tagged = (tag, ...parts) => {
  const name = new TextEncoder().encode(tag);
  return sha256(concat(littleEndian(BigInt(name.length), 8), name, ...parts));
};

/** C(domain, 64 bytes) of docs/formats.md. */
const compression = (tag) => {
  const view = new DataView(tagged(tag).buffer);
  const initial = Uint32Array.from({ length: 8 }, (_, i) => view.getUint32(4 * i));
  return (left, right) => {
    const state = Uint32Array.from(initial);
    compress(state, concat(left, right), 0);
    return toBytes(state);
  };
};

const hashLeaf = compression("slipstream/state-leaf/1");
const hashJoin = compression("slipstream/state-join/1");
const ZERO = new Uint8Array(32);

// ----------------------------------------------------------------------------------------------------------- signatures

/** All encodings of the eight points of small order. A key, or a signature's first half, that is one of these points proves nothing. */
const SMALL_ORDER = new Set([
  "0x0000000000000000000000000000000000000000000000000000000000000000",
  "0x0000000000000000000000000000000000000000000000000000000000000080",
  "0x0100000000000000000000000000000000000000000000000000000000000000",
  "0x0100000000000000000000000000000000000000000000000000000000000080",
  "0x26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
  "0x26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
  "0xc7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
  "0xc7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
  "0xecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
  "0xecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
  "0xedffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
  "0xedffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
  "0xeeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
  "0xeeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
]);

const verifySignature = async (key, message, signature) => {
  if (SMALL_ORDER.has(hex(key)) || SMALL_ORDER.has(hex(signature.subarray(0, 32)))) return false;
  const subtle = globalThis.crypto?.subtle;
  if (!subtle) refuse("unsupported", "WebCrypto is missing here: use Node 20, or a browser with a page from https or localhost");
  let imported;
  try {
    imported = await subtle.importKey("raw", key, { name: "Ed25519" }, false, ["verify"]);
  } catch (error) {
    if (error?.name === "NotSupportedError") refuse("unsupported", "WebCrypto has no Ed25519 here: use Node 20, or a newer browser");
    return false;
  }
  return subtle.verify({ name: "Ed25519" }, imported, signature, message);
};

// --------------------------------------------------------------------------------------------------------- certificates

const readSet = (reader) => {
  const epoch = reader.u64();
  const keys = reader.list(VALIDATORS_MAX, (it) => {
    const key = it.digest();
    if (it.u8() !== 20) it.malformed("a fee recipient is not an address");
    it.take(20);
    return key;
  });
  return { epoch, keys, any: reader.u16(), commission: reader.u16() };
};

const readInfo = (reader) => {
  const from = reader.at;
  const info = {
    epoch: reader.u64(),
    number: reader.u64(),
    accumulatorRoot: reader.digest(),
    stateRoot: reader.digest(),
    timestampMs: reader.u64(),
    next: reader.option(readSet),
  };
  // The encoding is canonical, so that its bytes are what was signed.
  info.digest = tagged("slipstream/ledger-info/1", reader.bytes.subarray(from, reader.at));
  return info;
};

const readCertificate = (text) =>
  decode(unhex(text, "certificate", BYTES_MAX.certificate), "certificate", (reader) => {
    const info = readInfo(reader);
    const view = reader.u64();
    const signatures = reader.list(VALIDATORS_MAX, (it) => ({ index: it.u16(), signature: it.take(64) }));
    return { info, view, signatures };
  });

/** Refuses validators that could certify anything, or two ledgers. */
const checkSet = (set, epoch, info) => {
  const wrong = (reason) => refuse("epoch-end", `the certificate of batch ${info.number} does not end epoch ${info.epoch}: ${reason}`);
  if (set.epoch !== epoch) wrong(`it names validators for epoch ${set.epoch} instead`);
  if (set.keys.length === 0) wrong("there must be at least one validator");
  if (new Set(set.keys.map(hex)).size !== set.keys.length) wrong("a validator is named twice");
  if (set.keys.length < 2 * set.any + set.commission + 1) wrong("the validators are too few for the failures to tolerate");
};

/** Checks that a quorum of the set signed, by ascending index and once each. */
const verifyQuorum = async ({ info, view, signatures }, set) => {
  const wrong = (reason) => refuse("certificate", `certificate of batch ${info.number}: ${reason}`);
  const quorum = set.keys.length - set.any;
  if (signatures.length < quorum) wrong(`it has ${signatures.length} signatures, but a quorum is ${quorum}`);
  const statement = tagged("slipstream/commit/1", littleEndian(view, 8), info.digest);
  let free = 0;
  for (const { index, signature } of signatures) {
    if (index < free || index >= set.keys.length) wrong(`validator index ${index} is repeated, out of order or unknown`);
    free = index + 1;
    if (!(await verifySignature(set.keys[index], statement, signature))) wrong(`the signature of validator ${index} does not verify`);
  }
};

// ---------------------------------------------------------------------------------------------------------- accumulator

/** Checks that leaf `index` of the tree of `leaves` leaves with that root is `item`. */
const verifyLeaf = (text, root, leaves, index, item, code, what) => {
  const bytes = unhex(text, "accumulator proof", BYTES_MAX.accumulatorProof);
  const siblings = decode(bytes, "accumulator proof", (reader) => reader.list(128, (it) => it.digest()));
  const wrong = () => refuse(code, `${what} is not in the certified ledger`);
  if (index >= leaves) wrong();
  let used = 0;
  const node = (first, length) => {
    if (first + length <= index || index < first) return used < siblings.length ? siblings[used++] : wrong();
    if (length === 1n) return item;
    // The tree splits at the largest power of two below its length.
    const half = 1n << BigInt((length - 1n).toString(2).length - 1);
    const left = node(first, half);
    return tagged("slipstream/accumulator/1", left, node(first + half, length - half));
  };
  if (!equal(node(0n, leaves), root) || used !== siblings.length) wrong();
};

// ---------------------------------------------------------------------------------------------------------------- state

const bit = (path, index) => (path[index >> 3] >> (7 - (index & 7))) & 1;

const pathOf = (address, slot) => {
  const account = sha256(concat([0], address)).subarray(0, 8);
  const rest = slot ? sha256(concat([1, 1], address, slot)) : sha256(concat([1, 0], address));
  return concat(account, rest.subarray(0, 24));
};

const readSiblings = (reader) =>
  reader.list(PROOF_SIDE_MAX, (it) => {
    const depth = it.u8();
    switch (it.u8()) {
      case 0:
        return { depth, path: it.digest(), valueHash: it.digest() };
      case 1:
        return { depth, hash: it.digest() };
      default:
        return it.malformed("a sibling is neither a leaf nor a node");
    }
  });

/** The parent of two subtrees. A lone leaf moves up; all other subtrees are joined. */
const parent = (left, right) => {
  if (!left && !right) return null;
  if (!right && left.isLeaf) return left;
  if (!left && right.isLeaf) return right;
  return { isLeaf: false, hash: hashJoin(left ? left.hash : ZERO, right ? right.hash : ZERO) };
};

/** Checks that the state with that root holds exactly this row at the path, or none where `row` is null. */
const verifyRow = (text, root, path, row, what) => {
  const wrong = () => refuse("state", `${what} does not match the certified state`);
  const bytes = unhex(text, "state proof", BYTES_MAX.stateProof);
  const [left, right] = decode(bytes, "state proof", (reader) => [readSiblings(reader), readSiblings(reader)]);
  const beside = new Map();
  for (const [side, isLeft] of [[left, 1], [right, 0]]) {
    side.forEach((sibling, i) => {
      if (bit(path, sibling.depth) !== isLeft || (i > 0 && side[i - 1].depth >= sibling.depth)) wrong();
      beside.set(sibling.depth, sibling);
    });
  }
  const subtree = (sibling) => {
    if (!sibling) return null;
    if (sibling.hash) return { isLeaf: false, hash: sibling.hash };
    // A lone leaf shows its path: an inner node passed off as one could hide rows.
    for (let i = 0; i <= sibling.depth; i++) {
      if ((bit(sibling.path, i) === bit(path, i)) !== i < sibling.depth) wrong();
    }
    return { isLeaf: true, hash: hashLeaf(sibling.path, sibling.valueHash) };
  };
  let node = row ? { isLeaf: true, hash: hashLeaf(path, tagged("slipstream/row/1", row)) } : null;
  for (let depth = 255; depth >= 0; depth--) {
    const sibling = subtree(beside.get(depth));
    node = bit(path, depth) ? parent(sibling, node) : parent(node, sibling);
  }
  if (!equal(node ? node.hash : ZERO, root)) wrong();
};

const word = (number) => littleEndian(number, 32).reverse();

const accountRow = (address, { nonce, balance, codeHash }) =>
  concat([0], address, [0], littleEndian(nonce, 8), word(balance), codeHash ? concat([1], codeHash) : [0]);

// --------------------------------------------------------------------------------------------------------------- client

const readHeader = (text) => {
  const bytes = unhex(text, "header", BYTES_MAX.header, BYTES_MAX.header);
  const reader = new Reader(bytes, "header");
  const number = reader.u64();
  reader.take(32 + 8 + 8);
  const timestampMs = reader.u64();
  return { number, timestampMs, stateRoot: bytes.subarray(200, 232), digest: tagged("slipstream/header/1", bytes) };
};

const PROOF_FIELDS = ["certificate", "genesisProof", "header", "headerProof", "address", "account", "accountProof", "storage"];

/** A chain and the validators of its newest known epoch. Only their certificates count. */
export class LightClient {
  #genesis;
  #set;
  #named;

  constructor(genesis, set, named) {
    this.#genesis = genesis;
    this.#set = set;
    this.#named = named;
  }

  /** Begins with the validators that a waypoint's ledger info names. The waypoint must belong to an epoch's last batch, or to batch 0. */
  static fromWaypoint(waypoint, proof) {
    const { ledgerInfo, genesis, genesisProof } = fields(proof, ["ledgerInfo", "genesis", "genesisProof"], "what comes with a waypoint");
    const info = decode(unhex(ledgerInfo, "ledger info", BYTES_MAX.ledgerInfo), "ledger info", readInfo);
    const found = `${info.number}:${hex(info.digest)}`;
    if (found !== waypoint) refuse("other-waypoint", `the ledger info has the waypoint ${found}, but the trusted waypoint is ${waypoint}`);
    if (!info.next) {
      refuse("waypoint-inside-epoch", `waypoint ${waypoint} does not end an epoch, so it names no validators: begin with one that does`);
    }
    const first = unhex(genesis, "digest of the genesis", 32, 32);
    verifyLeaf(genesisProof, info.accumulatorRoot, info.number + 1n, 0n, first, "other-chain", "the genesis");
    checkSet(info.next, info.number === 0n ? 0n : info.epoch + 1n, info);
    return new LightClient(first, info.next, info);
  }

  /** Digest of the genesis' header, which JSON-RPC calls the hash of block 0. */
  get genesis() {
    return hex(this.#genesis);
  }

  /** The newest epoch whose validators are known. */
  get epoch() {
    return this.#set.epoch;
  }

  /** A waypoint from which a client that trusts this one can begin. */
  get waypoint() {
    return `${this.#named.number}:${hex(this.#named.digest)}`;
  }

  /** Follows the validators through an answer of `slipstream_getEpochChanges`. Returns how many epochs ended. */
  async learn(changes) {
    if (!Array.isArray(changes) || changes.length > EPOCH_CHANGES_MAX) {
      refuse("malformed", `epoch changes are not a list of at most ${EPOCH_CHANGES_MAX} certificates`);
    }
    for (const text of changes) {
      const certificate = readCertificate(text);
      await this.#verify(certificate);
      const { info } = certificate;
      // Another call may have learnt more epochs meanwhile: the known epoch never goes back.
      if (info.epoch !== this.#set.epoch) continue;
      if (!info.next) refuse("epoch-end", `the certificate of batch ${info.number} does not end epoch ${info.epoch}: it names no validators for the next epoch`);
      checkSet(info.next, info.epoch + 1n, info);
      this.#set = info.next;
      this.#named = info;
    }
    return changes.length;
  }

  /** Checks that an answer of `slipstream_getProof` answers the question, and that a quorum of the newest known epoch vouches for it. */
  async verify(question, proof) {
    fields(proof, PROOF_FIELDS, "the proof");
    const address = unhex(proof.address, "address", 20, 20);
    const asked = unhex(question.address, "address that is asked for", 20, 20);
    if (!equal(address, asked)) refuse("other-question", `the request was for account ${question.address}, but the proof is for ${proof.address}`);
    const slots = question.slots ?? [];
    const { storage } = proof;
    if (!Array.isArray(storage) || storage.length !== slots.length || storage.length > SLOTS_MAX) {
      refuse("other-question", `the proof does not have the ${slots.length} requested slots`);
    }
    const header = readHeader(proof.header);
    this.#checkMoment(question, header);

    const certificate = readCertificate(proof.certificate);
    await this.#verify(certificate);
    const { info } = certificate;
    const leaves = info.number + 1n;
    verifyLeaf(proof.genesisProof, info.accumulatorRoot, leaves, 0n, this.#genesis, "other-chain", `the genesis ${this.genesis}`);
    verifyLeaf(proof.headerProof, info.accumulatorRoot, leaves, header.number, header.digest, "header", `the header of batch ${header.number}`);
    if (header.number === info.number && !equal(header.stateRoot, info.stateRoot)) {
      refuse("header", `the certificate and the header of batch ${info.number} name different states`);
    }

    const account = this.#readAccount(proof.account);
    verifyRow(proof.accountProof, header.stateRoot, pathOf(address), account && accountRow(address, account), `account ${proof.address}`);
    const values = storage.map((entry, i) => {
      const { key, value, proof: rowProof } = fields(entry, ["key", "value", "proof"], "a slot");
      const [slot, wanted] = [unhex(key, "slot", 32, 32), unhex(slots[i], "slot that is asked for", 32, 32)];
      if (!equal(slot, wanted)) refuse("other-question", `the request was for slot ${slots[i]}, but the proof is for ${key}`);
      const number = quantity(value, "value of a slot", 256);
      const row = number === 0n ? null : concat([1], address, slot, [1], word(number));
      verifyRow(rowProof, header.stateRoot, pathOf(address, slot), row, `slot ${key} of ${proof.address}`);
      return number;
    });
    return {
      number: header.number,
      hash: hex(header.digest),
      timestampMs: Number(header.timestampMs),
      certified: info.number,
      account: account && { ...account, codeHash: account.codeHash && hex(account.codeHash) },
      slots: values,
    };
  }

  /** Asks a node and verifies its answer; learns epoch changes on the way. `request(method, params)` gives the result of a JSON-RPC call. */
  async read(request, question) {
    const at = question.at === undefined || question.at === "latest" ? "latest" : `0x${BigInt(question.at).toString(16)}`;
    for (;;) {
      const proof = await request("slipstream_getProof", [question.address, question.slots ?? [], at]);
      try {
        return await this.verify(question, proof);
      } catch (error) {
        if (error?.code !== "unknown-epoch") throw error;
        const learned = await this.learn(await request("slipstream_getEpochChanges", [`0x${this.epoch.toString(16)}`]));
        if (learned === 0) throw error;
      }
    }
  }

  #checkMoment({ at = "latest", ageMsMax, nowMs = Date.now() }, header) {
    if (at !== "latest") {
      if (header.number !== BigInt(at)) refuse("other-question", `the request was for the state of batch ${at}, but the proof is for batch ${header.number}`);
      return;
    }
    if (!Number.isFinite(ageMsMax)) throw new TypeError("ageMsMax must be a number: give the maximum age of the newest batch in milliseconds");
    const age = nowMs - Number(header.timestampMs);
    // A time that is not a number gives no age.
    if (!Number.isFinite(nowMs) || age > ageMsMax) refuse("too-old", `batch ${header.number} is ${age} ms old, but at most ${ageMsMax} ms are allowed`);
  }

  #readAccount(account) {
    if (account === null) return null;
    const { nonce, balance, codeHash } = fields(account, ["nonce", "balance", "codeHash"], "the account");
    const row = {
      nonce: quantity(nonce, "nonce", 64),
      balance: quantity(balance, "balance", 256),
      codeHash: codeHash === null ? null : unhex(codeHash, "code hash", 32, 32),
    };
    if (row.nonce === 0n && row.balance === 0n && !row.codeHash) refuse("state", "the proof shows an account as a row of zeros, which no state has");
    return row;
  }

  async #verify(certificate) {
    const { epoch, number } = certificate.info;
    const known = this.#set.epoch;
    if (epoch > known) refuse("unknown-epoch", `the certificate belongs to epoch ${epoch}, but the validators are known up to epoch ${known}: learn the epoch changes from there on`);
    if (epoch < known) refuse("past-epoch", `the certificate belongs to epoch ${epoch}, which is over: epoch ${known} is known`);
    if (number <= this.#named.number) refuse("certificate", `the certificate names batch ${number} in epoch ${epoch}, but that epoch begins after batch ${this.#named.number}`);
    await verifyQuorum(certificate, this.#set);
  }
}
