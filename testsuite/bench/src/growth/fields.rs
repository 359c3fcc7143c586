//! Bodies split into the incompressible numbers r and s of each signature, and the rest; and the rest by field.
//!
//! A store could do both, because a body is restored byte for byte. An envelope is its type (which a legacy one lacks)
//! and a list of RLP items, the last two of which are r and s. Their first byte, which gives their length, stays with
//! the rest.
//!
//! ```text
//!  cut    count | per transaction: length, its bytes without r and s                                  r s r s ...
//!  sorted count | type of each | per field in use: its number, length, items of all transactions      r s r s ...
//! ```

use alloy_rlp::Header;
use anyhow::{Context, Result, ensure};

/// Number of fields by type: legacy, EIP-2930, EIP-1559, EIP-4844, EIP-7702.
const FIELDS: [usize; 5] = [9, 11, 12, 14, 13];
/// The most fields of a type, in the numbering of all fields.
const FIELDS_MAX: usize = 16;
/// The prefix of a list is at least this; a type or a string's prefix is below it.
const LIST_MIN: u8 = 0xc0;
/// A byte below this is an item by itself; a short string's prefix is this plus its length.
const STRING_MIN: u8 = 0x80;

/// A body in two parts.
pub(super) struct Parts {
    pub(super) rest: Vec<u8>,
    /// r and s of each transaction.
    pub(super) signatures: Vec<u8>,
}

/// Removes the signatures from a body's content.
///
/// # Errors
/// If it is not a body, or has a transaction of an unknown type.
pub(super) fn cut_signatures(content: &[u8]) -> Result<Parts> {
    let mut parts = Parts { rest: Vec::with_capacity(content.len()), signatures: Vec::new() };
    let (mut left, mut items) = (content, Vec::new());
    let count = take_length(&mut left)?;
    put_length(&mut parts.rest, count);
    for _ in 0..count {
        let raw = take_transaction(&mut left)?;
        split(raw, &mut items)?;
        let [.., r, s] = items[..] else { unreachable!("every type has more fields") };
        let before = raw.len() - r.len() - s.len();
        let [(r_head, r), (s_head, s)] = [cut(r), cut(s)];
        put_length(&mut parts.rest, before + r_head.len() + s_head.len());
        for part in [&raw[..before], r_head, s_head] {
            parts.rest.extend_from_slice(part);
        }
        parts.signatures.extend_from_slice(r);
        parts.signatures.extend_from_slice(s);
    }
    Ok(parts)
}

/// Returns the content that [`cut_signatures`] split.
///
/// # Errors
/// If [`cut_signatures`] did not make these parts.
pub(super) fn put_signatures_back(mut rest: &[u8], mut signatures: &[u8]) -> Result<Vec<u8>> {
    let mut content = Vec::with_capacity(rest.len() + signatures.len());
    let count = take_length(&mut rest)?;
    put_length(&mut content, count);
    for _ in 0..count {
        let cut = take_transaction(&mut rest)?;
        let (before, heads) = cut.split_last_chunk::<2>().context("a transaction is cut short")?;
        let lengths = heads.map(cut_bytes);
        put_length(&mut content, cut.len() + lengths[0] + lengths[1]);
        content.extend_from_slice(before);
        for (head, bytes) in heads.iter().zip(lengths) {
            content.push(*head);
            content.extend_from_slice(take(&mut signatures, bytes)?);
        }
    }
    Ok(content)
}

/// Removes the signatures from a body's content, and groups the rest by field.
///
/// # Errors
/// Those of [`cut_signatures`].
pub(super) fn sort(content: &[u8]) -> Result<Parts> {
    let mut columns = [const { Vec::<u8>::new() }; FIELDS.len() * FIELDS_MAX];
    let (mut types, mut signatures) = (Vec::new(), Vec::new());
    let (mut left, mut items) = (content, Vec::new());
    let count = take_length(&mut left)?;
    for _ in 0..count {
        let kind = split(take_transaction(&mut left)?, &mut items)?;
        types.push(kind as u8);
        let plain = items.len() - 2;
        for (index, item) in items.iter().enumerate() {
            let (head, payload) = if index < plain { (*item, &[][..]) } else { cut(item) };
            columns[kind * FIELDS_MAX + index].extend_from_slice(head);
            signatures.extend_from_slice(payload);
        }
    }
    let mut rest = Vec::with_capacity(content.len());
    put_length(&mut rest, count);
    rest.extend_from_slice(&types);
    for (number, column) in columns.iter().enumerate().filter(|(_, column)| !column.is_empty()) {
        rest.push(number as u8);
        put_length(&mut rest, column.len());
        rest.extend_from_slice(column);
    }
    Ok(Parts { rest, signatures })
}

/// Returns the content that [`sort`] split.
///
/// # Errors
/// If [`sort`] did not make these parts.
pub(super) fn unsort(mut rest: &[u8], mut signatures: &[u8]) -> Result<Vec<u8>> {
    let mut content = Vec::with_capacity(rest.len() + signatures.len());
    let count = take_length(&mut rest)?;
    put_length(&mut content, count);
    let types = take(&mut rest, count)?;
    let mut columns = [&[][..]; FIELDS.len() * FIELDS_MAX];
    while let Some((number, left)) = rest.split_first() {
        rest = left;
        let bytes = take_length(&mut rest)?;
        *columns.get_mut(usize::from(*number)).context("a field has an unknown number")? =
            take(&mut rest, bytes)?;
    }
    let mut list = Vec::new();
    for kind in types.iter().map(|kind| usize::from(*kind)) {
        let fields = *FIELDS.get(kind).context("a transaction has an unknown type")?;
        list.clear();
        for index in 0..fields {
            let column = &mut columns[kind * FIELDS_MAX + index];
            if index < fields - 2 {
                list.extend_from_slice(take_item(column)?);
            } else {
                let head = take(column, 1)?[0];
                list.push(head);
                list.extend_from_slice(take(&mut signatures, cut_bytes(head))?);
            }
        }
        put_envelope(&mut content, kind, &list);
    }
    Ok(content)
}

