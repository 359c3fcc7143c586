//! Computes the EVM's arithmetic, both for constant folding when a predictor is built (step 6 of 12 of the source) and
//! when it runs. One function serves both, so they agree.

use alloy_primitives::{U256, keccak256};

use crate::opcode::*;

/// Number of arguments of the widest folded instruction.
pub(crate) const FOLDED_ARGS_MAX: usize = 3;

/// Returns the result of an instruction that depends only on its arguments; `args` begins with the stack's top. Returns
/// `None` for any other instruction, or if an argument is missing.
pub(crate) fn fold(code: u8, args: &[U256]) -> Option<U256> {
    match *args {
        [a] => fold_one(code, a),
        [a, b] => fold_two(code, a, b),
        [a, b, n] => match code {
            ADDMOD => Some(a.add_mod(b, n)),
            MULMOD => Some(a.mul_mod(b, n)),
            _ => None,
        },
        _ => None,
    }
}

fn fold_one(code: u8, a: U256) -> Option<U256> {
    Some(match code {
        ISZERO => truth(a.is_zero()),
        NOT => !a,
        CLZ => U256::from(a.leading_zeros()),
        HASH1 => U256::from_be_bytes(keccak256(a.to_be_bytes::<32>()).0),
        _ => return None,
    })
}

fn fold_two(code: u8, a: U256, b: U256) -> Option<U256> {
    Some(match code {
        ADD => a.wrapping_add(b),
        MUL => a.wrapping_mul(b),
        SUB => a.wrapping_sub(b),
        DIV => a.checked_div(b).unwrap_or_default(),
        MOD => a.checked_rem(b).unwrap_or_default(),
        SDIV => signed_div(a, b),
        SMOD => signed_rem(a, b),
        EXP => a.wrapping_pow(b),
        SIGNEXTEND => sign_extend(a, b),
        LT => truth(a < b),
        GT => truth(a > b),
        SLT => truth(signed_less(a, b)),
        SGT => truth(signed_less(b, a)),
        EQ => truth(a == b),
        AND => a & b,
        OR => a | b,
        XOR => a ^ b,
        BYTE => {
            usize::try_from(a).ok().filter(|at| *at < 32).map_or(U256::ZERO, |at| U256::from(b.byte(31 - at)))
        }
        SHL => shift(a).map_or(U256::ZERO, |bits| b << bits),
        SHR => shift(a).map_or(U256::ZERO, |bits| b >> bits),
        SAR => match (shift(a), is_negative(b)) {
            (Some(bits), _) => b.arithmetic_shr(bits),
            (None, true) => U256::MAX,
            (None, false) => U256::ZERO,
        },
        HASH2 => {
            let mut words = [0; 64];
            words[..32].copy_from_slice(&a.to_be_bytes::<32>());
            words[32..].copy_from_slice(&b.to_be_bytes::<32>());
            U256::from_be_bytes(keccak256(words).0)
        }
        _ => return None,
    })
}

fn truth(is_true: bool) -> U256 {
    U256::from(is_true)
}

fn shift(bits: U256) -> Option<usize> {
    usize::try_from(bits).ok().filter(|bits| *bits < 256)
}

fn is_negative(word: U256) -> bool {
    word.bit(255)
}

fn signed_less(a: U256, b: U256) -> bool {
    match (is_negative(a), is_negative(b)) {
        (true, false) => true,
        (false, true) => false,
        // Words of equal sign in two's complement compare as unsigned numbers do.
        _ => a < b,
    }
}

fn magnitude(word: U256) -> U256 {
    if is_negative(word) { word.wrapping_neg() } else { word }
}

fn signed_div(a: U256, b: U256) -> U256 {
    let quotient = magnitude(a).checked_div(magnitude(b)).unwrap_or_default();
    if is_negative(a) != is_negative(b) { quotient.wrapping_neg() } else { quotient }
}

fn signed_rem(a: U256, b: U256) -> U256 {
    let rest = magnitude(a).checked_rem(magnitude(b)).unwrap_or_default();
    if is_negative(a) { rest.wrapping_neg() } else { rest }
}

fn sign_extend(bytes: U256, word: U256) -> U256 {
    let Some(bytes) = usize::try_from(bytes).ok().filter(|bytes| *bytes < 31) else { return word };
    let sign = bytes * 8 + 7;
    let mask = (U256::from(1) << (sign + 1)) - U256::from(1);
    if word.bit(sign) { word | !mask } else { word & mask }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(value: i64) -> U256 {
        let magnitude = U256::from(value.unsigned_abs());
        if value < 0 { magnitude.wrapping_neg() } else { magnitude }
    }

    /// Goal: the surprising cases of EVM arithmetic are right (Yellow Paper, appendix H.2).
    #[test]
    fn arithmetic_is_the_evms() {
        let two = |code, a, b| fold(code, &[word(a), word(b)]).unwrap();
        assert_eq!(two(DIV, 7, 0), word(0));
        assert_eq!(two(MOD, 7, 0), word(0));
        assert_eq!(two(SDIV, -7, 2), word(-3));
        assert_eq!(two(SMOD, -7, 2), word(-1));
        assert_eq!(two(SMOD, 7, -2), word(1));
        let least = U256::from(1) << 255;
        assert_eq!(fold(SDIV, &[least, word(-1)]), Some(least), "the one division that overflows");
        assert_eq!(two(SUB, 0, 1), U256::MAX);
        assert_eq!(two(EXP, 0, 0), word(1));
        assert_eq!(two(SLT, -1, 0), word(1));
        assert_eq!(two(LT, -1, 0), word(0));
        assert_eq!(two(SGT, -1, -2), word(1));
        assert_eq!(two(BYTE, 31, 0x1234), word(0x34));
        assert_eq!(two(BYTE, 32, -1), word(0));
        assert_eq!(two(SHL, 256, 1), word(0));
        assert_eq!(two(SHR, 4, 0x123), word(0x12));
        assert_eq!(two(SAR, 1, -4), word(-2));
        assert_eq!(two(SAR, 300, -4), word(-1));
        assert_eq!(two(SIGNEXTEND, 0, 0x80), word(-0x80));
        assert_eq!(two(SIGNEXTEND, 0, 0x17f), word(0x7f));
        assert_eq!(two(SIGNEXTEND, 31, -5), word(-5));
        assert_eq!(fold(ADDMOD, &[U256::MAX, word(2), word(10)]), Some(word(7)));
        assert_eq!(fold(MULMOD, &[word(3), word(4), word(0)]), Some(word(0)));
        assert_eq!(fold(CLZ, &[word(1)]), Some(word(255)));
    }

    /// Goal: the slot of a mapping's element has the known hash, and other instructions are not folded.
    #[test]
    fn hashes_of_words_are_keccak() {
        let zero = "0xad3228b676f7d3cd4284a5443f17f1962b36e491b30a40b2405849e597ba5fb5";
        assert_eq!(fold(HASH2, &[U256::ZERO, U256::ZERO]), Some(zero.parse().unwrap()));
        let one_word = "0x290decd9548b62a8d60345a988386fc84ba6bc95484008f6362f93160ef3e563";
        assert_eq!(fold(HASH1, &[U256::ZERO]), Some(one_word.parse().unwrap()));
        assert_eq!(fold(CALLER, &[]), None);
        assert_eq!(fold(SLOAD, &[U256::ZERO]), None);
        assert_eq!(fold(ADD, &[U256::ZERO]), None);
    }
}
