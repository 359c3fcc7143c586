//! The EVM's instructions that the analysis names, by opcode, and the number of words that each takes and leaves.
//!
//! Source: the Yellow Paper, appendix H, and the EIPs up to Osaka. Opcodes that a later fork introduced count at any
//! block: a contract that holds one could not have run before.

pub(super) const STOP: u8 = 0x00;
pub(super) const ADD: u8 = 0x01;
pub(super) const MUL: u8 = 0x02;
pub(super) const SUB: u8 = 0x03;
pub(super) const DIV: u8 = 0x04;
pub(super) const SDIV: u8 = 0x05;
pub(super) const MOD: u8 = 0x06;
pub(super) const SMOD: u8 = 0x07;
pub(super) const ADDMOD: u8 = 0x08;
pub(super) const MULMOD: u8 = 0x09;
pub(super) const EXP: u8 = 0x0a;
pub(super) const SIGNEXTEND: u8 = 0x0b;
pub(super) const LT: u8 = 0x10;
pub(super) const GT: u8 = 0x11;
pub(super) const SLT: u8 = 0x12;
pub(super) const SGT: u8 = 0x13;
pub(super) const EQ: u8 = 0x14;
pub(super) const ISZERO: u8 = 0x15;
pub(super) const AND: u8 = 0x16;
pub(super) const OR: u8 = 0x17;
pub(super) const XOR: u8 = 0x18;
pub(super) const NOT: u8 = 0x19;
pub(super) const BYTE: u8 = 0x1a;
pub(super) const SHL: u8 = 0x1b;
pub(super) const SHR: u8 = 0x1c;
pub(super) const SAR: u8 = 0x1d;
pub(super) const CLZ: u8 = 0x1e;
pub(super) const KECCAK256: u8 = 0x20;
pub(super) const ADDRESS: u8 = 0x30;
pub(super) const BALANCE: u8 = 0x31;
pub(super) const ORIGIN: u8 = 0x32;
pub(super) const CALLER: u8 = 0x33;
pub(super) const CALLVALUE: u8 = 0x34;
pub(super) const CALLDATALOAD: u8 = 0x35;
pub(super) const CALLDATASIZE: u8 = 0x36;
pub(super) const CALLDATACOPY: u8 = 0x37;
pub(super) const CODESIZE: u8 = 0x38;
pub(super) const CODECOPY: u8 = 0x39;
pub(super) const GASPRICE: u8 = 0x3a;
pub(super) const EXTCODESIZE: u8 = 0x3b;
pub(super) const EXTCODECOPY: u8 = 0x3c;
pub(super) const RETURNDATASIZE: u8 = 0x3d;
pub(super) const RETURNDATACOPY: u8 = 0x3e;
pub(super) const EXTCODEHASH: u8 = 0x3f;
pub(super) const BLOCKHASH: u8 = 0x40;
pub(super) const COINBASE: u8 = 0x41;
pub(super) const TIMESTAMP: u8 = 0x42;
pub(super) const NUMBER: u8 = 0x43;
pub(super) const PREVRANDAO: u8 = 0x44;
pub(super) const GASLIMIT: u8 = 0x45;
pub(super) const CHAINID: u8 = 0x46;
pub(super) const SELFBALANCE: u8 = 0x47;
pub(super) const BASEFEE: u8 = 0x48;
pub(super) const BLOBHASH: u8 = 0x49;
pub(super) const BLOBBASEFEE: u8 = 0x4a;
pub(super) const POP: u8 = 0x50;
pub(super) const MLOAD: u8 = 0x51;
pub(super) const MSTORE: u8 = 0x52;
pub(super) const MSTORE8: u8 = 0x53;
pub(super) const SLOAD: u8 = 0x54;
pub(super) const SSTORE: u8 = 0x55;
pub(super) const JUMP: u8 = 0x56;
pub(super) const JUMPI: u8 = 0x57;
pub(super) const PC: u8 = 0x58;
pub(super) const MSIZE: u8 = 0x59;
pub(super) const GAS: u8 = 0x5a;
pub(super) const JUMPDEST: u8 = 0x5b;
pub(super) const TLOAD: u8 = 0x5c;
pub(super) const TSTORE: u8 = 0x5d;
pub(super) const MCOPY: u8 = 0x5e;
pub(super) const PUSH0: u8 = 0x5f;
pub(super) const PUSH32: u8 = 0x7f;
pub(super) const DUP1: u8 = 0x80;
pub(super) const DUP16: u8 = 0x8f;
pub(super) const SWAP1: u8 = 0x90;
pub(super) const SWAP16: u8 = 0x9f;
pub(super) const LOG0: u8 = 0xa0;
pub(super) const LOG4: u8 = 0xa4;
pub(super) const CREATE: u8 = 0xf0;
pub(super) const CALL: u8 = 0xf1;
pub(super) const CALLCODE: u8 = 0xf2;
pub(super) const RETURN: u8 = 0xf3;
pub(super) const DELEGATECALL: u8 = 0xf4;
pub(super) const CREATE2: u8 = 0xf5;
pub(super) const STATICCALL: u8 = 0xfa;
pub(super) const REVERT: u8 = 0xfd;
pub(super) const SELFDESTRUCT: u8 = 0xff;

