//! [`Taken`]: the orders that were carried out, including those to the primary. A restarted container continues the
//! latter, although another node is primary by then. It also knows which of the others it missed.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{ErrorKind, Read as _, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use super::Order;

/// The name of the file, beside the node's data: a wipe leaves it.
const FILE: &str = "orders.taken";
/// The most bytes of it that are read: all orders of several starts.
const BYTES_MAX: u64 = 8 << 20;

/// The record of the orders that a node has carried out.
pub(super) struct Taken {
    path: PathBuf,
    /// The start from which orders count. `None` records nothing: the next start would be another one.
    start: Option<u64>,
}

impl Taken {
    pub(super) fn beside(data: &Path, start: Option<u64>) -> Taken {
        Taken { path: data.with_file_name(FILE), start }
    }

    /// Returns for each of these orders whether it was carried out.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(super) fn recall(&self, orders: &[Order]) -> Result<Vec<bool>> {
        let Some(start) = self.start else { return Ok(vec![false; orders.len()]) };
        let mut text = String::new();
        match File::open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            file => {
                let read = file.and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text));
                read.with_context(|| format!("cannot read {}", self.path.display()))?;
            }
        }
        let taken: BTreeSet<&str> = text.lines().collect();
        Ok(orders.iter().map(|order| taken.contains(line(start, order).as_str())).collect())
    }

    /// Records that an order was carried out.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn keep(&self, order: &Order) -> Result<()> {
        let Some(start) = self.start else { return Ok(()) };
        let file = File::options().create(true).append(true).open(&self.path);
        let written = file.and_then(|mut file| writeln!(file, "{}", line(start, order)));
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

fn line(start: u64, order: &Order) -> String {
    format!("{start} {order}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: recorded orders are known after a restart, but only for the same start time.
    #[test]
    fn a_taken_order_is_kept_for_its_start() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let orders = ["1s..9s,kill,primary", "1s..,pause,primary"].map(|text| text.parse::<Order>().unwrap());
        let of = |start| Taken::beside(&data, start);
        assert_eq!(of(Some(7)).recall(&orders).unwrap(), [false, false]);
        of(Some(7)).keep(&orders[1]).unwrap();
        assert_eq!(of(Some(7)).recall(&orders).unwrap(), [false, true]);
        of(Some(7)).keep(&orders[0]).unwrap();
        assert_eq!(of(Some(7)).recall(&orders).unwrap(), [true, true]);
        assert_eq!(of(Some(8)).recall(&orders).unwrap(), [false, false]);
        of(None).keep(&orders[0]).unwrap();
        assert_eq!(of(None).recall(&orders).unwrap(), [false, false]);
    }
}
