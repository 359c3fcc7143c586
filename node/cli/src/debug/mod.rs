//! `slipstream debug bundle`: everything that a helper of an operator needs to see, in one file, without secrets.

mod bundle;
mod collect;
mod secrets;
mod system;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use miette::Result;
use slipstream_base::clock::SystemClock;
use slipstream_types::Clock as _;

use self::bundle::Bundle;
use super::{exit::OrFail as _, output::print, source::ConfigArgs};

#[derive(Debug, Subcommand)]
pub(super) enum DebugCommand {
    /// Write the node's reports and the facts about its machine into one file, without secrets; works even while the
    /// node is stopped
    Bundle(BundleArgs),
}

#[derive(Debug, Args)]
pub(super) struct BundleArgs {
    #[command(flatten)]
    source: ConfigArgs,
    /// The file to write, which must not exist [default: slipstream-debug-TIME.tar.zst]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(super) fn debug(command: &DebugCommand) -> Result<()> {
    let DebugCommand::Bundle(args) = command;
    let config = args.source.load()?;
    let now = humantime::format_rfc3339_seconds(
        std::time::UNIX_EPOCH + std::time::Duration::from_millis(SystemClock.now_ms()),
    );
    let out = args.out.clone().unwrap_or_else(|| {
        let digits: String = now.to_string().chars().filter(|c| c.is_ascii_alphanumeric()).collect();
        format!("slipstream-debug-{digits}.tar.zst").into()
    });
    let holder = collect::holder(&config);
    let mut bundle = Bundle::new(secrets::mask(&config, holder.as_ref()), now.to_string());
    collect::all(&mut bundle, &config, holder.as_ref());
    let missing = bundle.missing().to_vec();
    let bytes = bundle.write(&out).or_fail()?;
    print(&format!("wrote {} ({} KiB): review it before you share it", out.display(), bytes.div_ceil(1024)))?;
    match missing.is_empty() {
        true => Ok(()),
        false => print(&format!("not in it:\n  {}", missing.join("\n  "))),
    }
}
