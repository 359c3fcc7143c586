//! [`Way`] and [`Packer`]: the ways to pack a blob's content, including the store's own.

use anyhow::{Context, Result};
use slipstream_types::{Blob, BlobKind};
use zstd::{
    bulk::{Compressor, Decompressor},
    dict::{DecoderDictionary, EncoderDictionary, from_samples},
    zstd_safe::get_frame_content_size,
};

use super::fields::{self, Parts};

pub(super) const LEVEL: i32 = 3;
pub(super) const DICTIONARY_BYTES: usize = 112 << 10;
/// Batches that are packed as one.
pub(super) const GROUP_BATCHES: usize = 16;
/// The bytes of a batch's kind and length, however its content is packed: see [`Blob`].
pub(super) const PREFIX_BYTES: usize = 5;
/// The bytes that tell where the signatures begin, if they are separate.
const LENGTH_BYTES: usize = 4;

/// A way to pack contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::VariantArray, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(super) enum Way {
    /// One LZ4 block for each batch, as in the store.
    Lz4,
    /// One zstd frame for each batch.
    Zstd,
    /// The same, with a dictionary trained on other batches.
    ZstdDictionary,
    /// One zstd frame for [`GROUP_BATCHES`].
    ZstdGroups,
    /// For bodies: signatures uncompressed, and a zstd frame of the rest.
    SignaturesApart,
    /// For bodies: the same, with the rest sorted by field.
    Fields,
}

impl Way {
    const ALL: &'static [Way] = <Way as strum::VariantArray>::VARIANTS;

    /// Returns the ways in which a kind of blob can be packed.
    pub(super) fn of(kind: BlobKind) -> impl Iterator<Item = Way> {
        let of_bodies = |way: &Way| matches!(way, Way::SignaturesApart | Way::Fields);
        Way::ALL.iter().copied().filter(move |way| kind == BlobKind::Body || !of_bodies(way))
    }

    /// Returns the way's name in figures.
    pub(super) fn name(self) -> &'static str {
        self.into()
    }

    /// Returns the number of batches that are packed as one.
    pub(super) fn batches(self) -> usize {
        if self == Way::ZstdGroups { GROUP_BATCHES } else { 1 }
    }
}

/// A dictionary, prepared for both directions.
pub(super) struct Dictionary {
    encoder: EncoderDictionary<'static>,
    decoder: DecoderDictionary<'static>,
}

impl Dictionary {
    /// Trains a dictionary on the texts that contents share.
    ///
    /// # Errors
    /// If the contents are too few.
    pub(super) fn train(contents: &[Vec<u8>]) -> Result<Dictionary> {
        let bytes = from_samples(contents, DICTIONARY_BYTES)
            .with_context(|| format!("cannot train a dictionary from {} contents", contents.len()))?;
        Ok(Dictionary {
            encoder: EncoderDictionary::copy(&bytes, LEVEL),
            decoder: DecoderDictionary::copy(&bytes),
        })
    }
}

/// A packed content, or a packed group of them.
pub(super) enum Packed {
    Blob(Blob),
    Frame(Vec<u8>),
    /// A frame of the rest, and the uncompressed signatures.
    Apart {
        frame: Vec<u8>,
        signatures: Vec<u8>,
    },
}

impl Packed {
    /// Returns the bytes that a store would use for these `batches` batches.
    pub(super) fn bytes(&self, batches: usize) -> usize {
        match self {
            // The blob includes the prefix.
            Packed::Blob(blob) => blob.len(),
            Packed::Frame(frame) => batches * PREFIX_BYTES + frame.len(),
            Packed::Apart { frame, signatures } => {
                batches * PREFIX_BYTES + LENGTH_BYTES + frame.len() + signatures.len()
            }
        }
    }
}

/// Packs contents of one kind in one way.
pub(super) struct Packer<'a> {
    way: Way,
    kind: BlobKind,
    compressor: Compressor<'a>,
    decompressor: Decompressor<'a>,
}

impl<'a> Packer<'a> {
    /// Makes a packer with a dictionary, which only one way uses.
    pub(super) fn new(way: Way, kind: BlobKind, dictionary: &'a Dictionary) -> Result<Packer<'a>> {
        let (mut compressor, decompressor) = match way {
            Way::ZstdDictionary => (
                Compressor::with_prepared_dictionary(&dictionary.encoder)?,
                Decompressor::with_prepared_dictionary(&dictionary.decoder)?,
            ),
            _ => (Compressor::new(LEVEL)?, Decompressor::new()?),
        };
        // The reader knows the dictionary, so its id of four bytes is left out, which would cost a small blob much.
        compressor.include_dictid(false)?;
        Ok(Packer { way, kind, compressor, decompressor })
    }

    pub(super) fn way(&self) -> Way {
        self.way
    }

    /// Packs a content, or a group's contents in order.
    ///
    /// # Errors
    /// If it is not a content of its kind.
    pub(super) fn pack(&mut self, content: &[u8]) -> Result<Packed> {
        Ok(match self.way {
            Way::Lz4 => Packed::Blob(Blob::compress(self.kind, content)?),
            Way::Zstd | Way::ZstdDictionary | Way::ZstdGroups => {
                Packed::Frame(self.compressor.compress(content)?)
            }
            Way::SignaturesApart => self.pack_apart(fields::cut_signatures(content)?)?,
            Way::Fields => self.pack_apart(fields::sort(content)?)?,
        })
    }

    /// Returns the unpacked contents.
    ///
    /// # Errors
    /// If they were packed in another way.
    pub(super) fn unpack(&mut self, packed: &Packed) -> Result<Vec<u8>> {
        match packed {
            Packed::Blob(blob) => Ok(blob.content(self.kind)?),
            Packed::Frame(frame) => self.decompress(frame),
            Packed::Apart { frame, signatures } => {
                let rest = self.decompress(frame)?;
                let join = if self.way == Way::Fields { fields::unsort } else { fields::put_signatures_back };
                join(&rest, signatures)
            }
        }
    }

    fn pack_apart(&mut self, Parts { rest, signatures }: Parts) -> Result<Packed> {
        Ok(Packed::Apart { frame: self.compressor.compress(&rest)?, signatures })
    }

    fn decompress(&mut self, frame: &[u8]) -> Result<Vec<u8>> {
        let bytes = get_frame_content_size(frame).ok().flatten();
        let bytes = bytes.context("a zstd frame does not say how long its content is")?;
        Ok(self.decompressor.decompress(frame, bytes as usize)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::workload::{Signer, Workload};

    /// Goal: every way restores each byte; otherwise its figures would be worthless.
    #[test]
    fn every_way_gives_back_what_it_packed() {
        let signer = Signer::new(Workload::Transfers, Default::default(), 50);
        let body = |batch: Vec<slipstream_executor::Transaction>| {
            let raws = batch.into_iter().map(|transaction| transaction.raw.to_vec()).collect();
            slipstream_types::Body::new(raws).unwrap().content().unwrap()
        };
        let bodies: Vec<Vec<u8>> = signer.batches(0..16).unwrap().into_iter().map(body).collect();
        let dictionary = Dictionary::train(&bodies[8..]).unwrap();
        for way in Way::of(BlobKind::Body) {
            let mut packer = Packer::new(way, BlobKind::Body, &dictionary).unwrap();
            let content = bodies[..way.batches().min(8)].concat();
            let packed = packer.pack(&content).unwrap();
            assert!(packed.bytes(1) < content.len(), "{way:?}");
            assert_eq!(packer.unpack(&packed).unwrap(), content, "{way:?}");
        }
    }
}
