//! [`RequestBody`]: one HTTP body, or one message of a socket, as requests.

use jsonrpsee_types::error::{INVALID_REQUEST_CODE, PARSE_ERROR_CODE};
use slipstream_base::json_list;
use slipstream_rpc::{Lane, Table, send_sync};

use super::envelope::{NO_ID, Request, error};

/// Maximum number of requests in one array: as many as viem's batch transport sends, and as geth accepts.
pub(super) const ARRAY_MAX: usize = 1_000;
/// The methods whose effect must be on disk before they are answered.
pub(super) const SENDING: &str = slipstream_rpc::SEND_RAW;
pub(super) const SENDING_SYNC: &str = send_sync::NAME;

/// The requests of an HTTP body.
pub(super) enum RequestBody<'a> {
    One(Request<'a>),
    Array(Vec<Request<'a>>),
}

impl<'a> RequestBody<'a> {
    /// Parses a body.
    ///
    /// # Errors
    /// The answer to a body that is neither a request nor an array of 1 to [`ARRAY_MAX`] requests.
    pub(super) fn read(body: &'a [u8]) -> Result<RequestBody<'a>, String> {
        let Ok(text) = std::str::from_utf8(body) else {
            return Err(error(NO_ID, PARSE_ERROR_CODE, "parse error: the body is not UTF-8"));
        };
        let parse_error = |parse| error(NO_ID, PARSE_ERROR_CODE, &format!("parse error: {parse}"));
        if !text.trim_start().starts_with('[') {
            return serde_json::from_str(text)
                .map(|value| RequestBody::One(Request::read(value)))
                .map_err(parse_error);
        }
        let list = json_list::read(text, ARRAY_MAX).map_err(parse_error)?;
        match list.len {
            0 => Err(error(NO_ID, INVALID_REQUEST_CODE, "empty batch")),
            1..=ARRAY_MAX => Ok(RequestBody::Array(list.first.into_iter().map(Request::read).collect())),
            len => {
                let text =
                    format!("batch too large: {len} requests in one array, but the limit is {ARRAY_MAX}");
                Err(error(NO_ID, INVALID_REQUEST_CODE, &text))
            }
        }
    }

    /// The lane of the body's only request, if a call in it may turn out to be short or long. A trace is always long,
    /// and a filter is installed once.
    pub(super) fn open_lane(&self, table: &Table) -> Option<Lane> {
        let [request] = self.requests() else { return None };
        let installs = request.call().is_some_and(|call| call.method == "eth_newFilter");
        Some(request.lane(table)).filter(|lane| !installs && matches!(lane, Lane::Calls | Lane::Searches))
    }

    pub(super) fn requests(&self) -> &[Request<'a>] {
        match self {
            RequestBody::One(request) => std::slice::from_ref(request),
            RequestBody::Array(requests) => requests,
        }
    }

    /// The ids under which a body that sends transactions is answered; `None` if it only reads.
    pub(super) fn ids_of_sending(&self) -> Option<Vec<&'a str>> {
        let sends = |request: &Request<'_>| {
            request.call().is_some_and(|call| call.method == SENDING || call.method == SENDING_SYNC)
        };
        let requests = self.requests();
        requests.iter().any(sends).then(|| requests.iter().filter_map(Request::id).collect())
    }
}
