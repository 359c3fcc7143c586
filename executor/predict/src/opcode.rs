//! The EVM's instructions that the analysis names, by opcode, and the number of words that each takes and leaves.
//!
//! Source: the Yellow Paper, appendix H, and the EIPs up to Osaka. Opcodes that a later fork introduced count at any
//! block: a contract that holds one could not have run before that fork.

pub(crate) const STOP: u8 = 0x00;
pub(crate) const ADD: u8 = 0x01;
pub(crate) const MUL: u8 = 0x02;
pub(crate) const SUB: u8 = 0x03;
pub(crate) const DIV: u8 = 0x04;
pub(crate) const SDIV: u8 = 0x05;
pub(crate) const MOD: u8 = 0x06;
pub(crate) const SMOD: u8 = 0x07;
pub(crate) const ADDMOD: u8 = 0x08;
pub(crate) const MULMOD: u8 = 0x09;
pub(crate) const EXP: u8 = 0x0a;
pub(crate) const SIGNEXTEND: u8 = 0x0b;
pub(crate) const LT: u8 = 0x10;
pub(crate) const GT: u8 = 0x11;
pub(crate) const SLT: u8 = 0x12;
pub(crate) const SGT: u8 = 0x13;
pub(crate) const EQ: u8 = 0x14;
pub(crate) const ISZERO: u8 = 0x15;
pub(crate) const AND: u8 = 0x16;
pub(crate) const OR: u8 = 0x17;
pub(crate) const XOR: u8 = 0x18;
pub(crate) const NOT: u8 = 0x19;
pub(crate) const BYTE: u8 = 0x1a;
pub(crate) const SHL: u8 = 0x1b;
pub(crate) const SHR: u8 = 0x1c;
pub(crate) const SAR: u8 = 0x1d;
pub(crate) const CLZ: u8 = 0x1e;
pub(crate) const KECCAK256: u8 = 0x20;
pub(crate) const ADDRESS: u8 = 0x30;
pub(crate) const BALANCE: u8 = 0x31;
pub(crate) const ORIGIN: u8 = 0x32;
pub(crate) const CALLER: u8 = 0x33;
pub(crate) const CALLVALUE: u8 = 0x34;
pub(crate) const CALLDATALOAD: u8 = 0x35;
pub(crate) const CALLDATASIZE: u8 = 0x36;
pub(crate) const CALLDATACOPY: u8 = 0x37;
pub(crate) const CODESIZE: u8 = 0x38;
pub(crate) const CODECOPY: u8 = 0x39;
pub(crate) const GASPRICE: u8 = 0x3a;
pub(crate) const EXTCODESIZE: u8 = 0x3b;
pub(crate) const EXTCODECOPY: u8 = 0x3c;
pub(crate) const RETURNDATASIZE: u8 = 0x3d;
pub(crate) const RETURNDATACOPY: u8 = 0x3e;
pub(crate) const EXTCODEHASH: u8 = 0x3f;
pub(crate) const BLOCKHASH: u8 = 0x40;
pub(crate) const COINBASE: u8 = 0x41;
pub(crate) const TIMESTAMP: u8 = 0x42;
pub(crate) const NUMBER: u8 = 0x43;
pub(crate) const PREVRANDAO: u8 = 0x44;
pub(crate) const GASLIMIT: u8 = 0x45;
pub(crate) const CHAINID: u8 = 0x46;
pub(crate) const SELFBALANCE: u8 = 0x47;
pub(crate) const BASEFEE: u8 = 0x48;
pub(crate) const BLOBHASH: u8 = 0x49;
pub(crate) const BLOBBASEFEE: u8 = 0x4a;
pub(crate) const POP: u8 = 0x50;
pub(crate) const MLOAD: u8 = 0x51;
pub(crate) const MSTORE: u8 = 0x52;
pub(crate) const MSTORE8: u8 = 0x53;
pub(crate) const SLOAD: u8 = 0x54;
pub(crate) const SSTORE: u8 = 0x55;
pub(crate) const JUMP: u8 = 0x56;
pub(crate) const JUMPI: u8 = 0x57;
pub(crate) const PC: u8 = 0x58;
pub(crate) const MSIZE: u8 = 0x59;
pub(crate) const GAS: u8 = 0x5a;
pub(crate) const JUMPDEST: u8 = 0x5b;
pub(crate) const TLOAD: u8 = 0x5c;
pub(crate) const TSTORE: u8 = 0x5d;
pub(crate) const MCOPY: u8 = 0x5e;
pub(crate) const PUSH0: u8 = 0x5f;
pub(crate) const PUSH32: u8 = 0x7f;
pub(crate) const DUP1: u8 = 0x80;
pub(crate) const DUP16: u8 = 0x8f;
pub(crate) const SWAP1: u8 = 0x90;
pub(crate) const SWAP16: u8 = 0x9f;
pub(crate) const LOG0: u8 = 0xa0;
pub(crate) const LOG4: u8 = 0xa4;
pub(crate) const CREATE: u8 = 0xf0;
pub(crate) const CALL: u8 = 0xf1;
pub(crate) const CALLCODE: u8 = 0xf2;
pub(crate) const RETURN: u8 = 0xf3;
pub(crate) const DELEGATECALL: u8 = 0xf4;
pub(crate) const CREATE2: u8 = 0xf5;
pub(crate) const STATICCALL: u8 = 0xfa;
pub(crate) const REVERT: u8 = 0xfd;
pub(crate) const SELFDESTRUCT: u8 = 0xff;

/// A pseudo-instruction: the Keccak-256 of one word that is known without memory. This instruction replaces hashing
/// `memory[p..p+32]`.
pub(crate) const HASH1: u8 = 0x21;
/// A pseudo-instruction: the Keccak-256 of two words, which is the slot of a mapping's element.
pub(crate) const HASH2: u8 = 0x22;

/// A pseudo-instruction: a SLOAD whose value is unused, so the prediction does not wait for it.
pub(crate) const TOUCH_SLOT: u8 = 0x23;
/// A pseudo-instruction: a BALANCE, EXTCODESIZE or EXTCODEHASH whose result is unused.
pub(crate) const TOUCH_ACCOUNT: u8 = 0x24;

/// Returns the number of words that a plain instruction takes from the stack, and whether it leaves one. `None` for
/// unknown instructions and those that the stack conversion handles itself: PUSH, DUP, SWAP, jumps, ends, LOG.
pub(crate) const fn plain_arity(code: u8) -> Option<(usize, bool)> {
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

/// Returns the number of words that an operation of a chain takes, and whether it has a result. As [`plain_arity`], but
/// without the gas of calls. Returns `(0, false)` for a code that is no operation.
pub(crate) fn operation_arity(code: u8) -> (usize, bool) {
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
pub(crate) const fn is_call(code: u8) -> bool {
    matches!(code, CALL | CALLCODE | DELEGATECALL | STATICCALL)
}

/// Whether the result depends only on the arguments and on values that are fixed for the whole call. If so, equal
/// instructions are computed once.
pub(crate) fn is_pure(code: u8) -> bool {
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

/// Whether the instruction must stay in a predictor even if its result is unused: it names a key, makes a call, or
/// writes data for later instructions.
pub(crate) fn is_effect(code: u8) -> bool {
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
