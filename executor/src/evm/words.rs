//! geth's error texts for failed executions: libraries and contract tests match on them.

use revm::context::result::HaltReason;

const OUT_OF_GAS: &str = "out of gas";
/// A full stack of 1,024 words.
const STACK_OVERFLOW: &str = "stack limit reached 1024 (1023)";
const WRITE_PROTECTION: &str = "write protection";

/// Returns the text for a call that neither returned nor reverted. geth also names the unknown opcode, and the length
/// of a stack that is too short; revm does not report them.
pub(super) fn halt(reason: &HaltReason) -> String {
    let known = match reason {
        HaltReason::OutOfGas(_) => OUT_OF_GAS,
        HaltReason::OpcodeNotFound | HaltReason::NotActivated => "invalid opcode",
        HaltReason::InvalidFEOpcode => "invalid opcode: INVALID",
        HaltReason::StackOverflow => STACK_OVERFLOW,
        HaltReason::OutOfOffset => "return data out of bounds",
        HaltReason::CreateCollision => "contract address collision",
        HaltReason::NonceOverflow => "nonce uint64 overflow",
        HaltReason::CreateContractSizeLimit => "max code size exceeded",
        HaltReason::CreateContractStartingWithEF => "invalid code: must not begin with 0xef",
        HaltReason::CreateInitCodeSizeLimit => "max initcode size exceeded",
        HaltReason::StateChangeDuringStaticCall | HaltReason::CallNotAllowedInsideStatic => WRITE_PROTECTION,
        HaltReason::OutOfFunds => "insufficient balance for transfer",
        HaltReason::CallTooDeep => "max call depth exceeded",
        other => return other.to_string(),
    };
    known.to_owned()
}

/// Returns the error of an instruction that did not begin, from the inspector's name for the error. geth logs an
/// instruction before executing it, so an error during its execution is not in the log.
pub(super) fn step(found: &str) -> Option<&'static str> {
    Some(match found.strip_prefix("Some(")?.strip_suffix(')')? {
        "OutOfGas" | "MemoryOOG" | "MemoryLimitOOG" | "InvalidOperandOOG" | "ReentrancySentryOOG" => {
            OUT_OF_GAS
        }
        "StackUnderflow" => "stack underflow",
        "StackOverflow" => STACK_OVERFLOW,
        "StateChangeDuringStaticCall" | "CallNotAllowedInsideStatic" => WRITE_PROTECTION,
        _ => return None,
    })
}

/// Returns geth's text for the error of a call in a call tree. The inspector uses texts of its own for some errors.
pub(super) fn call(found: &str) -> &str {
    match found {
        "Out of stack" => STACK_OVERFLOW,
        found if found.starts_with(OUT_OF_GAS) => OUT_OF_GAS,
        found => found,
    }
}
