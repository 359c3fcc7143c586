//! Importing an export into an empty store: a restore whose peer is a directory.

use std::{collections::BTreeMap, path::Path as FilePath};

use rayon::prelude::*;

use super::{
    ChunkEntry, ExportError, ExportSummary, MANIFEST, Manifest, check::Export, codes_path, write::summary,
};
use crate::{
    error::{RestoreError, StorageError},
    lineage::Trust,
    restore::Restore,
    span::Span,
    store::Store,
    takeover::Takeover,
};

/// Checks an export and makes it the state of a store that is empty or holds only the same genesis. An interrupted
/// import continues where it stopped.
///
/// # Errors
/// [`ExportError::NotFresh`], or the first file that is refused. The head has not moved then.
pub fn import_snapshot(store: &Store, dir: &FilePath, trust: &Trust) -> Result<ExportSummary, ExportError> {
    if let Some(head) = store.head_behind_genesis()? {
        return Err(ExportError::NotFresh { head });
    }
    let export = Export::open(dir, trust)?;
    let Manifest { lineage, genesis_proof, .. } = &export.manifest;
    let restore = lineage.begin(store, &export.genesis)?;
    import_rows(&export, &restore)?;
    let codes = import_codes(&export, store, &restore, dir)?;
    let finished = lineage.finish(&restore, genesis_proof);
    finished.map_err(|error| match error {
        StorageError::Restore(error) => ExportError::damaged(&dir.join(MANIFEST), error),
        error => error.into(),
    })?;
    Ok(summary(&export.manifest, codes))
}

/// Imports the parts of the paths in parallel, each in order, so that its rows become a few large files.
fn import_rows(export: &Export, restore: &Restore) -> Result<(), ExportError> {
    let mut ranges: BTreeMap<u8, Vec<&ChunkEntry>> = BTreeMap::new();
    for entry in &export.manifest.chunks {
        ranges.entry(entry.range).or_default().push(entry);
    }
    ranges.into_values().collect::<Vec<_>>().into_par_iter().try_for_each(|entries| {
        entries.into_iter().try_for_each(|entry| {
            match restore.is_missing(Span { first: entry.first, last: entry.last }) {
                true => Ok(restore.fill(export.chunk(entry)?)?),
                false => Ok(()),
            }
        })
    })
}

fn import_codes(
    export: &Export,
    store: &Store,
    restore: &Restore,
    dir: &FilePath,
) -> Result<u64, ExportError> {
    let mut codes = 0;
    for (index, entry) in export.manifest.codes.iter().enumerate() {
        for code in export.codes(index, entry)?.codes.iter() {
            codes += 1;
            match restore.add_code(code) {
                Err(StorageError::Restore(RestoreError::UnwantedCode { hash })) => {
                    // The genesis also has this code, or an interrupted import stored it.
                    if !store.has_code(&hash)? {
                        let reason = format!("no account needs its code {hash}");
                        return Err(ExportError::damaged(&codes_path(dir, index), reason));
                    }
                }
                added => added?,
            }
        }
    }
    Ok(codes)
}
