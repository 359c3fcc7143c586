//! The operator's orders on peers, in a file of the data directory, so that they hold over a restart. It is read before the network starts, and
//! written whole at each order. One that is damaged costs the orders alone: it is named and set aside, and the node goes on without them.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use slipstream_network::{Ban, BanEnd, BannedBy, Orders, PeerId, PeerTarget};
use slipstream_types::Clock as _;
use tokio::time::Instant;

use crate::clock::SystemClock;

/// Name of the file in the data directory.
const ORDERS_FILE: &str = "operator.peers.json";
/// Name that a damaged one gets.
const DAMAGED_FILE: &str = "operator.peers.damaged";
/// The form of the file.
const VERSION: u32 = 1;
/// As many added peers, removed peers and bans as there can be, each of the greatest length, take half of it.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// The longest ban that has an end; a clock that was wrong makes none longer.
const BAN_MS_MAX: u64 = 365 * 24 * 3_600_000;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    version: u32,
    added: Vec<PeerTarget>,
    removed: BTreeSet<PeerId>,
    bans: Vec<SavedBan>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedBan {
    peer: PeerId,
    reason: String,
    /// Milliseconds since 1970; none if it holds until it is lifted.
    until_ms: Option<u64>,
}

/// What a file said.
pub(crate) struct Kept {
    pub(crate) orders: Orders,
    /// Why the file cannot be used.
    damage: Option<String>,
    /// What was read; none without a file, or if it cannot be read.
    text: Option<Vec<u8>>,
}

/// Reads the orders of a data directory and changes nothing.
pub(crate) fn read(data_dir: &Path) -> Kept {
    let text = text_of(&data_dir.join(ORDERS_FILE));
    let orders = match &text {
        Ok(Some(text)) => decode(text, SystemClock.now_ms(), Instant::now()),
        Ok(None) => Ok(Orders::default()),
        Err(error) => Err(error.to_string()),
    };
    let text = text.ok().flatten();
    match orders {
        Ok(orders) => Kept { orders, damage: None, text },
        Err(damage) => Kept { orders: Orders::default(), damage: Some(damage), text },
    }
}

/// The text of a file; none if there is no file.
fn text_of(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut text = Vec::new();
    // A byte more shows that there is too much.
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text)?;
    Ok(Some(text))
}

/// The orders of a file's text; bans that have ended meanwhile are left out.
fn decode(text: &[u8], now_ms: u64, now: Instant) -> Result<Orders, String> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("it is longer than {FILE_BYTES_MAX} bytes"));
    }
    let Version { version } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if version != VERSION {
        return Err(format!("it has version {version}, and this program knows {VERSION}"));
    }
    let saved: Saved = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let ban = |SavedBan { peer, reason, until_ms }: SavedBan| {
        let until = match until_ms {
            None => BanEnd::Never,
            Some(until_ms) => {
                let left = until_ms.checked_sub(now_ms).filter(|left| *left > 0)?;
                BanEnd::At(now + Duration::from_millis(left.min(BAN_MS_MAX)))
            }
        };
        Some(Ban { peer, by: BannedBy::Operator, reason, until })
    };
    let Saved { added, removed, bans, .. } = saved;
    Ok(Orders { added, removed, bans: bans.into_iter().filter_map(ban).collect() })
}

fn encode(orders: Orders, now_ms: u64, now: Instant) -> serde_json::Result<String> {
    let until_ms = |until: BanEnd| {
        let left = until.instant()?.saturating_duration_since(now);
        Some(now_ms.saturating_add(left.as_millis() as u64))
    };
    let ban = |ban: Ban| SavedBan { peer: ban.peer, reason: ban.reason, until_ms: until_ms(ban.until) };
    let saved = Saved {
        version: VERSION,
        added: orders.added,
        removed: orders.removed,
        bans: orders.bans.into_iter().map(ban).collect(),
    };
    serde_json::to_string_pretty(&saved)
}

/// The file of a data directory whose lock is held.
pub(crate) struct OrdersFile {
    path: PathBuf,
    writing: Mutex<()>,
}

impl OrdersFile {
    /// The file that [`read`] has read, out of the way if it is damaged. It was read before the lock was taken.
    ///
    /// # Errors
    /// If it holds something else by now: the orders of another process would be lost.
    pub(crate) fn establish(data_dir: &Path, kept: Kept) -> io::Result<OrdersFile> {
        let path = data_dir.join(ORDERS_FILE);
        if text_of(&path).ok().flatten() != kept.text {
            let changed = format!("{} changed while this node started; start it again", path.display());
            return Err(io::Error::other(changed));
        }
        if let Some(problem) = kept.damage {
            let aside = data_dir.join(DAMAGED_FILE);
            let moved = fs::rename(&path, &aside).map_or_else(
                |error| format!("it stays where it is: {error}"),
                |()| format!("it is set aside as {}", aside.display()),
            );
            tracing::warn!(
                file = %path.display(), %problem, %moved,
                "the operator's orders on peers cannot be read and hold no more: see `slipstream peers list`, and order anew"
            );
        }
        let Orders { added, removed, bans } = &kept.orders;
        if kept.orders != Orders::default() {
            tracing::info!(
                added = added.len(),
                removed = removed.len(),
                bans = bans.len(),
                "the operator's orders on peers of before this start hold: `slipstream peers list` shows them"
            );
        }
        Ok(OrdersFile { path, writing: Mutex::default() })
    }

