//! The node's own bans in a [file](crate::kept_file) of the data directory, so that a peer that was proven wrong gains
//! nothing from a restart. A background task writes the file soon after a change.

use std::{io, path::Path, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use slipstream_network::{Ban, BannedBy, Network, OWN_BAN_MAX, PeerId};
use slipstream_types::Clock as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    clock::SystemClock,
    kept_file::{FileForm, KeptContent, KeptFile, ban_end, until_ms},
    tasks::TaskError,
};

/// The file's name in the data directory.
pub const BANS_FILE: &str = "node.bans.json";

const FORM: FileForm = FileForm {
    name: BANS_FILE,
    damaged_name: "node.bans.damaged",
    version: 1,
    // The maximum number of bans, each of the greatest length, takes a quarter of this.
    bytes_max: 4 << 20,
    loss: "cannot read this node's own bans from before this start, and they are no longer in force: the node bans a peer again \
        once it proves it wrong again; `slipstream peers ban` bans the peers that the earlier log names",
};
/// Time between two writes, so that an attacker with ever new keys causes less disk load than one batch a second.
const WRITE_EVERY: Duration = Duration::from_secs(5);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    version: u32,
    bans: Vec<SavedBan>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedBan {
    peer: PeerId,
    reason: String,
    /// Milliseconds since 1970.
    until_ms: u64,
}

/// Reads the bans of a data directory and changes nothing.
pub fn read(data_dir: &Path) -> KeptContent<Vec<Ban>> {
    FORM.read(data_dir, |text| decode(text, SystemClock.now_ms(), Instant::now()))
}

/// Parses the bans; those that have ended meanwhile are left out.
fn decode(text: &[u8], now_ms: u64, now: Instant) -> serde_json::Result<Vec<Ban>> {
    let ban = |SavedBan { peer, reason, until_ms }: SavedBan| {
        let until = ban_end(until_ms, OWN_BAN_MAX, now_ms, now)?;
        Some(Ban { peer, by: BannedBy::Node, reason, until })
    };
    let saved: Saved = serde_json::from_slice(text)?;
    Ok(saved.bans.into_iter().filter_map(ban).collect())
}

fn encode(bans: Vec<Ban>, now_ms: u64, now: Instant) -> serde_json::Result<String> {
    let ban = |Ban { peer, reason, until, .. }: Ban| {
        Some(SavedBan { peer, reason, until_ms: until_ms(until, now_ms, now)? })
    };
    let bans = bans.into_iter().filter_map(ban).collect();
    serde_json::to_string_pretty(&Saved { version: FORM.version, bans })
}

/// The file of bans in a data directory that this process has locked.
pub struct BansFile(KeptFile);

impl BansFile {
    /// Takes over the file that [`read`] has read, and sets it aside if it is damaged.
    ///
    /// # Errors
    /// If the file's content has changed since: the bans of another process would be lost.
    pub fn establish(data_dir: &Path, kept: KeptContent<Vec<Ban>>) -> io::Result<BansFile> {
        let file = FORM.establish(data_dir, &kept)?;
        if !kept.content.is_empty() {
            tracing::info!(
                bans = kept.content.len(),
                "this node's own bans from before this start are still in force: `slipstream peers list` shows them"
            );
        }
        Ok(BansFile(file))
    }

