//! [`BoundedConnector`]: the HTTP client of an archive. Its answers are bounded whatever a server sends, and its
//! failures repeat no secret.
//!
//! `object_store` reads listings and error texts whole, allocates as much as the server announces, and puts the texts
//! into its errors. This client hides the announced length, and refuses an answer above the limit. The readers of
//! objects set closer limits.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
};

use async_trait::async_trait;
use bytes::Bytes;
use hyper::{
    Method,
    body::{Body, Frame},
};
use object_store::{
    ClientOptions,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
        HttpService, ReqwestConnector,
    },
};

use crate::manifest::MANIFEST_BYTES_MAX;

/// Maximum bytes of an answer that is not an object: the longest is a page of a listing, with 1,000 names.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// Maximum bytes of a server's failure text that are read: S3 begins it with the code and the message.
const FAILURE_BYTES_MAX: usize = 1 << 10;
/// Longest code of a failure that is repeated; S3's longest has half as many characters.
const CODE_CHARS_MAX: usize = 64;
/// Longest word of a message that is repeated: ids of access keys have 20 characters; secret keys, signatures and
/// tokens have more.
const WORD_CHARS_MAX: usize = 19;
/// The text that replaces a longer word.
const HIDDEN: &str = "***";
/// Words of a failure that S3 reports under the status of success. `object_store` looks for these words in answers to
/// deletions. If it finds one, it puts the whole answer into its error.
const FAILURE_WORDS: [&str; 2] = ["InternalError", "SlowDown"];

#[derive(Debug)]
pub(crate) struct BoundedConnector;

impl HttpConnector for BoundedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(BoundedClient(ReqwestConnector::default().connect(options)?)))
    }
}

#[derive(Debug)]
struct BoundedClient(HttpClient);

#[async_trait]
impl HttpService for BoundedClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let is_object = request.method() == Method::GET && request.uri().query().is_none();
        let is_post = request.method() == Method::POST;
        let (parts, body) = self.0.execute(request).await?.into_parts();
        let body = if parts.status.is_success() {
            let left = if is_object { MANIFEST_BYTES_MAX } else { PAGE_BYTES_MAX };
            let bounded = Bounded { body, left };
            match is_post {
                true => HttpResponseBody::from(said_of_deletion(bounded).await?),
                false => HttpResponseBody::new(bounded),
            }
        } else {
            said_of_failure(body).await.into()
        };
        Ok(HttpResponse::from_parts(parts, body))
    }
}

/// An answer that may bring `left` more bytes.
struct Bounded {
    body: HttpResponseBody,
    left: usize,
}

#[derive(Debug, thiserror::Error)]
#[error("the server's answer exceeds the longest valid answer")]
struct TooLong;

impl Body for Bounded {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
            Some(Ok(frame)) => frame,
            other => return Poll::Ready(other),
        };
        // Nobody reads what comes after the data.
        let Ok(data) = frame.into_data() else { return Poll::Ready(None) };
        // A cut answer would mean something else.
        if data.len() > self.left {
            return Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Decode, TooLong))));
        }
        self.left -= data.len();
        Poll::Ready(Some(Ok(Frame::data(data))))
    }
}

/// Reads the beginning of a server's failure text, and keeps what may be repeated. If the server breaks off, the text
/// ends there, and the error still has the status.
async fn said_of_failure(mut body: HttpResponseBody) -> String {
    let mut said = Vec::new();
    while said.len() < FAILURE_BYTES_MAX {
        let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        let Some(Ok(Ok(data))) = frame.map(|frame| frame.map(Frame::into_data)) else { break };
        said.extend(data.iter().take(FAILURE_BYTES_MAX - said.len()));
    }
    repeatable(&String::from_utf8_lossy(&said))
}

/// Reads an answer to a deletion, which must be complete. If the answer reports a failure, only the failure's word and
/// the text that may be repeated remain. Messages about single objects stay as they are: S3 puts no part of the request
/// into them.
async fn said_of_deletion(mut body: Bounded) -> Result<Bytes, HttpError> {
    let mut said = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        if let Ok(data) = frame?.into_data() {
            said.extend(data);
        }
    }
    let failure = failure_in(&String::from_utf8_lossy(&said));
    Ok(failure.map_or_else(|| said.into(), Bytes::from))
}

fn failure_in(said: &str) -> Option<String> {
    let word = FAILURE_WORDS.into_iter().find(|word| said.contains(*word))?;
    Some(format!("{word} ({})", repeatable(said)))
}

/// Returns code and message of S3's XML, for logs, the status and bundles. The rest of the XML may repeat the session
/// token, the id of the access key, and the text that was signed.
fn repeatable(said: &str) -> String {
    let is_code =
        |code: &&str| code.len() <= CODE_CHARS_MAX && code.bytes().all(|c| c.is_ascii_alphanumeric());
    let code = element(said, "Code").filter(is_code).map(str::to_owned);
    let message = element(said, "Message").map(|message| {
        // The message cannot forge a line of a log.
        let printable = message.replace(|c: char| !c.is_ascii_graphic(), " ");
        let words = printable.split_ascii_whitespace();
        let shown = words.map(|word| if word.len() > WORD_CHARS_MAX { HIDDEN } else { word });
        shown.collect::<Vec<_>>().join(" ")
    });
    [code, message].into_iter().flatten().collect::<Vec<_>>().join(": ")
}

/// Returns the text of the first element with this name; `None` if it is cut, or has elements of its own.
fn element<'a>(said: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = said.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    Some(text).filter(|text| !text.contains('<'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a failure under the status of success repeats no more than any other; a list of deleted objects is
    /// passed on unchanged.
    #[tokio::test]
    async fn failures_of_deletions_are_not_quoted() {
        let read = async |said: &str| {
            let body = HttpResponseBody::from(said.to_owned());
            said_of_deletion(Bounded { body, left: 200 }).await.map_err(|error| error.to_string())
        };
        let failure = "<Error><Code>SlowDown</Code><Message>Wait.</Message><Token-0>canary</Token-0></Error>";
        assert_eq!(read(failure).await.unwrap(), "SlowDown (SlowDown: Wait.)");
        assert_eq!(read("InternalError of canary").await.unwrap(), "InternalError ()");
        let deleted = "<DeleteResult><Deleted><Key>a</Key></Deleted></DeleteResult>";
        assert_eq!(read(deleted).await.unwrap(), deleted);
        assert!(read(&"x".repeat(201)).await.is_err());
    }

    /// Goal: only a code and plain words remain of a failure's text.
    #[test]
    fn words_are_repeated_and_keys_are_not() {
        let long = "x".repeat(WORD_CHARS_MAX + 1);
        let forged = format!("<Code>A</Code><Message>of {long} here\nERROR\u{1b}[2J</Message>");
        for (said, left) in [
            (
                "<?xml version=\"1.0\"?>\n<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message><Token-0>abc</Token-0></Error>",
                "ExpiredToken: The provided token has expired.",
            ),
            ("<Error><Code>SlowDown</Code><AWSAccessKeyId>abc</AWSAccessKeyId>", "SlowDown"),
            (forged.as_str(), "A: of *** here ERROR [2J"),
            ("<Code>A b</Code><Message>cut in the mid", ""),
            ("<Code>A<Key>abc</Key></Code><Message><Key>abc</Key></Message>", ""),
            ("{\"token\":\"abc\"}", ""),
            ("", ""),
        ] {
            assert_eq!(repeatable(said), left, "{said}");
        }
        assert_eq!(repeatable(&format!("<Code>{}</Code>", "A".repeat(CODE_CHARS_MAX + 1))), "");
    }
}