    /// Writes the orders that stand now as a whole. Of several writers the last one writes the newest.
    pub(crate) fn write(&self, orders: impl FnOnce() -> Orders) -> io::Result<()> {
        let _writing = self.writing.lock();
        let text = encode(orders(), SystemClock.now_ms(), Instant::now())?;
        let fresh = self.path.with_extension("new");
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        writeln!(file, "{text}").and_then(|()| file.sync_all())?;
        fs::rename(&fresh, &self.path)?;
        // The new name lasts once its directory does.
        match self.path.parent() {
            Some(dir) => File::open(dir)?.sync_all(),
            None => Ok(()),
        }
    }

    /// Where it lies.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use slipstream_types::SecretKey;

    use super::*;

    fn id(seed: u8) -> PeerId {
        SecretKey::from_seed([seed; 32]).public()
    }

    fn ban(seed: u8, until: BanEnd) -> Ban {
        Ban { peer: id(seed), by: BannedBy::Operator, reason: "too \"loud\"".into(), until }
    }

    fn orders(now: Instant) -> Orders {
        Orders {
            added: vec![format!("{}@peer.example:7400", id(1)).parse().unwrap()],
            removed: BTreeSet::from([id(2)]),
            bans: vec![ban(3, BanEnd::Never), ban(4, BanEnd::At(now + Duration::from_millis(2_500)))],
        }
    }

    /// Goal: the form of the file is pinned, times are those of the clock, and what has ended is gone.
    #[test]
    fn the_form_is_pinned() {
        let now = Instant::now();
        let text = encode(orders(now), 1_000, now).unwrap();
        let [a, b, c, d] = [1, 2, 3, 4].map(id);
        let expected = format!(
            r#"{{
  "version": 1,
  "added": [
    "{a}@peer.example:7400"
  ],
  "removed": [
    "{b}"
  ],
  "bans": [
    {{
      "peer": "{c}",
      "reason": "too \"loud\"",
      "until_ms": null
    }},
    {{
      "peer": "{d}",
      "reason": "too \"loud\"",
      "until_ms": 3500
    }}
  ]
}}"#
        );
        assert_eq!(text, expected);
        assert_eq!(decode(text.as_bytes(), 1_000, now).unwrap(), orders(now));
        let later = decode(text.as_bytes(), 3_500, now).unwrap();
        assert_eq!(later.bans, [ban(3, BanEnd::Never)]);
        let year = Duration::from_millis(BAN_MS_MAX);
        let wrong_clock = text.replace("\"until_ms\": 3500", &format!("\"until_ms\": {}", u64::MAX));
        let bans = decode(wrong_clock.as_bytes(), 0, now).unwrap().bans;
        assert_eq!(bans[1].until, BanEnd::At(now + year));
    }

    /// Goal: orders come back, and whatever lies there in their place costs the orders alone.
    #[test]
    fn a_damaged_file_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(ORDERS_FILE);
        assert!(read(dir.path()).damage.is_none());
        let file = OrdersFile::establish(dir.path(), read(dir.path())).unwrap();
        let now = Instant::now();
        fs::write(path.with_extension("new"), "a crash's leftover").unwrap();
        file.write(|| orders(now)).unwrap();
        let kept = read(dir.path());
        assert!(kept.damage.is_none() && kept.orders.added == orders(now).added);
        assert_eq!((kept.orders.removed, kept.orders.bans.len()), (orders(now).removed, 2));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let whole = fs::read_to_string(&path).unwrap();
        for (damaged, problem) in [
            (whole[..whole.len() / 2].to_owned(), "EOF"),
            (whole.replace("\"version\": 1", "\"version\": 2"), "version 2"),
            (whole.replace("\"removed\"", "\"gone\""), "gone"),
            (" ".repeat(FILE_BYTES_MAX as usize + 1), "longer than"),
            (String::new(), "EOF"),
        ] {
            fs::write(&path, &damaged).unwrap();
            let kept = read(dir.path());
            assert!(kept.orders == Orders::default());
            let found = kept.damage.as_deref().unwrap();
            assert!(found.contains(problem), "{found}");
            OrdersFile::establish(dir.path(), kept).unwrap();
            assert!(!path.exists());
            assert_eq!(fs::read_to_string(dir.path().join(DAMAGED_FILE)).unwrap(), damaged);
        }
    }

    /// Goal: orders that another process wrote between the reading and the lock are neither overwritten nor set aside.
    #[test]
    fn a_file_that_changed_meanwhile_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(ORDERS_FILE);
        let file = OrdersFile::establish(dir.path(), read(dir.path())).unwrap();
        for before in [None, Some("{")] {
            let _ = fs::remove_file(&path);
            if let Some(text) = before {
                fs::write(&path, text).unwrap();
            }
            let kept = read(dir.path());
            file.write(|| orders(Instant::now())).unwrap();
            let error = OrdersFile::establish(dir.path(), kept).err().unwrap();
            assert!(error.to_string().contains("changed while this node started"), "{error}");
            assert_eq!(read(dir.path()).orders.removed, orders(Instant::now()).removed);
            assert!(!dir.path().join(DAMAGED_FILE).exists());
        }
    }
}
