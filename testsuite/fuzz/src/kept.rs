//! The kept inputs: seeds, and inputs that once found a fault.

use std::{fs, io, path::Path};

use crate::{TARGETS, Target};

/// Returns the target of a name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Returns a target's seeds, and the files of its folder in the order of their names.
///
/// # Errors
/// If the target's folder exists and cannot be read.
pub fn kept(target: &Target) -> io::Result<Vec<Vec<u8>>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let mut inputs = (target.seeds)();
    if folder.exists() {
        let files = fs::read_dir(folder)?.map(|file| file.map(|file| file.path()));
        let mut files = files.collect::<io::Result<Vec<_>>>()?;
        files.sort();
        for file in files {
            inputs.push(fs::read(file)?);
        }
    }
    Ok(inputs)
}
