//! Adds certificates to batches that are stored without one.

use slipstream_types::Certificate;

use crate::{
    backend::{Column, WriteBatch},
    error::StorageError,
    nodes::load_accumulator,
    schema,
    stage::check_certificate,
    store::Store,
};

impl Store {
    /// Adds a certificate for a stored batch. The caller has verified its signatures.
    ///
    /// # Errors
    /// [`StorageError::WrongCertificate`] if it is about another ledger, or about a batch that is not stored.
    pub fn put_certificate(&self, certificate: &Certificate) -> Result<(), StorageError> {
        let number = certificate.info.number;
        let refused = |reason| StorageError::WrongCertificate { number, reason };
        let writer = self.writer();
        let current = self.current()?;
        if number > current.record.number {
            return Err(refused("its batch is above the head"));
        }
        let header = self.header(number)?.ok_or_else(|| refused("the store lacks its batch"))?;
        let accumulator = load_accumulator(&*self.0.backend, number)?
            .ok_or_else(|| refused("the store lacks the ledger before its batch"))?;
        check_certificate(certificate, &header, accumulator.root())?;
        let mut writes = WriteBatch::default();
        writes.put(Column::Certificates, schema::number_key(number), schema::encode(certificate));
        let epoch = writer.stage_epoch_end(self.epoch(), certificate, &mut writes)?;
        self.write(writes, true)?;
        writer.learn_epoch(epoch);
        if number == current.record.number {
            writer.make_snapshot(&current, certificate);
        }
        Ok(())
    }
}
