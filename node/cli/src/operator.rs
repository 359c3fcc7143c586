//! The arguments of commands that order a running node: its address, and its operator's token.

use std::path::PathBuf;

use clap::Args;
use miette::{Result, miette};
use serde::de::DeserializeOwned;
use slipstream_base::{
    lock::{self, LockError},
    operator_token::{OperatorToken, TOKEN_FILE},
};
use slipstream_config::NodeConfig;

use super::{
    ask::{NodeUrl, order, parse},
    exit::{CommandFailure, Exit, OrFail as _},
    source::OverrideArgs,
};

/// A node's address, and its operator's token.
#[derive(Debug, Args)]
pub(super) struct OperatorArgs {
    /// The configuration file of a node on this machine; the token is read from its data directory
    #[arg(long, value_name = "FILE", required_unless_present = "api")]
    config: Option<PathBuf>,
    #[command(flatten)]
    overrides: OverrideArgs,
    /// The API of another node; the token is sent to it, so the connection must be private: https to a proxy, or a
    /// tunnel
    #[arg(long, value_name = "URL", conflicts_with = "config", requires = "token_file")]
    api: Option<String>,
    /// A copy of the file operator.token from the node that --api names
    #[arg(long, value_name = "FILE", requires = "api")]
    token_file: Option<PathBuf>,
}

/// A node's address and the token that authorises orders.
pub(super) struct Operator {
    address: NodeUrl,
    token: OperatorToken,
}

impl OperatorArgs {
    /// Finds the node and the token.
    pub(super) fn find(&self) -> Result<Operator> {
        let config = self.overrides.load_if_named(self.config.as_deref())?;
        match (config, &self.api, &self.token_file) {
            (Some(config), ..) => {
                let address = running(&config)?;
                let token = OperatorToken::load(&config.data_dir.join(TOKEN_FILE)).or_fail()?;
                Ok(Operator { address, token })
            }
            (None, Some(api), Some(token)) => {
                Ok(Operator { address: NodeUrl::parse(api)?, token: OperatorToken::load(token).or_fail()? })
            }
            // The argument rules leave no other case.
            _ => Err(miette!("name a node by --config FILE, or by --api URL and --token-file FILE")),
        }
    }
}

impl Operator {
    /// Gives an order, and parses the answer.
    pub(super) fn order<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: &impl serde::Serialize,
    ) -> Result<T> {
        let body = serde_json::to_string(body).or_fail()?;
        parse(&order(&self.address, method, path, &self.token, &body)?)
    }

    /// Requests a page, and parses the answer.
    pub(super) fn ask<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        parse(&order(&self.address, "GET", path, &self.token, "")?)
    }
}

/// The API address of the node that runs on a configuration. The process that holds the data directory names it, and
/// listens on this port. So a process that merely took over a node's former port never gets the token.
pub(super) fn running(config: &NodeConfig) -> Result<NodeUrl> {
    let dir = config.data_dir.display();
    let api = match lock::check_free(&config.data_dir) {
        Err(LockError::Held { holder, .. }) => match holder.api {
            Some(api) => api,
            None => {
                let text =
                    format!("the data directory {dir} is in use by {holder}, which is not a running node");
                return Err(CommandFailure::new(Exit::TryAgain, text).into());
            }
        },
        free => {
            free.or_fail()?;
            let text = format!("no node runs on the data directory {dir}: start it, and try again");
            return Err(CommandFailure::new(Exit::TryAgain, text).into());
        }
    };
    let configured = config.api.listen;
    let is_configured =
        api.ip() == configured.ip() && (configured.port() == 0 || api.port() == configured.port());
    if !is_configured {
        let text = format!(
            "the node that runs on {dir} answers at {api}, but the configuration says {configured}: restart it with this \
             configuration, or name the node with --api and its token with --token-file"
        );
        return Err(CommandFailure::new(Exit::Config, text).into());
    }
    Ok(NodeUrl::of(api))
}
