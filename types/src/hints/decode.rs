//! [`decode`]: from untrusted bytes to keys.

use alloy_primitives::{Address, B256};

use super::{
    AccountHints, HINTS_VERSION, Hints, SECTION_CONFLICTS, SECTION_KEYS, SECTION_VALUES,
    bytes::{Ascending, Reader, invalid},
    context::HintContext,
    derive::{FIELDS_MAX, Mapping, OUTER_MAX, entry, field, from_number},
    edges,
    encode::{BY_ADDRESS, BY_NUMBER, BY_WORD, NUMBERS, WITH_FIELDS, WORDS},
    values::{self, RowBefore},
};
use crate::{codec::CodecError, conflicts::Conflicts};

/// The decoded sections of a batch's hints.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DecodedHints {
    /// The keys to read.
    pub hints: Hints,
    /// The transactions to keep apart, if the maker sent them.
    pub conflicts: Option<Conflicts>,
    /// The rows before the batch that the maker sent, in the order of the keys.
    pub values: Vec<RowBefore>,
}

/// Decodes hints of the batch that `context` describes. An account lists a slot twice only if the bytes name it in two ways.
///
/// # Errors
/// If the version is unknown, the bytes are malformed, or they name more than `keys_max` accounts and slots. The keys
/// and one row for each bound the memory; three times their number bounds the hashing.
pub fn decode(bytes: &[u8], context: &HintContext, keys_max: usize) -> Result<DecodedHints, CodecError> {
    let mut reader = Reader(bytes);
    if reader.byte()? != HINTS_VERSION {
        return Err(invalid("their version is unknown"));
    }
    let mut keys = None;
    let (mut conflicts, mut rows) = (None, None);
    while !reader.is_empty() {
        let section = reader.byte()?;
        let len = reader.count()?;
        let content = Reader(reader.bytes(len)?);
        match section {
            SECTION_KEYS => keys = Some(content),
            SECTION_CONFLICTS => conflicts = Some(content),
            SECTION_VALUES => rows = Some(content),
            _ => {}
        }
    }
    let hints = Decoder::new(context, keys_max)?.keys(keys.unwrap_or(Reader(&[0, 0])))?;
    let conflicts = conflicts.map(|section| edges::decode(section, context.transactions())).transpose()?;
    let values = rows.map_or(Ok(Vec::new()), |section| values::decode(section, &hints))?;
    Ok(DecodedHints { hints, conflicts, values })
}

/// Whether hints contain the rows before the batch.
pub fn has_values(bytes: &[u8]) -> bool {
    let mut reader = Reader(bytes.get(1..).unwrap_or_default());
    let mut section = || -> Result<u8, CodecError> {
        let section = reader.byte()?;
        let len = reader.count()?;
        reader.bytes(len)?;
        Ok(section)
    };
    let mut sections = std::iter::from_fn(|| section().ok());
    bytes.first() == Some(&HINTS_VERSION) && sections.any(|section| section == SECTION_VALUES)
}

struct Decoder<'a> {
    context: &'a HintContext,
    further: Vec<Address>,
    /// Keys that may still be named.
    left: usize,
}

impl<'a> Decoder<'a> {
    fn new(context: &'a HintContext, keys_max: usize) -> Result<Self, CodecError> {
        let mut decoder = Self { context, further: Vec::new(), left: keys_max };
        decoder.take(context.implied())?;
        Ok(decoder)
    }

    /// Charges keys to the allowance.
    fn take(&mut self, keys: usize) -> Result<(), CodecError> {
        self.left =
            self.left.checked_sub(keys).ok_or(invalid("they name more keys than the batch can read"))?;
        Ok(())
    }

