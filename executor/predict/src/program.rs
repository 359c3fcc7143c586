//! [`Program`]: a predictor encoded as bytes (steps 10 to 12 of 12 of the source), and [`build`], which makes one.
//!
//! ```text
//!  block     operation* exit
//!  operation opcode operand*                      results are numbered from 0 within the block
//!  exit      STOP | INVALID | RETURN operand operand | REVERT operand operand | SELFDESTRUCT operand
//!            | (GOTO block | JUMP pc operand block | JUMPI block block operand) taken left operand*
//!  operand   tag (2 bits) number (6 bits, or 63 and the number in 16 bits, little-endian)
//!            tags: result, stack entry from the top, the number itself, constant of the table (62 marks 16 bits; 63: unknown)
//! ```
//! A JUMP's block is the only known target, used when the operand is unknown. `taken` (16 bits) is the number of stack
//! entries that the block replaces, and `left` (16 bits) the number of operands that replace them. Each node makes its
//! programs from the code and runs them itself, so the layout may change. Saved programs carry a version.

use alloy_primitives::{
    Address, U256,
    map::{HashMap, HashSet},
};

use crate::{
    blocks::Blocks,
    chain::{Chain, ChainExit, chains},
    constants::{Constants, Operand},
    flow::{Flow, JumpEdge},
    opcode::*,
    slice::{Slice, slices},
};

/// Maximum bytes of code that are analysed: the limit of EIP-170, and some more for chains that allow longer code.
pub const CODE_BYTES_MAX: usize = 65_535;

/// Control continues in another block.
pub(crate) const GOTO: u8 = 0xb0;
/// The call fails.
pub(crate) const INVALID: u8 = 0xfe;
/// Stands for a block that only fails, or that was left out.
pub(crate) const NO_BLOCK: u16 = u16::MAX;

/// Predicts the reads of one contract's code. [`build`] makes it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Program {
    /// For each block its position in the code, ascending, and its offset in `bytes`.
    blocks: Box<[(u32, u32)]>,
    bytes: Box<[u8]>,
    /// Constants of up to 64 bits, numbered before the others.
    small: Box<[u64]>,
    large: Box<[U256]>,
    /// Positions of the jumps without a known target, ascending.
    unresolved: Box<[u32]>,
    delegate: Option<Address>,
}

/// A decoded operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ref {
    Result(usize),
    Entry(usize),
    Value(U256),
    Unknown,
}

/// Analyses code. Never fails: leaves out code that is too hard to follow. `observed` holds the jumps that execution
/// made.
pub fn build(code: &[u8], observed: &[JumpEdge]) -> Program {
    if let Some(delegate) = delegate(code) {
        return Program { delegate: Some(delegate), ..Program::default() };
    }
    if code.len() > CODE_BYTES_MAX {
        return Program::default();
    }
    let blocks = Blocks::new(code);
    let flow = Flow::new(&blocks, observed);
    let mut constants = Constants::default();
    let chains = chains(&blocks, &flow, &mut constants);
    Encoder::new(&chains, &slices(&chains), &constants).program()
}

/// The address that an account delegates to (EIP-7702).
fn delegate(code: &[u8]) -> Option<Address> {
    let address = code.strip_prefix(&[0xef, 0x01, 0x00])?;
    (address.len() == 20).then(|| Address::from_slice(address))
}

/// The tables of a program, without its delegate.
pub(crate) struct Table<'a> {
    pub(crate) blocks: &'a [(u32, u32)],
    pub(crate) bytes: &'a [u8],
    pub(crate) small: &'a [u64],
    pub(crate) large: &'a [U256],
    pub(crate) unresolved: &'a [u32],
}

impl Program {
    /// Rebuilds a program from its parts.
    pub(crate) fn of(table: Table<'_>, delegate: Option<Address>) -> Program {
        let Table { blocks, bytes, small, large, unresolved } = table;
        Program {
            blocks: blocks.into(),
            bytes: bytes.into(),
            small: small.into(),
            large: large.into(),
            unresolved: unresolved.into(),
            delegate,
        }
    }