/// Writes an envelope with its length.
fn put_envelope(content: &mut Vec<u8>, kind: usize, list: &[u8]) {
    let header = Header { list: true, payload_length: list.len() };
    put_length(content, usize::from(kind > 0) + header.length() + list.len());
    if kind > 0 {
        content.push(kind as u8);
    }
    header.encode(content);
    content.extend_from_slice(list);
}

/// Finds the items of an envelope; returns its type.
fn split<'a>(raw: &'a [u8], items: &mut Vec<&'a [u8]>) -> Result<usize> {
    let (kind, mut list) = match raw.split_first() {
        Some((kind, list)) if *kind < LIST_MIN => (usize::from(*kind), list),
        _ => (0, raw),
    };
    let fields = *FIELDS.get(kind).with_context(|| format!("a transaction has the unknown type {kind}"))?;
    Header::decode(&mut list)?;
    items.clear();
    while !list.is_empty() {
        items.push(take_item(&mut list)?);
    }
    ensure!(items.len() == fields, "a transaction of type {kind} has {} fields, not {fields}", items.len());
    Ok(kind)
}

/// Takes the next RLP item with its prefix.
fn take_item<'a>(list: &mut &'a [u8]) -> Result<&'a [u8]> {
    let (whole, mut payload) = (*list, *list);
    let header = Header::decode(&mut payload)?;
    take(list, whole.len() - payload.len() + header.payload_length)
}

/// Splits r or s into the byte that gives its length and its incompressible bytes; a small one has only the first.
fn cut(item: &[u8]) -> (&[u8], &[u8]) {
    item.split_at(1)
}

/// Returns the number of bytes that [`cut`] splits off an item with this first byte.
fn cut_bytes(head: u8) -> usize {
    usize::from(head.saturating_sub(STRING_MIN))
}

fn take_transaction<'a>(content: &mut &'a [u8]) -> Result<&'a [u8]> {
    let bytes = take_length(content)?;
    take(content, bytes)
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Result<&'a [u8]> {
    let (taken, left) = bytes.split_at_checked(count).context("a body is cut short")?;
    *bytes = left;
    Ok(taken)
}

/// Reads a BCS length: seven bits per byte, the lowest first.
fn take_length(bytes: &mut &[u8]) -> Result<usize> {
    let mut length = 0;
    for shift in (0..32).step_by(7) {
        let byte = take(bytes, 1)?[0];
        length |= usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(length);
        }
    }
    anyhow::bail!("a length has more than 32 bits")
}

fn put_length(bytes: &mut Vec<u8>, mut length: usize) {
    while length >= 0x80 {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
}

#[cfg(test)]
mod tests {
    use slipstream_types::Body;

    use super::*;

    /// Returns an envelope of a type: numbers and an empty list, then r and s.
    fn envelope(kind: usize, r: &[u8], s: &[u8]) -> Vec<u8> {
        let mut list: Vec<u8> = (0..FIELDS[kind] - 3).map(|field| field as u8).collect();
        list.push(LIST_MIN);
        list.extend_from_slice(r);
        list.extend_from_slice(s);
        let mut content = Vec::new();
        put_envelope(&mut content, kind, &list);
        take_transaction(&mut &content[..]).unwrap().to_vec()
    }

    /// Goal: both forms keep every byte, for every type, and for r and s with leading zeros, which RLP leaves out.
    #[test]
    fn bodies_come_back() {
        let long: Vec<u8> = [&[0xa0][..], &[7; 32]].concat();
        let short: Vec<u8> = [&[0x9f][..], &[8; 31]].concat();
        let mut raws: Vec<Vec<u8>> = (0..FIELDS.len()).map(|kind| envelope(kind, &long, &long)).collect();
        raws.extend([envelope(2, &short, &long), envelope(2, &long, &[5]), envelope(0, &[0x80], &short)]);
        for transactions in [Vec::new(), raws] {
            let content = Body::new(transactions.clone()).unwrap().content().unwrap();
            let cut = cut_signatures(&content).unwrap();
            assert_eq!(put_signatures_back(&cut.rest, &cut.signatures).unwrap(), content);
            let sorted = sort(&content).unwrap();
            assert_eq!(unsort(&sorted.rest, &sorted.signatures).unwrap(), content);
            assert_eq!(sorted.signatures, cut.signatures);
            let expected = if transactions.is_empty() { 0 } else { 5 * 64 + 31 + 32 + 32 + 31 };
            assert_eq!(cut.signatures.len(), expected);
        }
    }

    /// Goal: contents other than bodies are refused instead of packed wrongly.
    #[test]
    fn other_contents_are_refused() {
        let unknown = Body::new(vec![vec![9, LIST_MIN]]).unwrap().content().unwrap();
        let cut_short = [2, 1];
        for content in [&unknown[..], &cut_short] {
            assert!(cut_signatures(content).is_err() && sort(content).is_err());
        }
    }
}
