//! Short EVM programs, written as instructions.

use serde_json::{Value, json};

/// The caller of each program, and the program's address.
pub(super) const SENDER: &str = "0x00000000000000000000000000000000f0000001";
pub(super) const PROGRAM: &str = "0x00000000000000000000000000000000c0de0001";
/// Contracts that programs call.
const CALLEE: &str = "0x00000000000000000000000000000000c0de0002";
const REVERTING: &str = "0x00000000000000000000000000000000c0de0003";

/// Writes a slot, emits a log, and returns the first 32 bytes of its input.
const CALLEE_CODE: &str =
    "CALLDATASIZE PUSH0 PUSH0 CALLDATACOPY 0x09 PUSH0 SSTORE 0xaa 0x20 PUSH0 LOG1 0x20 PUSH0 RETURN";
/// Reverts with Solidity's `Error("poor")`.
const REVERTING_CODE: &str = "0x08c379a000000000000000000000000000000000000000000000000000000000 0x00 MSTORE \
    0x0000002000000000000000000000000000000000000000000000000000000000 0x20 MSTORE \
    0x00000004706f6f72000000000000000000000000000000000000000000000000 0x40 MSTORE \
    0x0000000000000000000000000000000000000000000000000000000000000000 0x60 MSTORE \
    0x64 PUSH0 REVERT";

/// The instructions of the programs. A number stands for the shortest PUSH with its digits, and `@` for a byte.
const INSTRUCTIONS: [(&str, u8); 43] = [
    ("STOP", 0x00),
    ("ADD", 0x01),
    ("MUL", 0x02),
    ("SUB", 0x03),
    ("SDIV", 0x05),
    ("MOD", 0x06),
    ("EXP", 0x0a),
    ("SHL", 0x1b),
    ("KECCAK256", 0x20),
    ("BALANCE", 0x31),
    ("CALLDATASIZE", 0x36),
    ("CALLDATACOPY", 0x37),
    ("EXTCODESIZE", 0x3b),
    ("RETURNDATASIZE", 0x3d),
    ("RETURNDATACOPY", 0x3e),
    ("EXTCODEHASH", 0x3f),
    ("POP", 0x50),
    ("MLOAD", 0x51),
    ("MSTORE", 0x52),
    ("MSTORE8", 0x53),
    ("SLOAD", 0x54),
    ("SSTORE", 0x55),
    ("JUMP", 0x56),
    ("GAS", 0x5a),
    ("JUMPDEST", 0x5b),
    ("TLOAD", 0x5c),
    ("TSTORE", 0x5d),
    ("MCOPY", 0x5e),
    ("PUSH0", 0x5f),
    ("SWAP1", 0x90),
    ("LOG0", 0xa0),
    ("LOG1", 0xa1),
    ("LOG2", 0xa2),
    ("CREATE", 0xf0),
    ("CALL", 0xf1),
    ("CALLCODE", 0xf2),
    ("RETURN", 0xf3),
    ("DELEGATECALL", 0xf4),
    ("CREATE2", 0xf5),
    ("STATICCALL", 0xfa),
    ("REVERT", 0xfd),
    ("INVALID", 0xfe),
    ("SELFDESTRUCT", 0xff),
];

/// The program with more pushes than the stack has words.
const TOO_MUCH_STACK: &str = "stack overflow";

