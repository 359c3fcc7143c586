//! [`Plan`]: what a devnet is, as its keeper reads it and as targets beyond this machine are written from it.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::{
    devnet::{Devnet, DevnetOptions},
    relay::{Links, Region, Terrain},
};

/// A devnet and what lies between its nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The devnet.
    pub devnet: DevnetOptions,
    /// Where its nodes are, in turn, validators first; no relays if there is none.
    pub regions: Vec<Region>,
}

impl Plan {
    /// The region of a node, by its place.
    pub fn region(&self, index: usize) -> Option<Region> {
        Region::of_node(&self.regions, index)
    }

    /// Starts the devnet, and the links between its nodes if it has regions.
    ///
    /// # Errors
    /// As [`Devnet::start`].
    pub async fn start(&self) -> Result<(Devnet, Option<Links>)> {
        if self.regions.is_empty() {
            return Ok((Devnet::start(self.devnet.clone()).await?, None));
        }
        let links = Links::new(&self.devnet.seed, Terrain::Regions(self.regions.clone()));
        let options = DevnetOptions { outbound: Some(0), ..self.devnet.clone() };
        let devnet = Devnet::start_routed(options, &|from, to, peer| links.lay(from, to, &peer)).await?;
        Ok((devnet, Some(links)))
    }
}
