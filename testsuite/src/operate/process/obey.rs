//! One-time effects of orders, by this program or by operator commands beside the node.

use std::sync::Arc;

use anyhow::Result;
use tokio::sync::Mutex;

use super::Operated;
use crate::{
    accounts::Account,
    devnet::clear,
    leftovers::RunDir,
    operate::What,
    scenario::{ARCHIVE, flip_row, slipstream},
    target::write_private,
};

/// A queue for commands that send transactions of one account: each command reads the next nonce, and ends once its
/// batch exists.
#[derive(Clone, Default)]
pub(super) struct Turns(Arc<Mutex<()>>);

impl Turns {
    /// Runs `done` once the earlier ones are finished.
    async fn take<T>(&self, done: impl Future<Output = T>) -> T {
        let _turn = self.0.lock().await;
        done.await
    }
}

impl Operated {
    /// Applies an order's one-time effect; lasting effects follow from the state.
    pub(in crate::operate) async fn obey(&mut self, what: &What) -> Result<()> {
        match what {
            What::Join | What::Pause | What::FullDisk | What::SlowDisk(_) | What::ClockJump(_) => Ok(()),
            What::Lie(_) | What::LyingPeers(..) | What::Attack(_) => Ok(()),
            What::Kill => self.kill().await,
            What::Restart | What::Upgrade(_) => {
                self.stop_or_note().await;
                Ok(())
            }
            What::Wipe => {
                self.kill().await?;
                clear(&self.data)
            }
            What::OldData => {
                self.stop_or_note().await;
                tokio::task::block_in_place(|| self.old.keep())
            }
            What::BitFlip(draw) => {
                self.stop_or_note().await;
                tokio::task::block_in_place(|| flip_row(&self.data, *draw))
            }
            What::ExportSnapshot => {
                let archive = self.shared.as_ref().map(|shared| shared.join(ARCHIVE));
                let archive = archive.unwrap_or_else(|| self.data.with_file_name(ARCHIVE));
                let to = format!("file://{}", archive.display());
                let config = self.config.display().to_string();
                let arguments = ["snapshot", "export", "--config", &config, &to].map(str::to_owned);
                self.beside(arguments.to_vec(), None, Turns::default());
                Ok(())
            }
            What::AddValidator(key, fees) => {
                let (key, fees) = (key.to_string(), fees.to_string());
                self.change_validators(&["add", &key, "--fee-recipient", &fees])
            }
            What::RemoveValidator(key) => self.change_validators(&["remove", &key.to_string()]),
        }
    }

    /// Submits a change of the validators. The owner's key is known to everyone who knows the seed.
    fn change_validators(&self, change: &[&str]) -> Result<()> {
        let dir = RunDir::new("owner-")?;
        let file = dir.path().join("owner.key");
        write_private(&file, &Account::owner(&self.seed).key_hex())?;
        let file = file.display().to_string();
        let mut arguments = vec!["validators"];
        arguments.extend(change);
        arguments.extend(["--rpc", &self.api, "--key-file", &file]);
        self.beside(arguments.into_iter().map(str::to_owned).collect(), Some(dir), self.changes.clone());
        Ok(())
    }

    /// Runs `slipstream` with these arguments when its turn comes. The arguments may name files in `dir`. Other orders
    /// do not wait for it.
    fn beside(&self, arguments: Vec<String>, dir: Option<RunDir>, turns: Turns) {
        let (failures, work) = (self.failures.clone(), self.failures.work());
        tokio::spawn(async move {
            let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
            if let Err(error) = turns.take(slipstream(&words)).await {
                failures.note(format_args!("slipstream {}", words[..2].join(" ")), &error);
            }
            drop(dir);
            drop(work);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::{mpsc, oneshot};

    use super::*;

    /// Goal: the second of two simultaneous validator changes is sent when the first has ended, so that they do not
    /// share a nonce.
    #[tokio::test]
    async fn changes_of_one_account_take_turns() {
        let (turns, (says, mut said)) = (Turns::default(), mpsc::unbounded_channel());
        let (batch, comes) = oneshot::channel::<()>();
        let first = {
            let (turns, says) = (turns.clone(), says.clone());
            let change = async move {
                says.send("first sent").unwrap();
                comes.await.unwrap();
                says.send("first ended").unwrap();
            };
            tokio::spawn(async move { turns.take(change).await })
        };
        assert_eq!(said.recv().await, Some("first sent"));
        let second =
            tokio::spawn(async move { turns.take(async move { says.send("second sent").unwrap() }).await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        batch.send(()).unwrap();
        first.await.unwrap();
        second.await.unwrap();
        assert_eq!([said.recv().await, said.recv().await], [Some("first ended"), Some("second sent")]);
    }
}