/// The programs by name. The data that a program returns or reverts with comes from its stack or its memory.
const PROGRAMS: [(&str, &str); 37] = [
    (
        "arithmetic",
        "0x02 0x03 ADD 0x05 MUL 0x07 SWAP1 MOD 0x02 EXP 0x03 SHL 0x04 PUSH0 SUB SDIV PUSH0 MSTORE 0x20 PUSH0 RETURN",
    ),
    (
        "memory",
        "0x2a 0x0400 MSTORE 0x20 PUSH0 0x20 MCOPY 0x40 0x0400 KECCAK256 PUSH0 MSTORE8 0x20 PUSH0 RETURN",
    ),
    (
        "storage",
        "0x01 SLOAD 0x05 PUSH0 SSTORE PUSH0 0x01 SSTORE PUSH0 PUSH0 SSTORE 0x02 SLOAD PUSH0 MSTORE 0x20 PUSH0 RETURN",
    ),
    ("refund", "PUSH0 0x01 SSTORE STOP"),
    ("refund, then call", "PUSH0 0x01 SSTORE PUSH0 PUSH0 PUSH0 PUSH0 PUSH0 0xc0de0002 GAS CALL STOP"),
    (
        "call",
        "0x11 PUSH0 MSTORE 0x20 0x40 0x20 PUSH0 0x07 0xc0de0002 0xffff CALL RETURNDATASIZE 0x40 MLOAD ADD ADD PUSH0 MSTORE 0x20 PUSH0 RETURN",
    ),
    (
        "delegatecall",
        "0x11 PUSH0 MSTORE 0x20 0x40 0x20 PUSH0 0xc0de0002 GAS DELEGATECALL 0x40 MLOAD ADD PUSH0 MSTORE 0x20 PUSH0 RETURN",
    ),
    (
        "callcode",
        "0x11 PUSH0 MSTORE 0x20 0x40 0x20 PUSH0 0x01 0xc0de0002 GAS CALLCODE PUSH0 MSTORE 0x20 PUSH0 RETURN",
    ),
    (
        "staticcall fails",
        "PUSH0 PUSH0 PUSH0 PUSH0 0xc0de0002 0xffff STATICCALL PUSH0 MSTORE 0x20 PUSH0 RETURN",
    ),
    (
        "call reverts",
        "PUSH0 PUSH0 PUSH0 PUSH0 PUSH0 0xc0de0003 GAS CALL RETURNDATASIZE PUSH0 PUSH0 RETURNDATACOPY PUSH0 MSTORE 0x20 PUSH0 RETURN",
    ),
    ("call nobody", "PUSH0 PUSH0 PUSH0 PUSH0 0x01 0xdead01 GAS CALL PUSH0 MSTORE 0x20 PUSH0 RETURN"),
    (
        "call too rich",
        "PUSH0 PUSH0 PUSH0 PUSH0 0xffffffffffffffffffffffff 0xc0de0002 GAS CALL PUSH0 MSTORE 0x20 PUSH0 RETURN",
    ),
    (
        "create",
        "0x602a5f5560015f5360015ff3 PUSH0 MSTORE 0x0c 0x14 PUSH0 CREATE PUSH0 MSTORE 0x20 PUSH0 RETURN",
    ),
    (
        "create2",
        "0x602a5f5560015f5360015ff3 PUSH0 MSTORE 0x07 0x0c 0x14 PUSH0 CREATE2 EXTCODESIZE PUSH0 MSTORE 0x20 PUSH0 RETURN",
    ),
    ("create reverts", "0x60605ffd PUSH0 MSTORE 0x04 0x1c PUSH0 CREATE PUSH0 MSTORE 0x20 PUSH0 RETURN"),
    ("create ef", "0x60ef5f5360015ff3 PUSH0 MSTORE 0x08 0x18 PUSH0 CREATE PUSH0 MSTORE 0x20 PUSH0 RETURN"),
    ("revert", "0xabcdef PUSH0 MSTORE 0x20 PUSH0 REVERT"),
    ("revert reason", REVERTING_CODE),
    ("logs then revert", "0x01 PUSH0 PUSH0 LOG1 PUSH0 PUSH0 REVERT"),
    ("out of gas", "0x01 PUSH0 SSTORE JUMPDEST 0x04 JUMP"),
    ("memory out of gas", "0x01 0x0fffff MSTORE"),
    ("calls that log, then revert", "PUSH0 PUSH0 PUSH0 PUSH0 PUSH0 0xc0de0002 GAS CALL PUSH0 PUSH0 REVERT"),
    ("inner out of gas", "PUSH0 PUSH0 PUSH0 PUSH0 PUSH0 0xc0de0002 0x64 CALL PUSH0 MSTORE 0x20 PUSH0 RETURN"),
    ("logs", "0x2a PUSH0 MSTORE 0x20 PUSH0 LOG0 0x01 0x1f 0x01 LOG1 0x02 0x01 0x02 0x1e LOG2 STOP"),
    (
        "precompiles",
        "0x2a PUSH0 MSTORE 0x20 0x20 0x20 PUSH0 0x02 GAS STATICCALL POP 0x20 0x40 0x20 PUSH0 PUSH0 0x04 GAS CALL POP 0x20 MLOAD PUSH0 MSTORE 0x20 PUSH0 RETURN",
    ),
    (
        "precompile fails",
        "0x40 PUSH0 0x80 PUSH0 0x06 GAS STATICCALL POP 0x01 PUSH0 MSTORE 0x20 0x80 0x80 PUSH0 0x06 0xffff STATICCALL PUSH0 MSTORE 0x20 PUSH0 RETURN",
    ),
    ("selfdestruct", "0xc0de0002 SELFDESTRUCT"),
    ("selfdestruct self", "0xc0de0001 SELFDESTRUCT"),
    ("transient", "0x2a 0x07 TSTORE 0x07 TLOAD PUSH0 TLOAD ADD PUSH0 MSTORE 0x20 PUSH0 RETURN"),
    ("push0", "PUSH0 PUSH0 ADD PUSH0 MSTORE 0x20 PUSH0 RETURN"),
    ("stack underflow", "0x01 ADD"),
    ("invalid jump", "0x03 JUMP"),
    ("invalid", "INVALID"),
    ("unknown", "0x01 POP @0c"),
    ("empty", ""),
    (
        "accounts",
        "0xc0de0002 BALANCE 0xc0de0002 EXTCODEHASH ADD 0xdead02 EXTCODESIZE ADD PUSH0 MSTORE 0x20 PUSH0 RETURN",
    ),
    ("returndata bounds", "0x01 PUSH0 PUSH0 RETURNDATACOPY"),
];