    fn keys(mut self, mut reader: Reader<'_>) -> Result<Hints, CodecError> {
        let mut accounts = Vec::with_capacity(self.context.implied());
        for account in self.context.implied_accounts() {
            self.take(account.slots.len())?;
            accounts.push(account);
        }
        for _ in 0..reader.count()? {
            let address = reader.address()?;
            self.further.push(address);
        }
        let mut numbers = Ascending::default();
        for _ in 0..reader.count()? {
            let number = numbers.next(&mut reader)?;
            let address = self.address(number)?;
            match accounts
                .get_mut(number as usize)
                .filter(|account: &&mut AccountHints| account.address == address)
            {
                Some(account) => self.account(&mut reader, account)?,
                None => {
                    self.take(1)?;
                    let mut account = AccountHints { address, code: false, slots: Vec::new() };
                    self.account(&mut reader, &mut account)?;
                    accounts.push(account);
                }
            }
        }
        if !reader.is_empty() {
            return Err(invalid("bytes follow the last account"));
        }
        Ok(Hints { accounts })
    }

    fn address(&self, number: u64) -> Result<Address, CodecError> {
        let number = usize::try_from(number).ok();
        let known = self.context.addresses();
        let found = number.and_then(|number| match number.checked_sub(known.len()) {
            None => known.get_index(number),
            Some(further) => self.further.get(further),
        });
        found.copied().ok_or(invalid("an address number is unknown"))
    }

    fn account(&mut self, reader: &mut Reader<'_>, account: &mut AccountHints) -> Result<(), CodecError> {
        let head = reader.number()?;
        account.code |= head & 1 == 1;
        for _ in 0..reader.checked(head >> 1)? {
            self.group(reader, &mut account.slots)?;
        }
        Ok(())
    }

    fn group(&mut self, reader: &mut Reader<'_>, slots: &mut Vec<B256>) -> Result<(), CodecError> {
        let head = reader.number()?;
        let (count, kind) = (reader.checked(head >> 4)?, (head & 15) as u8);
        if count == 0 {
            return Err(invalid("a group is empty"));
        }
        let mut ascending = Ascending::default();
        match kind {
            NUMBERS | WORDS => {
                self.take(count)?;
                for _ in 0..count {
                    slots.push(if kind == WORDS {
                        reader.word()?
                    } else {
                        from_number(ascending.next(reader)?)
                    });
                }
            }
            _ => {
                let mapping = self.mapping(reader)?;
                let base = mapping.base();
                for _ in 0..count {
                    let key = self.key(reader, kind & !WITH_FIELDS, &mut ascending)?;
                    let entry = entry(mapping.slot_first, base, key);
                    let mask = if kind & WITH_FIELDS == 0 { 1 } else { reader.number()? };
                    // An entry without fields counts as one key, because it cost a hash.
                    self.take(mask.count_ones().max(1) as usize)?;
                    slots.extend((0..FIELDS_MAX).filter(|at| mask >> at & 1 == 1).map(|at| field(entry, at)));
                }
            }
        }
        Ok(())
    }

    fn mapping(&self, reader: &mut Reader<'_>) -> Result<Mapping<B256>, CodecError> {
        let head = reader.byte()?;
        let root = if head & 1 == 1 { reader.word()? } else { from_number(reader.number()?) };
        let mut outer = [None; OUTER_MAX];
        let depth = usize::from(head >> 2);
        if depth > OUTER_MAX {
            return Err(invalid("mappings are nested deeper than the format allows"));
        }
        for place in &mut outer[..depth] {
            let kind = reader.byte()?;
            *place = Some(self.key(reader, kind, &mut Ascending::default())?);
        }
        Ok(Mapping { slot_first: head & 2 == 2, root, outer })
    }

    fn key(&self, reader: &mut Reader<'_>, kind: u8, ascending: &mut Ascending) -> Result<B256, CodecError> {
        match kind {
            BY_ADDRESS => Ok(self.address(ascending.next(reader)?)?.into_word()),
            BY_NUMBER => Ok(from_number(ascending.next(reader)?)),
            BY_WORD => reader.word(),
            _ => Err(invalid("the kind of a group is unknown")),
        }
    }
}