    /// Returns the program's tables.
    pub(crate) fn table(&self) -> Table<'_> {
        let Program { blocks, bytes, small, large, unresolved, .. } = self;
        Table { blocks, bytes, small, large, unresolved }
    }

    /// The program's size in memory, in bytes.
    pub fn size_bytes(&self) -> usize {
        size_of::<Self>()
            + self.bytes.len()
            + size_of_val(&*self.blocks)
            + size_of_val(&*self.small)
            + size_of_val(&*self.large)
            + size_of_val(&*self.unresolved)
    }

    /// Positions of the jumps without a known target, ascending.
    pub(crate) fn unresolved(&self) -> &[u32] {
        &self.unresolved
    }

    /// The account whose code runs instead (EIP-7702).
    pub(crate) fn delegate(&self) -> Option<Address> {
        self.delegate
    }

    /// The block that begins at position `pc` of the code.
    pub(crate) fn block_at(&self, pc: U256) -> Option<usize> {
        let pc = u32::try_from(pc).ok()?;
        self.blocks.binary_search_by_key(&pc, |(start, _)| *start).ok()
    }

    /// Reads a block, starting with its first operation.
    pub(crate) fn reader(&self, block: usize) -> Option<Reader<'_>> {
        let (_, at) = *self.blocks.get(block)?;
        Some(Reader { program: self, rest: self.bytes.get(at as usize..)? })
    }
}

/// Reads the bytes of a program. Its methods return `None` at bytes that no encoder writes.
pub(crate) struct Reader<'a> {
    program: &'a Program,
    rest: &'a [u8],
}

impl Reader<'_> {
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    pub(crate) fn short(&mut self) -> Option<u16> {
        let (short, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u16::from_le_bytes(*short))
    }

    pub(crate) fn operand(&mut self) -> Option<Ref> {
        let byte = self.byte()?;
        let (tag, number) = (byte >> 6, usize::from(byte & 63));
        let number = match (tag, number) {
            (3, 63) => return Some(Ref::Unknown),
            (3, 62) | (0..=2, 63) => usize::from(self.short()?),
            _ => number,
        };
        Some(match tag {
            0 => Ref::Result(number),
            1 => Ref::Entry(number),
            2 => Ref::Value(U256::from(number)),
            _ => Ref::Value(self.constant(number)?),
        })
    }

    fn constant(&self, number: usize) -> Option<U256> {
        let small = &self.program.small;
        match small.get(number) {
            Some(value) => Some(U256::from(*value)),
            None => self.program.large.get(number - small.len()).copied(),
        }
    }
}

struct Encoder<'a> {
    chains: &'a HashMap<u32, Chain>,
    slices: &'a HashMap<u32, Slice>,
    constants: &'a Constants,
    /// The chains in the order of the code.
    order: Vec<u32>,
    small: Vec<u64>,
    large: Vec<U256>,
    numbers: HashMap<U256, usize>,
    bytes: Vec<u8>,
}

impl<'a> Encoder<'a> {
    fn new(
        chains: &'a HashMap<u32, Chain>,
        slices: &'a HashMap<u32, Slice>,
        constants: &'a Constants,
    ) -> Self {
        let mut order: Vec<u32> = chains.keys().copied().collect();
        order.sort_unstable();
        let mut encoder = Self {
            chains,
            slices,
            constants,
            order,
            small: Vec::new(),
            large: Vec::new(),
            numbers: HashMap::default(),
            bytes: Vec::new(),
        };
        encoder.number_constants();
        encoder
    }

    /// Numbers the small constants before the large ones, so all must be known before the first is written.
    fn number_constants(&mut self) {
        let (mut small, mut large) = (Vec::new(), Vec::new());
        let mut seen = HashSet::<U256>::default();
        for at in &self.order {
            for_each_operand(&self.chains[at], &self.slices[at], |operand| {
                if let Some(value) = self.constants.value(operand)
                    && value >= U256::from(u16::MAX)
                    && seen.insert(value)
                {
                    match u64::try_from(value) {
                        Ok(value) => small.push(value),
                        Err(_) => large.push(value),
                    }
                }
            });
        }
        let values = small.iter().map(|value| U256::from(*value)).chain(large.iter().copied());
        self.numbers = values.enumerate().map(|(number, value)| (value, number)).collect();
        (self.small, self.large) = (small, large);
    }

    fn program(mut self) -> Program {
        let order = std::mem::take(&mut self.order);
        let mut blocks = Vec::with_capacity(order.len());
        let numbers: HashMap<u32, u16> =
            order.iter().zip(0..NO_BLOCK).map(|(at, number)| (*at, number)).collect();
        for at in &order {
            blocks.push((self.chains[at].pc as u32, self.bytes.len() as u32));
            self.chain(&self.chains[at], &self.slices[at], &numbers);
        }
        let unresolved = order.iter().filter_map(|at| match &self.chains[at].exit {
            ChainExit::Jump { from, known, .. } => known.is_empty().then_some(*from as u32),
            _ => None,
        });
        let mut unresolved: Vec<u32> = unresolved.collect();
        unresolved.sort_unstable();
        Program {
            blocks: blocks.into(),
            unresolved: unresolved.into(),
            bytes: self.bytes.into(),
            small: self.small.into(),
            large: self.large.into(),
            delegate: None,
        }
    }

