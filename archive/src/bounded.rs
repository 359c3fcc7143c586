//! [`BoundedConnector`]: the HTTP client of an archive, whose answers end however long a server goes on.
//!
//! `object_store` reads listings and the texts of failures whole, and makes room for as much as the server announces. Here an answer
//! announces nothing, and is cut. Objects are bounded more closely by who reads them.

use std::{
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

/// Bytes of an answer that is no object: the longest is a page of a listing, with 1,000 names.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// Bytes that are kept of what a server says of a failure: they end in a log.
const FAILURE_BYTES_MAX: usize = 1 << 10;

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
        let (parts, body) = self.0.execute(request).await?.into_parts();
        let (kind, left) = match (parts.status.is_success(), is_object) {
            (true, true) => (Kind::Answer, MANIFEST_BYTES_MAX),
            (true, false) => (Kind::Answer, PAGE_BYTES_MAX),
            (false, _) => (Kind::Failure, FAILURE_BYTES_MAX),
        };
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(Bounded { body, kind, left })))
    }
}

/// How to treat an answer that is too long.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// It is an error: half of it would be something else.
    Answer,
    /// Cut the rest. The text is for people: unprintable characters are blanked, so it forges no line of a log.
    Failure,
}

/// An answer that may still bring so many bytes.
struct Bounded {
    body: HttpResponseBody,
    kind: Kind,
    left: usize,
}

#[derive(Debug, thiserror::Error)]
#[error("the server's answer is longer than any can be")]
struct TooLong;

impl Body for Bounded {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if let (Kind::Failure, 0) = (self.kind, self.left) {
            return Poll::Ready(None);
        }
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
            Some(Ok(frame)) => frame,
            other => return Poll::Ready(other),
        };
        // Nobody reads what comes behind the data.
        let Ok(data) = frame.into_data() else { return Poll::Ready(None) };
        let data = match self.kind {
            Kind::Answer if data.len() > self.left => {
                return Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Decode, TooLong))));
            }
            Kind::Answer => data,
            Kind::Failure => {
                let printable = |byte: &u8| if byte.is_ascii_graphic() { *byte } else { b' ' };
                data.iter().take(self.left).map(printable).collect()
            }
        };
        self.left -= data.len();
        Poll::Ready(Some(Ok(Frame::data(data))))
    }
}
