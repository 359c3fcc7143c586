//! `GET /`: a page for people, which shows the data of `/v1/status` and `/v1/events`. The program contains all files of
//! the page. A policy makes browsers refuse every other source.
//!
//! ```text
//!  page.js (requests, listens) ─▶ sections.js (what is shown) ─▶ dom.js (how), text.js (in which words)
//! ```

use axum::{
    Router,
    http::header::{
        CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    },
    response::{IntoResponse, Response},
    routing::get,
};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Scripts, styles and requests of this address only. Foreign markup is refused, and so is embedding in another page's
/// frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const INDEX: &str = include_str!("index.html");
/// Paths, kinds and texts of the page's files.
const FILES: [(&str, &str, &str); 5] = [
    ("/page/page.css", CSS, include_str!("page.css")),
    ("/page/page.js", SCRIPT, include_str!("page.js")),
    ("/page/sections.js", SCRIPT, include_str!("sections.js")),
    ("/page/dom.js", SCRIPT, include_str!("dom.js")),
    ("/page/text.js", SCRIPT, include_str!("text.js")),
];

/// The page itself, served at the path of JSON-RPC.
pub(super) async fn index() -> Response {
    served(HTML, INDEX)
}

/// The files that the page loads.
pub(super) fn files<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.into_iter().fold(Router::new(), |router, (path, kind, text)| {
        router.route(path, get(move || async move { served(kind, text) }))
    })
}

fn served(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        // The files of one version belong together, so browsers must not mix them with cached ones.
        (CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The quoted texts after a word, in double or single quotes.
    fn quoted(text: &'static str, word: &str) -> impl Iterator<Item = &'static str> {
        text.split(word).skip(1).filter_map(|rest| {
            let quote = rest.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
            rest[1..].split(quote).next()
        })
    }

    /// Goal: the node serves exactly the files that the page loads.
    #[test]
    fn every_file_is_loaded() {
        let mut loaded = BTreeSet::new();
        for word in ["<link rel=\"stylesheet\" href=", "src="] {
            loaded.extend(quoted(INDEX, word).map(|path| format!("/{path}")));
        }
        for (.., text) in FILES {
            loaded.extend(
                quoted(text, " from ").filter_map(|path| Some(format!("/page/{}", path.strip_prefix("./")?))),
            );
        }
        assert_eq!(loaded, BTreeSet::from(FILES.map(|(path, ..)| path.to_owned())));
    }

    /// Goal: a peer's text never becomes markup or code, and everything comes from this node.
    #[test]
    fn nothing_of_others_is_markup() {
        for text in FILES.map(|(.., text)| text).into_iter().chain([INDEX]) {
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "Function(",
                "srcdoc",
                "://",
                "style=",
            ] {
                assert!(!text.contains(word), "{word}");
            }
        }
        assert!(
            !INDEX.contains("<script>") && !INDEX.contains(" on"),
            "the policy refuses scripts in the page"
        );
    }
}
