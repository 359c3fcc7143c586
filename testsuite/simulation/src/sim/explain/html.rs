//! A run as one HTML page without a script.

use std::fmt::Write as _;

use super::{Event, Explained};
use slipnet::report::escaped;

const STYLE: &str = include_str!("page.css");

impl Explained {
    /// Renders the timeline as one self-contained HTML page, for light and dark mode, and for a phone 360 px wide.
    pub fn to_html(&self) -> String {
        let title = escaped(&self.title);
        let kind = if self.failure.is_some() { "bad" } else { "good" };
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n\
             <link rel=\"icon\" href=\"data:,\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
             <h1>{title}</h1>\n<p class=\"{kind}\" id=\"verdict\">{}</p>\n",
            escaped(&self.verdict())
        );
        list(&mut page, "Participants", &self.cast);
        for stand in &self.stands {
            let _ = write!(page, "<h2>{}</h2>\n<ul>\n", escaped(&stand.what));
            for line in stand.facts.iter().chain(&stand.peers) {
                let _ = writeln!(page, "<li>{}</li>", escaped(line));
            }
            page.push_str("</ul>\n");
        }
        page.push_str("<h2>Timeline</h2>\n<ol id=\"timeline\">\n");
        self.recording.events.iter().for_each(|event| item(&mut page, event));
        page.push_str("</ol>\n");
        if self.recording.left_out > 0 {
            let _ = writeln!(page, "<p>{} later events are not shown.</p>", self.recording.left_out);
        }
        let count = self.recording.routine.len();
        let _ =
            writeln!(page, "<details>\n<summary>The last {count} requests, answers and jobs</summary>\n<ol>");
        self.recording.routine.iter().for_each(|event| item(&mut page, event));
        page.push_str("</ol>\n</details>\n</main>\n</body>\n</html>\n");
        page
    }
}

fn list(page: &mut String, title: &str, lines: &[String]) {
    let _ = write!(page, "<h2>{}</h2>\n<ul>\n", escaped(title));
    for line in lines {
        let _ = writeln!(page, "<li>{}</li>", escaped(line));
    }
    page.push_str("</ul>\n");
}

fn item(page: &mut String, event: &Event) {
    if event.folded > 0 {
        let _ = writeln!(page, "<li class=\"folded\">{} requests, answers and jobs</li>", event.folded);
    }
    let (at, kind) = (event.at as f64 / 1e6, event.kind.name());
    let text = escaped(&event.text);
    let _ =
        writeln!(page, "<li class=\"{kind}\"><time>{at:.3} s</time> <b>{kind}</b> <span>{text}</span></li>");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{EndState, Kind, Recording};
    use super::*;

    fn explained() -> Explained {
        let mut recording = Recording::default();
        recording.add(1_000, Kind::Routine, "node 0 asks 1 (0)".into());
        recording.add(2_000, Kind::Lie, "server 1 lies to node 0 (0): Body".into());
        recording.add(3_000, Kind::Ban, "node 0 bans 1: <b>".into());
        let stand = EndState {
            what: "node 0: stuck".into(),
            facts: vec!["waits: a peer".into()],
            peers: vec!["server 1 (lies: Body): banned".into()],
        };
        Explained {
            title: "seed 7, scenario Liars".into(),
            failure: Some("liveness: a node is not caught up".into()),
            took: Duration::from_millis(3_500),
            cast: vec!["server 1: lies: Body".into()],
            stands: vec![stand],
            recording,
        }
    }

    /// Goal: a reader finds the liars, the consequences, and how each node stood; a peer's text stays text.
    #[test]
    fn both_forms_tell_the_same() {
        let (text, page) = (explained().to_string(), explained().to_html());
        for part in [
            "server 1 lies to node 0 (0): Body",
            "waits: a peer",
            "server 1 (lies: Body): banned",
            "failed after 3.500 s",
        ] {
            assert!(text.contains(part) && page.contains(part), "{part}: {text}{page}");
        }
        assert!(text.contains("… 1 requests, answers and jobs"), "{text}");
        assert!(page.contains("bans 1: &lt;b&gt;") && !page.contains("bans 1: <b>"), "{page}");
        assert!(!page.contains("<script"), "{page}");
    }
}
