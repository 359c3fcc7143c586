/** Maximum number of slots of one proof. */
export declare const SLOTS_MAX: 1024;
/** Maximum number of certificates of one answer of `slipstream_getEpochChanges`. */
export declare const EPOCH_CHANGES_MAX: 64;

/** Why an answer was not accepted: see docs/light-clients.md. */
export type LightErrorCode =
  | "malformed"
  | "other-question"
  | "too-old"
  | "unknown-epoch"
  | "past-epoch"
  | "certificate"
  | "epoch-end"
  | "other-waypoint"
  | "waypoint-inside-epoch"
  | "other-chain"
  | "header"
  | "state"
  | "unsupported";

export declare class LightError extends Error {
  readonly code: LightErrorCode;
  constructor(code: LightErrorCode, message: string);
}

/** The answer of `slipstream_getWaypoint`. */
export interface WaypointProof {
  ledgerInfo: string;
  genesis: string;
  genesisProof: string;
}

/** The answer of `slipstream_getProof`. Nothing in it counts before `verify` returns. */
export interface AccountProof {
  certificate: string;
  genesisProof: string;
  header: string;
  headerProof: string;
  address: string;
  account: { nonce: string; balance: string; codeHash: string | null } | null;
  accountProof: string;
  storage: { key: string; value: string; proof: string }[];
}

export interface Question {
  /** `0x` and 40 digits. */
  address: string;
  /** Keys of slots, each `0x` and 64 digits; at most `SLOTS_MAX`. */
  slots?: string[];
  /** The batch whose state is requested; that state is final. The newest batch if left out. */
  at?: "latest" | number | bigint;
  /** With `latest`: the maximum age of the batch, in milliseconds. Required then. */
  ageMsMax?: number;
  /** With `latest`: the current time, in milliseconds since 1970. The clock's time if left out. */
  nowMs?: number;
}

export interface VerifiedAccount {
  /** The batch whose state this is. */
  number: bigint;
  /** The batch's hash, as `eth_getBlockByNumber` returns it. */
  hash: string;
  /** The batch's time, in milliseconds since 1970. */
  timestampMs: number;
  /** The batch of the certificate: this one or a later one. */
  certified: bigint;
  /** Null if the state has no such account: no balance, no nonce, no code. */
  account: { nonce: bigint; balance: bigint; codeHash: string | null } | null;
  /** The slots' values, in the order of the question. */
  slots: bigint[];
}

/** A chain and the validators of its newest known epoch. Only their certificates count. */
export declare class LightClient {
  private constructor();
  /** Begins with the validators that the ledger info of a waypoint names. Throws `LightError`. */
  static fromWaypoint(waypoint: string, proof: WaypointProof): LightClient;
  /** Digest of the genesis' header: the hash of block 0. */
  get genesis(): string;
  /** The newest epoch whose validators are known. */
  get epoch(): bigint;
  /** A waypoint from which a client that trusts this one can begin. */
  get waypoint(): string;
  /** Follows the validators through an answer of `slipstream_getEpochChanges`. Returns how many epochs ended. Rejects with `LightError`. */
  learn(changes: string[]): Promise<number>;
  /** Checks an answer of `slipstream_getProof`. Rejects with `LightError`. */
  verify(question: Question, proof: AccountProof): Promise<VerifiedAccount>;
  /** Asks a node and verifies its answer; learns epoch changes on the way. */
  read(request: (method: string, params: unknown[]) => Promise<unknown>, question: Question): Promise<VerifiedAccount>;
}

/** The SHA-256 digest of bytes. */
export declare function sha256(bytes: Uint8Array): Uint8Array;