/// Returns all programs: their names, and their code in hex.
pub(super) fn programs() -> Vec<(&'static str, String)> {
    let deep = (TOO_MUCH_STACK, assembled(&"PUSH0 ".repeat(1_025)));
    PROGRAMS.iter().map(|(name, text)| (*name, assembled(text))).chain([deep]).collect()
}

/// Returns the accounts for a call of a program, as overrides of any chain's state.
pub(super) fn accounts(code: &str) -> Value {
    let word = |number: u8| format!("0x{number:064x}");
    json!({
        (SENDER): { "balance": "0xde0b6b3a7640000" },
        (PROGRAM): { "code": code, "balance": "0x64", "state": { (word(1)): word(5), (word(2)): word(6) } },
        (CALLEE): { "code": assembled(CALLEE_CODE), "balance": "0x1", "nonce": "0x1" },
        (REVERTING): { "code": assembled(REVERTING_CODE) },
    })
}

/// Returns the same accounts, with code at two precompiles: 0x02 answers 42, and 0x04 forwards to the original, which
/// has moved.
pub(super) fn with_other_precompiles(mut accounts: Value) -> Value {
    let address = |byte: u8| format!("0x{byte:040x}");
    let forwards = "CALLDATASIZE PUSH0 PUSH0 CALLDATACOPY PUSH0 PUSH0 CALLDATASIZE PUSH0 0xc0de0004 GAS STATICCALL POP \
        RETURNDATASIZE PUSH0 PUSH0 RETURNDATACOPY RETURNDATASIZE PUSH0 RETURN";
    accounts[address(2)] = json!({ "code": assembled("0x2a PUSH0 MSTORE 0x20 PUSH0 RETURN") });
    accounts[address(4)] = json!({
        "code": assembled(forwards), "movePrecompileToAddress": "0x00000000000000000000000000000000c0de0004"
    });
    accounts
}

/// Returns the code of a program in hex.
fn assembled(text: &str) -> String {
    let mut code = "0x".to_owned();
    for word in text.split_whitespace() {
        if let Some(digits) = word.strip_prefix("0x") {
            code += &format!("{:02x}{digits}", 0x5f + digits.len() / 2);
        } else if let Some(byte) = word.strip_prefix('@') {
            code += byte;
        } else {
            let known = INSTRUCTIONS.iter().find(|(name, _)| *name == word);
            let (_, byte) = known.unwrap_or_else(|| panic!("{word} is no instruction"));
            code += &format!("{byte:02x}");
        }
    }
    code
}
