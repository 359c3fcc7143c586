//! Converts the access lists of mainnet blocks (EIP-7928) to calls: the slots that each transaction of a block read and
//! wrote.
//!
//! A file is `NUMBER.rlp.gz`: a list per account of `[address, [[slot, [[transaction, value]...]]...], [slot only read...], ...]`.
//! A list names the writers of each slot but not its readers, so the reads are spread evenly over the block's
//! transactions.

use std::{collections::BTreeMap, fs, io::Read, path::Path};

use alloy_primitives::{Address, B256, U256, keccak256};
use alloy_rlp::{Decodable, Header};
use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;

/// The most calls that are kept. A load that reaches the last call starts over with the first.
const CALLS_MAX: usize = 50_000;
/// The most slots of one call: below EIP-7825's gas limit of a transaction, and small enough that many calls fit a
/// batch.
const WRITES_MAX: usize = 60;
const READS_MAX: usize = 200;
/// The most bytes of one file, unpacked. Files of busy blocks have 200 KiB.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The slots that one transaction touches, mapped to those of a single contract.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Touch {
    /// Slots that are only read.
    pub(super) reads: Vec<U256>,
    /// Slots that are read and written.
    pub(super) writes: Vec<U256>,
}

/// Returns the numbers of the blocks with an access list in a directory, ascending.
///
/// # Errors
/// If the directory cannot be listed, or has no access lists.
pub(crate) fn numbers(dir: &Path) -> Result<Vec<u64>> {
    let mut numbers: Vec<u64> = Vec::new();
    for entry in
        fs::read_dir(dir).with_context(|| format!("cannot list the access lists in {}", dir.display()))?
    {
        let name = entry?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.strip_suffix(".rlp.gz")?.parse::<u64>().ok()));
    }
    ensure!(
        !numbers.is_empty(),
        "{} holds no access list: name a directory of NUMBER.rlp.gz files",
        dir.display()
    );
    numbers.sort_unstable();
    Ok(numbers)
}

/// Reads the calls from all files of a directory, in block order.
pub(super) fn load(dir: &Path) -> Result<Vec<Touch>> {
    let mut touches = Vec::new();
    for number in numbers(dir)? {
        let path = dir.join(format!("{number}.rlp.gz"));
        let read = || -> Result<Vec<Touch>> {
            let mut bytes = Vec::new();
            GzDecoder::new(fs::File::open(&path)?).take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
            ensure!(bytes.len() as u64 <= FILE_BYTES_MAX, "it has more than {FILE_BYTES_MAX} bytes");
            decode(&bytes)
        };
        touches.extend(read().with_context(|| format!("cannot read the access list {}", path.display()))?);
        if touches.len() >= CALLS_MAX {
            break;
        }
    }
    ensure!(
        !touches.is_empty(),
        "the access lists in {} touch no slots: name another directory",
        dir.display()
    );
    touches.truncate(CALLS_MAX);
    Ok(touches)
}

/// Decodes one block's calls.
fn decode(bytes: &[u8]) -> Result<Vec<Touch>> {
    let mut writes: BTreeMap<u64, Vec<U256>> = BTreeMap::new();
    let mut reads = Vec::new();
    let mut accounts = Header::decode_bytes(&mut &bytes[..], true)?;
    while !accounts.is_empty() {
        let mut account = Header::decode_bytes(&mut accounts, true)?;
        let address = Address::decode(&mut account)?;
        let mut written = Header::decode_bytes(&mut account, true)?;
        while !written.is_empty() {
            let mut slot = Header::decode_bytes(&mut written, true)?;
            let place = place(address, B256::decode(&mut slot)?);
            let mut changes = Header::decode_bytes(&mut slot, true)?;
            while !changes.is_empty() {
                let mut change = Header::decode_bytes(&mut changes, true)?;
                writes.entry(u64::decode(&mut change)?).or_default().push(place);
            }
        }
        let mut read = Header::decode_bytes(&mut account, true)?;
        while !read.is_empty() {
            reads.push(place(address, B256::decode(&mut read)?));
        }
    }
    let parts = writes.into_values().flat_map(|slots| {
        let parts = slots.chunks(WRITES_MAX).map(<[U256]>::to_vec).collect::<Vec<_>>();
        parts.into_iter().map(|writes| Touch { reads: Vec::new(), writes })
    });
    let mut touches: Vec<Touch> = parts.collect();
    // A block with few writes gets additional calls, until all reads fit.
    touches.resize(touches.len().max(reads.len().div_ceil(READS_MAX)), Touch::default());
    let count = touches.len();
    for (index, slot) in reads.into_iter().enumerate() {
        touches[index % count].reads.push(slot);
    }
    Ok(touches)
}

/// Maps a slot of any contract to a slot of the load's contract.
fn place(address: Address, slot: B256) -> U256 {
    let mut text = address.to_vec();
    text.extend_from_slice(slot.as_slice());
    keccak256(text).into()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use alloy_rlp::{Encodable, encode_list};
    use flate2::{Compression, write::GzEncoder};

    use super::*;

    /// Encodes a list of encoded items.
    fn list(parts: &[Vec<u8>]) -> Vec<u8> {
        let payload: Vec<u8> = parts.concat();
        let mut out = Vec::new();
        Header { list: true, payload_length: payload.len() }.encode(&mut out);
        out.extend_from_slice(&payload);
        out
    }

    fn item(value: &impl Encodable) -> Vec<u8> {
        let mut out = Vec::new();
        value.encode(&mut out);
        out
    }

    /// Encodes an account with two slots that transactions 1 and 2 write, and three that are read.
    fn block() -> Vec<u8> {
        let change = |transaction: u64| list(&[item(&transaction), item(&B256::repeat_byte(9))]);
        let slot = |byte, changes: &[Vec<u8>]| list(&[item(&B256::repeat_byte(byte)), list(changes)]);
        let written = list(&[slot(1, &[change(1)]), slot(2, &[change(1), change(2)])]);
        let mut reads = Vec::new();
        encode_list::<B256, B256>(
            &[B256::repeat_byte(3), B256::repeat_byte(4), B256::repeat_byte(5)],
            &mut reads,
        );
        list(&[list(&[item(&Address::repeat_byte(7)), written, reads, list(&[])])])
    }

    #[test]
    fn writes_go_to_their_transactions_and_reads_to_all() {
        let touches = decode(&block()).unwrap();
        let sizes: Vec<_> = touches.iter().map(|touch| (touch.reads.len(), touch.writes.len())).collect();
        assert_eq!(sizes, [(2, 2), (1, 1)]);
        assert_eq!(touches[0].writes[1], touches[1].writes[0], "both wrote the second slot");
        assert!(decode(&block()[..40]).is_err());
    }

    #[test]
    fn a_directory_without_lists_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(load(dir.path()).unwrap_err().to_string().contains("NUMBER.rlp.gz"));
        let mut packed =
            GzEncoder::new(fs::File::create(dir.path().join("5.rlp.gz")).unwrap(), Compression::fast());
        packed.write_all(&block()).unwrap();
        packed.finish().unwrap();
        assert_eq!(load(dir.path()).unwrap().len(), 2);
        fs::write(dir.path().join("6.rlp.gz"), "no gzip").unwrap();
        assert!(format!("{:#}", load(dir.path()).unwrap_err()).contains("6.rlp.gz"));
    }
}
