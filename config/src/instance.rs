//! Several nodes of one configuration on one machine: the settings that must differ between them.

use std::{net::SocketAddr, num::NonZeroU8, path::Path};

use crate::{NodeConfig, error::RuleViolation};

/// The highest number of an instance.
pub const INSTANCE_MAX: u8 = 200;

/// Changes every setting that two nodes cannot share: the number goes into file names and is added to ports. Returns
/// the changed keys.
pub(crate) fn shift(config: &mut NodeConfig, number: NonZeroU8) -> Result<Vec<&'static str>, RuleViolation> {
    let mut changed = Vec::new();
    let log = config.log.file.path.as_mut().map(|path| ("log.file.path", path));
    let own = [("data_dir", &mut config.data_dir), ("key_file", &mut config.key_file)];
    for (key, path) in own.into_iter().chain(log) {
        changed.push(key);
        *path = numbered(path, number).ok_or_else(|| {
            let text =
                format!("{} has no file name to which an instance could add its number", path.display());
            RuleViolation::new(key, text)
        })?;
    }
    let network = &mut config.network;
    let listens = [("network.listen", &mut network.listen), ("api.listen", &mut config.api.listen)];
    let advertised = network.advertise.iter_mut().map(|address| ("network.advertise", address));
    for (key, address) in listens.into_iter().chain(advertised) {
        if move_port(address, number).ok_or_else(|| {
            RuleViolation::new(
                key,
                format!("the port of {address} plus {number} is above the highest port, 65535"),
            )
        })? && !changed.contains(&key)
        {
            changed.push(key);
        }
    }
    Ok(changed)
}

/// Adds the number to a file's name: `data-3` for `data`, `node-3.key` for `node.key`.
fn numbered(path: &Path, number: NonZeroU8) -> Option<std::path::PathBuf> {
    path.file_name()?;
    let stem = path.file_stem()?.to_str()?;
    let name = match path.extension() {
        Some(extension) => format!("{stem}-{number}.{}", extension.to_str()?),
        None => format!("{stem}-{number}"),
    };
    Some(path.with_file_name(name))
}

/// Adds the number to the port; returns whether it changed, or `None` if no such port exists. Port 0, which selects a
/// free port, stays.
fn move_port(address: &mut SocketAddr, number: NonZeroU8) -> Option<bool> {
    if address.port() == 0 {
        return Some(false);
    }
    address.set_port(address.port().checked_add(u16::from(number.get()))?);
    Some(true)
}
