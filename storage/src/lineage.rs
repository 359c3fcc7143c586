//! [`Lineage`]: the proof that a snapshot belongs to a ledger. A reader that knows the ledger's genesis, or a
//! waypoint of it, can check the proof without asking anybody.

use serde::{Deserialize, Serialize};
use slipstream_types::{
    BatchHeader, BatchNumber, Blob, Certificate, Digest, Epoch, Genesis, LedgerInfo, ValidatorSet, Waypoint,
    accumulator::AccumulatorRangeProof, bounded::BoundedVec,
};

use crate::{
    backend::{Column, Reader},
    epochs::epoch_ends_of,
    error::StorageError,
    floors::read_headers_floor,
    ledger::{decode_blob, header_of, headers_of, range_proof_of},
    restore::Restore,
    schema::GENESIS_KEY,
    snapshot::{Snapshot, SnapshotInfo},
    store::Store,
    takeover::{Ancestry, RESTORE_HEADERS_MAX, RestoreTarget, Takeover, follow_each_other},
};

/// Maximum number of epochs before the snapshot's own; their ends are a few KB each.
const EPOCH_ENDS_MAX: usize = 65_536;

/// The trusted part of a ledger: a waypoint, a genesis, or both.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// The snapshot's batch, or batch 0, as `number:hash`.
    pub waypoint: Option<Waypoint>,
    /// The genesis that the ledger must begin with.
    pub genesis: Option<Genesis>,
}

/// Why a snapshot is not of the trusted ledger.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LineageError {
    /// The caller gave neither waypoint nor genesis.
    #[error(
        "no trusted ledger is given: give the waypoint NUMBER:0xHASH of the export's batch, or the genesis"
    )]
    NoTrust,
    /// The genesis is another one.
    #[error("{reason}")]
    Genesis {
        /// The contradiction to the trusted ledger.
        reason: String,
    },
    /// The snapshot's batch is another one than the waypoint's.
    #[error("{reason}")]
    Snapshot {
        /// The contradiction to the trusted ledger.
        reason: String,
    },
}

impl Trust {
    /// Checks that a ledger with this genesis, and this info at the snapshot, is the trusted one.
    ///
    /// # Errors
    /// [`LineageError`].
    pub fn check(&self, genesis: &Genesis, info: &LedgerInfo) -> Result<(), LineageError> {
        let invalid =
            |error: slipstream_types::CodecError| LineageError::Genesis { reason: error.to_string() };
        let own = Waypoint::of(&genesis.ledger_info().map_err(invalid)?);
        if let Some(trusted) = &self.genesis
            && trusted != genesis
        {
            return Err(LineageError::Genesis { reason: "it differs from the given genesis".into() });
        }
        let is_genesis_trusted = self.genesis.is_some() || self.waypoint == Some(own);
        let found = Waypoint::of(info);
        match self.waypoint {
            Some(waypoint) if waypoint == found || waypoint == own => Ok(()),
            Some(waypoint) if waypoint.number == found.number || waypoint.number == BatchNumber::GENESIS => {
                let reason = format!("the waypoint is {waypoint}, but this export has {found}");
                Err(LineageError::Snapshot { reason })
            }
            // The export does not have the ledger from an earlier waypoint to here.
            Some(waypoint) if !is_genesis_trusted => {
                let reason = format!(
                    "the waypoint {waypoint} cannot vouch for batch {}: give that batch's waypoint, or the genesis",
                    found.number
                );
                Err(LineageError::Snapshot { reason })
            }
            Some(_) => Ok(()),
            None if is_genesis_trusted => Ok(()),
            None => Err(LineageError::NoTrust),
        }
    }
}

/// The certificate of a snapshot's batch, its signers, and the headers that lead to it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lineage {
    /// Certifies exactly the snapshot's batch.
    pub certificate: Certificate,
    /// The ends of all epochs before the snapshot's own, in order. They lead from the validators of the genesis to
    /// those that signed the certificate.
    pub epoch_ends: BoundedVec<Certificate, EPOCH_ENDS_MAX>,
    /// The headers up to the snapshot's own, as far back as BLOCKHASH looks.
    pub headers: BoundedVec<BatchHeader, RESTORE_HEADERS_MAX>,
    /// Proves that the headers have these places in the certified ledger.
    pub headers_proof: AccumulatorRangeProof,
}

impl Lineage {
    /// Builds the lineage of a snapshot from the snapshot alone: its store moves on, and prunes.
    ///
    /// # Errors
    /// [`StorageError::DamagedSnapshot`], or errors of the disk.
    pub fn of(snapshot: &Snapshot) -> Result<Lineage, StorageError> {
        snapshot.own(Self::read(snapshot.reader(), snapshot.info()))
    }

    fn read(reader: &dyn Reader, snapshot: &SnapshotInfo) -> Result<Lineage, StorageError> {
        let (number, floor) = (snapshot.number, read_headers_floor(reader)?);
        // A store that was restored has fewer headers than BLOCKHASH could ask for.
        let mut first = number;
        while first > BatchNumber::GENESIS && number.since(first) + 1 < RESTORE_HEADERS_MAX as u64 {
            if header_of(reader, floor, first.before(1))?.is_none() {
                break;
            }
            first = first.before(1);
        }
        let headers = headers_of(reader, || floor, first, (number.since(first) + 1) as usize)?;
        let headers_proof = range_proof_of(reader, number.leaves(), first, headers.len())?;
        let certificate = snapshot.certificate.clone();
        let epochs = usize::try_from(certificate.info.epoch.0).unwrap_or(usize::MAX).min(EPOCH_ENDS_MAX + 1);
        let epoch_ends = BoundedVec::new(epoch_ends_of(reader, Epoch(0), epochs)?)?;
        Ok(Lineage { certificate, epoch_ends, headers: BoundedVec::new(headers)?, headers_proof })
    }

