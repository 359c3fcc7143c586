//! The operator's orders about peers, in a [file](crate::kept_file) of the data directory, so that they survive a
//! restart. Each order rewrites the file.

use std::{collections::BTreeSet, io, path::Path, time::Duration};

use serde::{Deserialize, Serialize};
use slipstream_network::{Ban, BanEnd, BannedBy, Orders, PeerId, PeerTarget};
use slipstream_types::Clock as _;
use tokio::time::Instant;

use crate::{
    clock::SystemClock,
    kept_file::{FileForm, KeptContent, KeptFile, ban_end, until_ms},
};

/// The file's name in the data directory.
pub const ORDERS_FILE: &str = "operator.peers.json";

const FORM: FileForm = FileForm {
    name: ORDERS_FILE,
    damaged_name: "operator.peers.damaged",
    version: 1,
    // The maximum number of added peers, removed peers and bans, each of the greatest length, takes half of this.
    bytes_max: 4 << 20,
    loss: "cannot read the operator's orders about peers, and they are no longer in force: see `slipstream peers list`, and repeat them",
};
/// The longest ban that has an end; a wrong clock cannot make a longer one.
const BAN_MAX: Duration = Duration::from_secs(365 * 24 * 3_600);

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
    /// Milliseconds since 1970; `None` if the ban holds until it is lifted.
    until_ms: Option<u64>,
}

/// Reads the orders of a data directory and changes nothing.
pub fn read(data_dir: &Path) -> KeptContent<Orders> {
    FORM.read(data_dir, |text| decode(text, SystemClock.now_ms(), Instant::now()))
}

/// Parses the orders; bans that have ended meanwhile are left out.
fn decode(text: &[u8], now_ms: u64, now: Instant) -> serde_json::Result<Orders> {
    let ban = |SavedBan { peer, reason, until_ms }: SavedBan| {
        let until = match until_ms {
            None => BanEnd::Never,
            Some(until_ms) => ban_end(until_ms, BAN_MAX, now_ms, now)?,
        };
        Some(Ban { peer, by: BannedBy::Operator, reason, until })
    };
    let Saved { added, removed, bans, .. } = serde_json::from_slice(text)?;
    Ok(Orders { added, removed, bans: bans.into_iter().filter_map(ban).collect() })
}

fn encode(orders: Orders, now_ms: u64, now: Instant) -> serde_json::Result<String> {
    let ban = |Ban { peer, reason, until, .. }: Ban| SavedBan {
        peer,
        reason,
        until_ms: until_ms(until, now_ms, now),
    };
    let saved = Saved {
        version: FORM.version,
        added: orders.added,
        removed: orders.removed,
        bans: orders.bans.into_iter().map(ban).collect(),
    };
    serde_json::to_string_pretty(&saved)
}

/// The file of orders in a data directory that this process has locked.
pub struct OrdersFile(KeptFile);

impl OrdersFile {
    /// Takes over the file that [`read`] has read, and sets it aside if it is damaged.
    ///
    /// # Errors
    /// If the file's content has changed since: the orders of another process would be lost.
    pub fn establish(data_dir: &Path, kept: KeptContent<Orders>) -> io::Result<OrdersFile> {
        let file = FORM.establish(data_dir, &kept)?;
        let Orders { added, removed, bans } = &kept.content;
        if kept.content != Orders::default() {
            tracing::info!(
                added = added.len(),
                removed = removed.len(),
                bans = bans.len(),
                "the operator's orders about peers from before this start are still in force: `slipstream peers list` shows them"
            );
        }
        Ok(OrdersFile(file))
    }

    /// Writes all orders in force. With concurrent writers, the last one writes the newest orders.
    pub fn write(&self, orders: impl FnOnce() -> Orders) -> io::Result<()> {
        self.0.write(|| encode(orders(), SystemClock.now_ms(), Instant::now()))
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

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

    /// Goal: the form of the file is fixed, times follow the clock, and ended bans are dropped.
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
        let wrong_clock = text.replace("\"until_ms\": 3500", &format!("\"until_ms\": {}", u64::MAX));
        let bans = decode(wrong_clock.as_bytes(), 0, now).unwrap().bans;
        assert_eq!(bans[1].until, BanEnd::At(now + BAN_MAX));
    }

    /// Goal: orders are restored, and anything unusable at the file's path loses only the orders.
    #[test]
    fn a_damaged_file_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FORM.name);
        assert!(read(dir.path()).damage.is_none());
        let file = OrdersFile::establish(dir.path(), read(dir.path())).unwrap();
        let now = Instant::now();
        fs::write(crate::small_file::aside(&path), "a crash's leftover").unwrap();
        file.write(|| orders(now)).unwrap();
        let kept = read(dir.path());
        assert!(kept.damage.is_none() && kept.content.added == orders(now).added);
        assert_eq!((kept.content.removed, kept.content.bans.len()), (orders(now).removed, 2));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let whole = fs::read_to_string(&path).unwrap();
        for (damaged, problem) in [
            (whole[..whole.len() / 2].to_owned(), "EOF"),
            (whole.replace("\"version\": 1", "\"version\": 2"), "version 2"),
            (whole.replace("\"removed\"", "\"gone\""), "gone"),
            (" ".repeat(FORM.bytes_max as usize + 1), "longer than"),
            (String::new(), "EOF"),
        ] {
            fs::write(&path, &damaged).unwrap();
            let kept = read(dir.path());
            assert!(kept.content == Orders::default());
            let found = kept.damage.as_deref().unwrap();
            assert!(found.contains(problem), "{found}");
            OrdersFile::establish(dir.path(), kept).unwrap();
            assert!(!path.exists());
            assert_eq!(fs::read_to_string(dir.path().join(FORM.damaged_name)).unwrap(), damaged);
        }
    }

    /// Goal: orders that another process wrote between the read and the lock are neither overwritten nor set aside.
    #[test]
    fn a_file_that_changed_meanwhile_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FORM.name);
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
            assert_eq!(read(dir.path()).content.removed, orders(Instant::now()).removed);
            assert!(!dir.path().join(FORM.damaged_name).exists());
        }
    }

    /// Goal: the file of the first release loads in every later one; a new field has a default.
    #[test]
    fn the_first_releases_file_still_loads() {
        let now = Instant::now();
        let (added, banned) = (id(1), id(3));
        let text = format!(
            r#"{{"version": 1, "added": ["{added}@peer.example:7400"], "removed": [], "bans": [{{"peer": "{banned}", "reason": "", "until_ms": null}}]}}"#
        );
        let orders = decode(text.as_bytes(), 1_000, now).unwrap();
        assert_eq!((orders.added.len(), orders.removed.len(), orders.bans.len()), (1, 0, 1));
    }
}
