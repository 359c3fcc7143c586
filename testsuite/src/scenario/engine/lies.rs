//! Validators that lie: twins of one key, old data, and a program that takes a validator's place.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{
    Stage, assault,
    over::{By, Over},
};
use crate::{
    devnet::{Node, Process, copy_data, files},
    scenario::names::{Place, VALIDATORS},
};

/// What the lies of a stage hold.
#[derive(Default)]
pub(super) struct Lies {
    /// Second nodes of validators' keys.
    twins: BTreeMap<Place, Node>,
    /// Data that is to come back.
    copies: BTreeMap<Place, PathBuf>,
    /// Programs in validators' places.
    liars: BTreeMap<Place, Process>,
}

impl Stage<'_> {
    /// Starts a second node with a validator's key and data. Those of `heard_by` hear it alone; all others hear the first one.
    ///
    /// Both begin where the first one stood: in its view, bound by its votes. A primary's two selves order on if an order was under
    /// way when it stopped. Otherwise the others refuse their orders: these lack the link with the last one, which a primary that
    /// committed it has forgotten.
    pub(super) async fn begin_twin(&mut self, place: Place, heard_by: &[Place]) -> Result<()> {
        let hearing: Vec<Place> = heard_by.iter().copied().filter(|other| *other != place).collect();
        let name = self.names.name(place).to_owned();
        ensure!(
            !hearing.is_empty(),
            "nobody but {name} itself would hear its twin: name others in `heard_by`"
        );
        let peers = hearing.iter().map(|other| Ok(self.node(*other)?.peer_address()));
        let peers = peers.collect::<Result<Vec<String>>>()?;
        let index = self.index(place)?;
        self.stop_node(place).await?;
        let pairs = hearing.iter().map(|other| (place, *other)).collect();
        self.lay_over(Over { by: By::Twin(place), pairs, shape: None })?;
        // Events have places of their own in the list of marks: a second twin of a validator has another name.
        let twin_name = format!("{name}-twin-{}", self.marks.len());
        let made = tokio::task::block_in_place(|| self.devnet.twin_of(index, &twin_name, &peers));
        let mut twin = made.with_context(|| twin_name.clone())?;
        self.release(place)?;
        twin.start()?;
        self.lies.twins.insert(place, twin);
        Ok(())
    }

    /// Ends the second node; everybody hears the first one again.
    pub(super) fn end_twin(&mut self, place: Place) -> Result<()> {
        if let Some(mut twin) = self.lies.twins.remove(&place)
            && let Err(error) = twin.check_alive()
        {
            self.ended.push(format!("{error:#}"));
        }
        self.take_off(By::Twin(place))
    }

    /// Keeps a copy of a node's data.
    pub(super) async fn keep_copy(&mut self, place: Place) -> Result<()> {
        let copy = self.devnet.dir().join(format!("{}-copy-{}", self.names.name(place), self.marks.len()));
        self.stop_node(place).await?;
        let data = self.node(place)?.data();
        tokio::task::block_in_place(|| copy_data(&data, &copy))?;
        self.lies.copies.insert(place, copy);
        self.release(place)
    }

    /// Puts the copy back.
    pub(super) async fn put_back(&mut self, place: Place) -> Result<()> {
        let Some(copy) = self.lies.copies.remove(&place) else { return Ok(()) };
        self.hold(place);
        self.stop_node(place).await?;
        let node = self.node_mut(place)?;
        node.wipe()?;
        let data = node.data();
        tokio::task::block_in_place(|| copy_data(&copy, &data))?;
        self.release(place)
    }

    /// Starts the program that lies with a validator's key, at its address.
    pub(super) async fn begin_liar(&mut self, place: Place, lie: &str) -> Result<()> {
        let program = assault::program()?;
        let name = self.names.name(place).to_owned();
        let others = self.names.find(VALIDATORS).into_iter().filter(|other| *other != place);
        let peers = others.map(|other| Ok(self.node(other)?.peer_address())).collect::<Result<Vec<_>>>()?;
        let genesis = self.devnet.genesis_file();
        let file = self.devnet.dir().join(format!("{name}-{lie}-{}.json", self.marks.len()));
        let log = file.with_extension("log");
        self.stop_node(place).await?;
        let node = self.node(place)?;
        let address = node.peer_address();
        let (_, listen) = address.split_once('@').context("a peer without an address")?;
        let orders = json!({
            "key_file": node.dir().join(files::KEY),
            "listen": listen,
            "peers": peers,
            "genesis": genesis,
        });
        std::fs::write(&file, orders.to_string())
            .with_context(|| format!("cannot write {}", file.display()))?;
        let file = file.to_str().context("the directory's name is not valid UTF-8")?;
        let arguments = ["campaign-child", "lying-validator", "--lie", lie, "--orders", file];
        let mut process = Process::spawn(&program, &arguments, log.clone())?;
        assault::ready(&mut process, &log, &format!("the liar {lie} in place of {name}")).await?;
        self.lies.liars.insert(place, process);
        Ok(())
    }

    /// Ends the program, and starts the validator again.
    pub(super) fn end_liar(&mut self, place: Place) -> Result<()> {
        if let Some(process) = self.lies.liars.remove(&place) {
            self.note_liar(place, process);
        }
        self.release(place)
    }

    /// Ends all lies that go on; a liar that had ended by itself is a finding.
    pub(super) fn end_lies(&mut self) {
        let Lies { twins, liars, .. } = std::mem::take(&mut self.lies);
        for mut twin in twins.into_values() {
            if let Err(error) = twin.check_alive() {
                self.ended.push(format!("{error:#}"));
            }
        }
        for (place, process) in liars {
            self.note_liar(place, process);
        }
    }

    fn note_liar(&mut self, place: Place, mut process: Process) {
        if let Err(error) = process.check_alive() {
            self.ended.push(format!("the liar in place of {}: {error:#}", self.names.name(place)));
        }
    }
}
