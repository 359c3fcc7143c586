//! Formats a run's figures as a table.

use std::fmt;

use super::{Limit, LoadSummary, Reads};
use crate::load::{audit::AuditFigures, feed::HeadNews, protocol::ReadWay};

impl fmt::Display for LoadSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (offered, achieved) = (self.offered_per_second, self.achieved_per_second);
        writeln!(f, "workload        {}, {} for {:.1} s", self.workload, self.rate, self.duration_seconds)?;
        writeln!(f, "offered         {} transactions, {offered:.1} tx/s", self.offered)?;
        let (capacity, processes) = (self.capacity_per_second, self.generators);
        writeln!(f, "generators      {processes} processes, proved {capacity:.0} tx/s")?;
        writeln!(f, "sent            {}, {:.1} tx/s in time", self.sent, self.sent_per_second)?;
        writeln!(f, "accepted        {} ({} given up)", self.accepted, self.given_up)?;
        for (reason, count) in &self.refused {
            writeln!(f, "refused         {count} times: {reason}")?;
        }
        if self.plugged + self.resent + self.displaced > 0 {
            let (plugged, resent, displaced) = (self.plugged, self.resent, self.displaced);
            writeln!(f, "nonces          {plugged} plugged, {resent} sent again, {displaced} displaced")?;
        }
        writeln!(f, "committed       {} in {} batches, {achieved:.1} tx/s", self.committed, self.batches)?;
        match self.limited_by {
            Some(Limit::Generators) => {
                writeln!(
                    f,
                    "limit           the generators: the figures say nothing about the chain; use more --generators or a lower rate"
                )?;
            }
            Some(Limit::Node) => writeln!(f, "limit           the nodes")?,
            None => {}
        }
        if let Some(latency) = &self.commit_ms {
            writeln!(f, "commit latency  {latency}")?;
        }
        for (node, latency) in &self.follow_ms {
            if let Some(latency) = latency {
                writeln!(f, "follow latency  {latency}  {node}")?;
            }
        }
        for Reads { node, way, read_ms, failed, .. } in &self.reads {
            let way = if *way == ReadWay::Http { "http" } else { "websocket" };
            let latency = read_ms.map_or_else(|| "no read was due".to_owned(), |latency| latency.to_string());
            writeln!(f, "read latency    {latency}  {node} by {way}, {failed} failed")?;
        }
        for HeadNews { node, news_ms, missed, .. } in &self.news {
            let latency = news_ms.map_or_else(|| "no head was due".to_owned(), |latency| latency.to_string());
            writeln!(f, "newHeads        {latency}  {node} by websocket, {missed} missed")?;
        }
        let AuditFigures { receipts, receipts_failed, receipts_wrong, balances, balances_wrong, .. } =
            self.audit.figures;
        writeln!(f, "receipts        {receipts} checked: {receipts_failed} failed, {receipts_wrong} wrong")?;
        writeln!(f, "balances        {balances} checked: {balances_wrong} wrong")?;
        let AuditFigures { lost, duplicates, foreign, .. } = self.audit.figures;
        if lost + duplicates + foreign > 0 {
            writeln!(
                f,
                "audit           {lost} lost, {duplicates} committed twice, {foreign} from another program"
            )?;
        }
        Ok(())
    }
}