/// A pseudo-instruction: the Keccak-256 of one word that is known without memory. It replaces hashing
/// `memory[p..p+32]`.
pub(super) const HASH1: u8 = 0x21;
/// A pseudo-instruction: the Keccak-256 of two words, which is the slot of a mapping's element.
pub(super) const HASH2: u8 = 0x22;

/// A pseudo-instruction: a SLOAD whose value is unused, so the prediction does not wait for it.
pub(super) const TOUCH_SLOT: u8 = 0x23;
/// A pseudo-instruction: a BALANCE, EXTCODESIZE or EXTCODEHASH whose result is unused.
pub(super) const TOUCH_ACCOUNT: u8 = 0x24;

/// Returns the number of words that a plain instruction takes from the stack, and whether it leaves one. `None` for
/// unknown instructions and those that the stack conversion handles itself: PUSH, DUP, SWAP, jumps, ends, LOG.
pub(super) const fn plain_arity(code: u8) -> Option<(usize, bool)> {
    Some(match code {
        ADDRESS | ORIGIN | CALLER | CALLVALUE | CALLDATASIZE | GASPRICE | RETURNDATASIZE | COINBASE
        | TIMESTAMP | NUMBER | PREVRANDAO | GASLIMIT | CHAINID | SELFBALANCE | BASEFEE | BLOBBASEFEE
        | MSIZE | GAS => (0, true),
        ISZERO | NOT | CLZ | BALANCE | CALLDATALOAD | EXTCODESIZE | EXTCODEHASH | BLOCKHASH | BLOBHASH
        | MLOAD | SLOAD | TLOAD => (1, true),
        ADD | MUL | SUB | DIV | SDIV | MOD | SMOD | EXP | SIGNEXTEND | LT | GT | SLT | SGT | EQ | AND
        | OR | XOR | BYTE | SHL | SHR | SAR | KECCAK256 => (2, true),
        ADDMOD | MULMOD | CREATE => (3, true),
        CREATE2 => (4, true),
        MSTORE | MSTORE8 | SSTORE | TSTORE => (2, false),
        CALLDATACOPY | CODECOPY | RETURNDATACOPY | MCOPY => (3, false),
        EXTCODECOPY => (4, false),
        CALL | CALLCODE => (7, true),
        DELEGATECALL | STATICCALL => (6, true),
        _ => return None,
    })
}

/// Returns the number of words that an operation of a chain takes, and whether it has a result: as [`plain_arity`],
/// without the gas of calls. Returns `(0, false)` for a code that is no operation.
pub(super) fn operation_arity(code: u8) -> (usize, bool) {
    const TABLE: [(u8, bool); 256] = {
        let mut table = [(0, false); 256];
        let mut code = 0;
        while code < table.len() {
            if let Some((args, has_result)) = plain_arity(code as u8) {
                table[code] = (args as u8 - is_call(code as u8) as u8, has_result);
            }
            code += 1;
        }
        table[HASH1 as usize] = (1, true);
        table[HASH2 as usize] = (2, true);
        table[TOUCH_SLOT as usize] = (1, false);
        table[TOUCH_ACCOUNT as usize] = (1, false);
        table
    };
    let (args, has_result) = TABLE[usize::from(code)];
    (usize::from(args), has_result)
}

/// The four instructions that run another contract's code.
pub(super) const fn is_call(code: u8) -> bool {
    matches!(code, CALL | CALLCODE | DELEGATECALL | STATICCALL)
}

/// Whether the result depends only on the arguments and on values that are fixed for the whole call. Then two equal
/// instructions are one.
pub(super) fn is_pure(code: u8) -> bool {
    matches!(
        code,
        ADD..=SIGNEXTEND
            | LT..=CLZ
            | HASH1
            | HASH2
            | ADDRESS
            | ORIGIN
            | CALLER
            | CALLVALUE
            | CALLDATALOAD
            | CALLDATASIZE
            | GASPRICE
            | BLOCKHASH..=CHAINID
            | BASEFEE..=BLOBBASEFEE
    )
}

/// Whether the instruction must stay in a predictor even if its result is unused: it names a key, calls, or writes data
/// that later instructions read.
pub(super) fn is_effect(code: u8) -> bool {
    matches!(
        code,
        BALANCE
            | EXTCODESIZE
            | EXTCODECOPY
            | EXTCODEHASH
            | SLOAD
            | SSTORE
            | TSTORE
            | MSTORE
            | MSTORE8
            | MCOPY
            | CALLDATACOPY
            | CODECOPY
            | RETURNDATACOPY
            | CREATE
            | CREATE2
            | CALL
            | CALLCODE
            | DELEGATECALL
            | STATICCALL
    )
}
