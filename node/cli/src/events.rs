//! `slipstream events`: prints the changes at a node, one line each, until interrupted.

use std::{
    io::{self, BufRead, Read},
    time::Duration,
};

use clap::Args;
use miette::Result;

use super::{
    ask::follow,
    exit::is_temporary,
    output::{note, pause, print},
    status::NodeArgs,
};

/// Longest silence before the connection counts as lost: a node sends something every 15 s.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(45);
/// Pause before a request for a new stream after one has ended.
pub(super) const RETRY: Duration = Duration::from_secs(2);
/// Maximum bytes of a line of the stream: a reason of a few KiB fits.
const LINE_BYTES_MAX: u64 = 64 << 10;

#[derive(Debug, Args)]
pub(super) struct EventsArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// Resume after the event with this id, if the node still has the events that followed it
    #[arg(long, value_name = "ID", value_parser = id)]
    after: Option<String>,
}

/// Prints `ID EVENT JSON` for each event. A stream that ends is requested again from its last event, because users
/// follow a node across restarts.
pub(super) fn events(args: &EventsArgs) -> Result<()> {
    let node = args.node.address()?;
    let mut last = args.after.clone();
    loop {
        let headers = last.as_ref().map_or_else(String::new, |last| format!("Last-Event-ID: {last}\r\n"));
        match follow(&node, "/v1/events", &headers, SILENCE_MAX) {
            Ok(mut stream) => loop {
                match next(&mut stream) {
                    Ok(Some(told)) => {
                        print(&format!("{} {} {}", told.id.as_deref().unwrap_or("-"), told.name, told.json))?;
                        last = told.id.or(last);
                    }
                    Ok(None) => break note("the node ended the stream; asking for it again"),
                    Err(error) => {
                        break note(&format!("the stream broke off ({error}); asking for it again"));
                    }
                }
            },
            Err(error) if is_temporary(&error) => note(&error.to_string()),
            Err(error) => return Err(error),
        }
        pause(RETRY);
    }
}

/// One event of the stream.
#[derive(PartialEq, Eq, Debug, Default)]
pub(super) struct StreamEvent {
    pub(super) id: Option<String>,
    pub(super) name: String,
    pub(super) json: String,
}

/// The next event of a stream; `None` at its end. Comments and unknown fields are ignored.
pub(super) fn next(stream: &mut impl BufRead) -> io::Result<Option<StreamEvent>> {
    let mut told = StreamEvent::default();
    loop {
        let mut line = String::new();
        if stream.by_ref().take(LINE_BYTES_MAX).read_line(&mut line)? == 0 {
            return Ok(None);
        }
        if !line.ends_with('\n') {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is too long, or was cut off"));
        }
        let line = line.trim_end_matches(['\r', '\n']);
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => told.name = value.to_owned(),
            "data" => told.json = value.to_owned(),
            "id" => told.id = Some(value.to_owned()),
            _ if line.is_empty() && !told.json.is_empty() => return Ok(Some(told)),
            _ => {}
        }
    }
}

/// Checks an event's id: any text that is valid in a header.
pub(super) fn id(text: &str) -> std::result::Result<String, String> {
    match text.is_empty() || text.len() > 64 || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Err("an event's id comes first in its line of `slipstream events`".into()),
        false => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_between_comments() {
        let text = ": still here\n\nretry: 2000\nid: 7-1\nevent: head\ndata: {\"number\":1}\n\nevent:lost\r\ndata:{\"lost\":null}\r\n\r\nid: 7";
        let mut stream = text.as_bytes();
        let told = next(&mut stream).unwrap().unwrap();
        let expected =
            StreamEvent { id: Some("7-1".into()), name: "head".into(), json: "{\"number\":1}".into() };
        assert_eq!(told, expected);
        let told = next(&mut stream).unwrap().unwrap();
        assert_eq!((told.id, &*told.name, &*told.json), (None, "lost", "{\"lost\":null}"));
        assert!(next(&mut stream).is_err(), "cut off");
        assert_eq!(next(&mut stream).unwrap(), None);
    }

    /// Goal: no server can make this program use ever more memory.
    #[test]
    fn a_line_without_end_is_refused() {
        let mut stream = io::BufReader::new(io::repeat(b'x'));
        assert!(next(&mut stream).is_err());
        assert!(
            id("7-1").is_ok() && id("7\r\nX: y").is_err() && id("").is_err() && id(&"1".repeat(65)).is_err()
        );
    }
}
