//! The latest events at the node, worded as on its page: a thread follows the stream, and the screen shows what it
//! received.

use std::{collections::VecDeque, sync::mpsc::SyncSender, time::Instant};

use ratatui::{style::Style, text::Line};
use slipstream_status::events::{Event, PeerChange};

use super::{lines::Lines, sections::called};
use crate::{
    ask::{NodeUrl, follow},
    events::{RETRY, SILENCE_MAX, StreamEvent, id, next},
    output::pause,
    status::units::duration,
};

/// Maximum number of events that are kept and shown; the page shows as many.
pub(super) const EVENTS_MAX: usize = 20;

/// News from the stream of events.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum StreamNews {
    /// The stream is open.
    Open,
    /// An event, as a sentence.
    Event(String),
    /// The stream ended, for this reason.
    Closed(String),
}

/// The latest events, newest first.
#[derive(Debug, Default)]
pub(super) struct Events {
    pub(super) told: VecDeque<(Instant, String)>,
    /// Why no events arrive.
    closed: Option<String>,
}

impl Events {
    pub(super) fn hear(&mut self, heard: StreamNews, now: Instant) {
        match heard {
            StreamNews::Open => self.closed = None,
            StreamNews::Closed(why) => self.closed = Some(why),
            StreamNews::Event(text) => {
                self.told.truncate(EVENTS_MAX - 1);
                self.told.push_front((now, text));
            }
        }
    }

    /// The section on the screen.
    pub(super) fn lines(&self, now: Instant, width: usize) -> Vec<Line<'static>> {
        let mut lines = Lines::new("Events, and how long ago", width);
        match &self.closed {
            Some(why) => lines.below(&format!("no events: {why}; asking again"), Style::new().yellow()),
            None if self.told.is_empty() => {
                lines.below("no event since this command started", Style::new().dim())
            }
            None => {}
        }
        for (at, text) in &self.told {
            let age = now.saturating_duration_since(*at).as_secs_f64();
            lines.fact(&duration(age), Some(text.clone()));
        }
        lines.end()
    }
}

/// Follows the stream until the receiver is dropped. A stream that ends is requested again, from its last event.
pub(super) fn listen(node: &NodeUrl, heard: &SyncSender<StreamNews>) {
    let mut last = None;
    while let Some(why) = hear(node, &mut last, heard) {
        if heard.send(StreamNews::Closed(why)).is_err() {
            return;
        }
        pause(RETRY);
    }
}

/// Reads a stream to its end, and returns why it ended; `None` if the receiver was dropped.
fn hear(node: &NodeUrl, last: &mut Option<String>, heard: &SyncSender<StreamNews>) -> Option<String> {
    let headers = last.as_ref().map_or_else(String::new, |last| format!("Last-Event-ID: {last}\r\n"));
    let mut stream = match follow(node, "/v1/events", &headers, SILENCE_MAX) {
        Ok(stream) => stream,
        Err(error) => return Some(error.to_string()),
    };
    heard.send(StreamNews::Open).ok()?;
    loop {
        match next(&mut stream) {
            Ok(Some(told)) => {
                // The status already shows heads.
                if told.name != "head" {
                    heard.send(StreamNews::Event(sentence(&told))).ok()?;
                }
                // Checked, because it becomes a header of the next request.
                if let Some(told) = told.id.filter(|told| id(told).is_ok()) {
                    *last = Some(told);
                }
            }
            Ok(None) => return Some("the node ended the stream".into()),
            Err(error) => return Some(format!("the stream broke off ({error})")),
        }
    }
}

/// An event as a sentence. For an event of a later version, its name.
fn sentence(told: &StreamEvent) -> String {
    match serde_json::from_str::<Event>(&told.json) {
        Ok(Event::Head { number, .. }) => format!("head {number}"),
        Ok(Event::Phase { state, phase, .. }) => format!("{state}: {phase}"),
        Ok(Event::Blocker { blocker: Some(blocker) }) => format!("not ready: {}", blocker.text),
        Ok(Event::Blocker { blocker: None }) => "nothing blocks the node any longer".into(),
        Ok(Event::Peer { peer, name, change, reason }) => {
            let change = match change {
                PeerChange::Connected => "connected",
                PeerChange::Ended => "ended",
                PeerChange::Banned => "banned",
            };
            let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
            format!("peer {} {change}{reason}", called(name.as_ref(), peer))
        }
        Ok(Event::Snapshot { number }) => format!("snapshot of batch {number}"),
        Err(_) if told.name == "lost" => lost(&told.json),
        Err(_) => told.name.replace('_', " "),
    }
}