    /// Writes all bans in force. With concurrent writers, the last one writes the newest bans.
    pub fn write(&self, bans: impl FnOnce() -> Vec<Ban>) -> io::Result<()> {
        self.0.write(|| encode(bans(), SystemClock.now_ms(), Instant::now()))
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

/// Writes the network's own bans as they change, and at the end. Failed writes are retried.
pub async fn keep(
    network: Arc<Network>,
    file: Arc<BansFile>,
    shutdown: CancellationToken,
) -> Result<(), TaskError> {
    let mut is_failing = false;
    loop {
        if !is_failing {
            tokio::select! {
                biased;
                () = network.own_bans_changed() => {}
                () = shutdown.cancelled() => return Ok(()),
            }
        }
        let (read, written) = (network.clone(), file.clone());
        let result = tokio::task::spawn_blocking(move || written.write(|| read.own_bans())).await?;
        if let Err(error) = &result
            && !is_failing
        {
            tracing::warn!(
                file = %file.path().display(), %error,
                "cannot write this node's bans, and a restart would lose the newest: check that its disk has space and that it \
                 may write there"
            );
        }
        is_failing = result.is_err();
        tokio::select! {
            () = shutdown.cancelled() => {
                if is_failing {
                    return Ok(());
                }
            }
            () = tokio::time::sleep(WRITE_EVERY) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use slipstream_network::BanEnd;
    use slipstream_types::SecretKey;

    use super::*;

    fn ban(seed: u8, until: BanEnd) -> Ban {
        let peer = SecretKey::from_seed([seed; 32]).public();
        Ban { peer, by: BannedBy::Node, reason: "a \"proven\" lie".into(), until }
    }

    /// Goal: the form of the file is fixed, times follow the clock, and no clock jump makes a ban longer than the
    /// node's longest.
    #[test]
    fn the_form_is_pinned() {
        let now = Instant::now();
        let bans = vec![
            ban(1, BanEnd::At(now + OWN_BAN_MAX)),
            ban(2, BanEnd::At(now + Duration::from_millis(2_500))),
        ];
        let text = encode(bans.clone(), 1_000, now).unwrap();
        let expected = format!(
            r#"{{
  "version": 1,
  "bans": [
    {{
      "peer": "{}",
      "reason": "a \"proven\" lie",
      "until_ms": 3601000
    }},
    {{
      "peer": "{}",
      "reason": "a \"proven\" lie",
      "until_ms": 3500
    }}
  ]
}}"#,
            bans[0].peer, bans[1].peer
        );
        assert_eq!(text, expected);
        assert_eq!(decode(text.as_bytes(), 1_000, now).unwrap(), bans);
        let later = decode(text.as_bytes(), 3_500, now).unwrap();
        assert_eq!(later.iter().map(|ban| ban.peer).collect::<Vec<_>>(), [bans[0].peer]);
        // The clock was ahead when the file was written.
        let ahead = encode(bans.clone(), 1 << 50, now).unwrap();
        let read = decode(ahead.as_bytes(), 1_000, now).unwrap();
        assert!(read.len() == 2 && read.iter().all(|ban| ban.until == BanEnd::At(now + OWN_BAN_MAX)));
        for wrong in ["null", "\"soon\"", "-1", "1e99"] {
            assert!(decode(text.replace("3500", wrong).as_bytes(), 1_000, now).is_err(), "{wrong}");
        }
    }

    /// Goal: bans are restored, up to the maximum number at the greatest length. A damaged file loses only these, and
    /// is set aside unchanged.
    #[test]
    fn bans_come_back_and_a_damaged_file_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FORM.name);
        let file = BansFile::establish(dir.path(), read(dir.path())).unwrap();
        let end = BanEnd::At(Instant::now() + OWN_BAN_MAX);
        let longest = |_| Ban { reason: "\"".repeat(256), ..ban(3, end) };
        file.write(|| (0..1_024).map(longest).collect()).unwrap();
        assert!(fs::metadata(&path).unwrap().len() < FORM.bytes_max / 4);
        let kept = read(dir.path());
        assert_eq!((kept.content.len(), kept.damage), (1_024, None));
        file.write(|| vec![ban(4, end)]).unwrap();
        let whole = fs::read_to_string(&path).unwrap();
        for damaged in [whole[..whole.len() / 2].to_owned(), whole.replace("bans", "bars"), "[".repeat(9_999)]
        {
            fs::write(&path, &damaged).unwrap();
            let kept = read(dir.path());
            assert!(kept.content.is_empty() && kept.damage.is_some());
            BansFile::establish(dir.path(), kept).unwrap();
            assert_eq!(fs::read_to_string(dir.path().join(FORM.damaged_name)).unwrap(), damaged);
            assert!(!path.exists());
        }
    }
}
