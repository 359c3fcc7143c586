//! [`Operand`]: a word that an operation takes. [`Constants`]: numbers the constant words in a contract's code.

use alloy_primitives::{U256, map::HashMap};

/// A word that an operation takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Operand {
    /// A constant, by its number in [`Constants`].
    Const(u32),
    /// A word that was on the stack before the chain, 0 at the top.
    Entry(u16),
    /// The result of an earlier operation of the chain.
    Op(u32),
    /// A word that no operation needs.
    Unknown,
}

/// The constants of a contract, each once, or twice if it also appears in a PUSH1.
#[derive(Default)]
pub(crate) struct Constants {
    values: Vec<(U256, bool)>,
    numbers: HashMap<(U256, bool), u32>,
}

impl Constants {
    /// The operand for a value.
    pub(crate) fn operand(&mut self, value: U256) -> Operand {
        self.pushed(value, false)
    }

    /// The operand for a pushed value; `is_narrow` if a PUSH1 pushed it.
    pub(crate) fn pushed(&mut self, value: U256, is_narrow: bool) -> Operand {
        let next = self.values.len() as u32;
        let number = *self.numbers.entry((value, is_narrow)).or_insert(next);
        if number == next {
            self.values.push((value, is_narrow));
        }
        Operand::Const(number)
    }

    /// The value of an operand that is constant.
    pub(crate) fn value(&self, operand: Operand) -> Option<U256> {
        match operand {
            Operand::Const(number) => self.values.get(number as usize).map(|(value, _)| *value),
            _ => None,
        }
    }

    /// The value of a constant operand, if it fits in 64 bits, as every memory address does.
    pub(crate) fn offset(&self, operand: Operand) -> Option<u64> {
        self.value(operand).and_then(|value| u64::try_from(value).ok())
    }

    /// Whether an operand is a constant of a PUSH1.
    pub(crate) fn is_narrow(&self, operand: Operand) -> bool {
        matches!(operand, Operand::Const(number) if self.values[number as usize].1)
    }
}