/// The number of missed events as a text; null means a restart, after which it is unknown.
fn lost(json: &str) -> String {
    let event: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
    match event["lost"].as_u64() {
        Some(lost) => format!("{lost} events were missed"),
        None => "the node has restarted".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
        sync::mpsc::sync_channel,
    };

    use serde_json::{Value, json};
    use slipstream_status::fixture::key;

    use super::*;
    use crate::top::sections::short;

    /// Goal: every event has a sentence, and one that is unknown to this version has its name.
    #[test]
    fn events_are_sentences() {
        let said = |name: &str, event: Value| {
            sentence(&StreamEvent { id: None, name: name.into(), json: event.to_string() })
        };
        let blocker =
            json!({ "reason": "behind", "text": "20 batches are ahead", "alert": false, "retry_ms": null });
        let banned =
            json!({ "event": "peer", "peer": key(3), "change": "banned", "reason": "a wrong proof" });
        assert_eq!(said("peer", banned), format!("peer {} banned: a wrong proof", short(key(3))));
        let connected = json!({ "event": "peer", "peer": key(3), "change": "connected" });
        assert_eq!(said("peer", connected), format!("peer {} connected", short(key(3))));
        let named = json!({ "event": "peer", "peer": key(3), "name": "alpha", "change": "ended" });
        assert_eq!(said("peer", named), "peer alpha ended");
        for (name, event, words) in [
            ("blocker", json!({ "event": "blocker", "blocker": blocker }), "not ready: 20 batches are ahead"),
            ("blocker", json!({ "event": "blocker", "blocker": null }), "nothing blocks the node any longer"),
            ("snapshot", json!({ "event": "snapshot", "number": 200 }), "snapshot of batch 200"),
            ("lost", json!({ "event": "lost", "lost": 3 }), "3 events were missed"),
            ("lost", json!({ "event": "lost", "lost": null }), "the node has restarted"),
            ("new_kind", json!({ "event": "new_kind" }), "new kind"),
        ] {
            assert_eq!(said(name, event), words);
        }
    }

    /// Goal: a stream resumes where the last one ended, heads are omitted, and its end is reported.
    #[test]
    fn a_stream_is_heard_to_its_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let node = NodeUrl::of(listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            let events = "id: 7-2\nevent: head\ndata: {\"event\":\"head\"}\n\n\
                          id: 7-3\nevent: snapshot\ndata: {\"event\":\"snapshot\",\"number\":8}\n\n";
            // No request header accepts these.
            let wrong = ["", "7\rX: y", &"7".repeat(65)]
                .map(|id| {
                    format!("id: {id}\nevent: snapshot\ndata: {{\"event\":\"snapshot\",\"number\":9}}\n\n")
                })
                .concat();
            stream.write_all(format!("HTTP/1.0 200 OK\r\n\r\n{events}{wrong}").as_bytes()).unwrap();
            String::from_utf8(request).unwrap()
        });
        let (sender, heard) = sync_channel(8);
        let mut last = Some("7-1".to_owned());
        let why = hear(&node, &mut last, &sender).unwrap();
        assert_eq!((why.as_str(), last.as_deref()), ("the node ended the stream", Some("7-3")));
        let heard: Vec<StreamNews> = heard.try_iter().collect();
        let snapshot = |number| StreamNews::Event(format!("snapshot of batch {number}"));
        assert_eq!(heard, [StreamNews::Open, snapshot(8), snapshot(9), snapshot(9), snapshot(9)]);
        let request = server.join().unwrap();
        assert!(request.contains("\r\nLast-Event-ID: 7-1\r\n"), "{request}");
        // Bound but not listening, so that no other process gets its port.
        let held = tokio::net::TcpSocket::new_v4().unwrap();
        held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let closed = NodeUrl::of(held.local_addr().unwrap());
        assert!(hear(&closed, &mut last, &sender).unwrap().contains("nothing listens"));
    }
}
