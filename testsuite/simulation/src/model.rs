//! `slipnet model consensus`: searches the states of the validators' protocol.

use std::{thread, time::Duration};

use anyhow::{Result, ensure};
use clap::Args;
use slipnet::output::print_line;
use slipstream_model::{Options, check};

/// The bounds of the searches. Without `batches` and `views`, each search uses its own default bounds.
#[derive(Args)]
pub struct ModelOptions {
    /// Batches in each search.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=3))]
    batches: Option<u64>,
    /// Views in each search.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=4))]
    views: Option<u64>,
    /// Time for all searches together. A search that exceeds its share reports that it is not exhaustive.
    #[arg(long, default_value_t = 15)]
    minutes: u32,
}

impl ModelOptions {
    /// Runs the searches and prints each one's result.
    ///
    /// # Errors
    /// If a search found a violation, or the output cannot be written.
    pub fn run(&self) -> Result<()> {
        let options = Options {
            batches: self.batches,
            views: self.views,
            limit: Duration::from_secs(60) * self.minutes,
            threads: thread::available_parallelism().map_or(1, usize::from),
        };
        let mut printed = Ok(());
        let report = check(&options, |row| {
            if printed.is_ok() {
                printed = print_line(&row.to_string());
            }
        });
        printed?;
        print_line(&report.summary())?;
        ensure!(report.is_clean(), "a search found a violation of the protocol");
        Ok(())
    }
}