    fn chain(&mut self, chain: &Chain, slice: &Slice, numbers: &HashMap<u32, u16>) {
        let mut results = vec![None; chain.ops.len()];
        let mut next = 0;
        for (at, op) in chain.ops.iter().enumerate().filter(|(at, _)| slice.ops[*at]) {
            let code = if slice.results[at] { op.code } else { without_result(op.code) };
            self.bytes.push(code);
            op.args().iter().for_each(|arg| self.operand(*arg, &results));
            if operation_arity(code).1 {
                results[at] = Some(next);
                next += 1;
            }
        }
        let block = |at: &u32| numbers.get(at).copied().unwrap_or(NO_BLOCK).to_le_bytes();
        match &chain.exit {
            ChainExit::Stop => return self.bytes.push(STOP),
            ChainExit::Invalid => return self.bytes.push(INVALID),
            ChainExit::Return(a, b) => return self.exit(RETURN, &[*a, *b], &results),
            ChainExit::Revert(a, b) => return self.exit(REVERT, &[*a, *b], &results),
            ChainExit::SelfDestruct(heir) => return self.exit(SELFDESTRUCT, &[*heir], &results),
            ChainExit::Goto(to) => {
                self.bytes.push(GOTO);
                self.bytes.extend(block(to));
            }
            ChainExit::Jump { target, from, known } => {
                self.bytes.push(JUMP);
                self.short(*from);
                self.operand(*target, &results);
                let only = if let [only] = known[..] { block(&only) } else { NO_BLOCK.to_le_bytes() };
                self.bytes.extend(only);
            }
            ChainExit::Branch { condition, then, otherwise } => {
                self.bytes.push(JUMPI);
                self.bytes.extend(block(then));
                self.bytes.extend(block(otherwise));
                self.operand(*condition, &results);
            }
        }
        self.short(chain.taken);
        self.short(chain.stack.len());
        for (operand, is_needed) in chain.stack.iter().zip(&slice.stack) {
            self.operand(if *is_needed { *operand } else { Operand::Unknown }, &results);
        }
    }

    fn exit(&mut self, code: u8, operands: &[Operand], results: &[Option<usize>]) {
        self.bytes.push(code);
        operands.iter().for_each(|operand| self.operand(*operand, results));
    }

    fn operand(&mut self, operand: Operand, results: &[Option<usize>]) {
        let (tag, number) = match operand {
            Operand::Unknown => return self.bytes.push(u8::MAX),
            Operand::Entry(depth) => (1, usize::from(depth)),
            Operand::Op(number) => match results[number as usize] {
                Some(result) => (0, result),
                None => return self.bytes.push(u8::MAX),
            },
            Operand::Const(_) => match self.constants.value(operand) {
                Some(value) if value < U256::from(u16::MAX) => (2, value.to::<usize>()),
                value => match value.and_then(|value| self.numbers.get(&value)) {
                    Some(number) => (3, *number),
                    None => return self.bytes.push(u8::MAX),
                },
            },
        };
        let (inline_max, escape) = if tag == 3 { (61, 62) } else { (62, 63) };
        if number <= inline_max {
            self.bytes.push(tag << 6 | number as u8);
        } else if number < usize::from(u16::MAX) {
            self.bytes.push(tag << 6 | escape);
            self.short(number);
        } else {
            self.bytes.push(u8::MAX);
        }
    }

    /// Writes a position, a block's index or a count of stack words. All are below [`CODE_BYTES_MAX`].
    fn short(&mut self, number: usize) {
        self.bytes.extend((number as u16).to_le_bytes());
    }
}

/// The variant of an instruction for an unused result.
fn without_result(code: u8) -> u8 {
    match code {
        SLOAD => TOUCH_SLOT,
        BALANCE | EXTCODESIZE | EXTCODEHASH => TOUCH_ACCOUNT,
        code => code,
    }
}

fn for_each_operand(chain: &Chain, slice: &Slice, mut each: impl FnMut(Operand)) {
    let ops = chain.ops.iter().zip(&slice.ops).filter(|(_, is_needed)| **is_needed);
    ops.flat_map(|(op, _)| op.args()).for_each(|operand| each(*operand));
    let stack = chain.stack.iter().zip(&slice.stack).filter(|(_, is_needed)| **is_needed);
    stack.for_each(|(operand, _)| each(*operand));
    match chain.exit {
        ChainExit::Return(a, b) | ChainExit::Revert(a, b) => {
            each(a);
            each(b);
        }
        ChainExit::SelfDestruct(operand)
        | ChainExit::Jump { target: operand, .. }
        | ChainExit::Branch { condition: operand, .. } => each(operand),
        ChainExit::Stop | ChainExit::Invalid | ChainExit::Goto(_) => {}
    }
}