    /// Returns the genesis blob of a snapshot's ledger, and the proof that it is the first batch of the ledger that
    /// ends with the snapshot.
    ///
    /// # Errors
    /// [`StorageError::DamagedSnapshot`], or errors of the disk.
    pub fn genesis_of(snapshot: &Snapshot) -> Result<(Blob, AccumulatorRangeProof), StorageError> {
        let reader = snapshot.reader();
        let genesis = snapshot.own(reader.get(Column::Meta, GENESIS_KEY))?;
        let genesis = snapshot.own(decode_blob(genesis.ok_or(StorageError::NotInitialized)?))?;
        let leaves = snapshot.info().number.leaves();
        let proof = snapshot.own(range_proof_of(reader, leaves, BatchNumber::GENESIS, 1))?;
        Ok((genesis, proof))
    }

    /// The ledger that ends with the snapshot.
    pub fn info(&self) -> &LedgerInfo {
        &self.certificate.info
    }

    /// Checks that headers, genesis and certificate are of one ledger, and that the validators of that ledger signed.
    ///
    /// # Errors
    /// The first contradiction to genesis, waypoint or snapshot.
    pub fn check(&self, genesis: &Genesis, genesis_proof: &AccumulatorRangeProof) -> Result<(), String> {
        let Lineage { certificate, headers, headers_proof, .. } = self;
        let info = &certificate.info;
        let (Some(first), Some(last)) = (headers.first(), headers.last()) else {
            return Err("it has no headers".into());
        };
        if last.number != info.number || last.state_root != info.state_root {
            return Err("its certificate does not certify its last header".into());
        }
        let digests: Vec<Digest> = headers.iter().map(BatchHeader::digest).collect();
        if !follow_each_other(headers, &digests) {
            return Err("its headers do not form a chain".into());
        }
        let leaves = info.number.leaves();
        headers_proof
            .verify(info.accumulator_root, leaves, first.number.get(), &digests)
            .map_err(|error| error.to_string())?;
        let digest = genesis.header().map_err(|error| error.to_string())?.digest();
        let proved = genesis_proof.verify(info.accumulator_root, leaves, 0, &[digest]);
        proved.map_err(|error| format!("its genesis is not the ledger's first batch: {error}"))?;
        let set = self.signers(genesis)?;
        certificate.verify(&set).map_err(|error| error.to_string())
    }

    /// Returns the validators of the certificate's epoch. The certificate that ends an epoch names the set of the
    /// next.
    fn signers(&self, genesis: &Genesis) -> Result<ValidatorSet, String> {
        let (mut set, mut before) = (genesis.validator_set(), None);
        for end in &self.epoch_ends {
            let info = &end.info;
            end.verify(&set).map_err(|error| {
                format!("the signatures do not cover the validators that it names: {error}")
            })?;
            let next = info.next_validators.as_ref().ok_or("one of its epoch ends names no validators")?;
            let follows = next.epoch.0.checked_sub(1) == Some(info.epoch.0) && before < Some(info.number);
            if !follows || next.check().is_err() || info.number >= self.certificate.info.number {
                return Err(format!("its end of epoch {} does not lead to the certificate", info.epoch));
            }
            (set, before) = (next.clone(), Some(info.number));
        }
        Ok(set)
    }

    /// Begins or continues the restore of the snapshot, in a store that is empty or holds only the same genesis. The
    /// caller has checked the lineage, and [`Store::head_behind_genesis`].
    ///
    /// # Errors
    /// Errors of the store.
    pub fn begin(&self, store: &Store, genesis: &Genesis) -> Result<Restore, StorageError> {
        store.initialize(genesis)?;
        self.epoch_ends.iter().try_for_each(|end| store.put_epoch_end(end))?;
        let header = self.headers.last().cloned();
        let header = header.ok_or_else(|| StorageError::corrupt("the snapshot comes without headers"))?;
        let restore = store.restore(&RestoreTarget { header, certificate: self.certificate.clone() })?;
        // Rows that were kept from an older target are not needed, because the import has all rows.
        while let Some(span) = restore.unchecked(1)?.pop() {
            restore.check_range(span, &Default::default())?;
        }
        Ok(restore)
    }

    /// Makes the snapshot the store's head, once all rows and codes are there.
    ///
    /// # Errors
    /// See [`Takeover::finish`].
    pub fn finish(
        &self,
        restore: &Restore,
        genesis_proof: &AccumulatorRangeProof,
    ) -> Result<(), StorageError> {
        let Lineage { headers, headers_proof, .. } = self;
        restore.finish(&Ancestry { headers, proof: headers_proof, genesis_proof })
    }
}

impl Store {
    /// Returns the head if the store has begun to follow its ledger. Such a store holds more than a genesis, so nothing
    /// may be imported into it.
    ///
    /// # Errors
    /// Errors of the disk, or damage in the store.
    pub fn head_behind_genesis(&self) -> Result<Option<BatchNumber>, StorageError> {
        if !self.is_initialized() {
            return Ok(None);
        }
        Ok(Some(self.head()?.header.number).filter(|head| *head > BatchNumber::GENESIS))
    }
}
