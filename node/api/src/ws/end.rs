//! [`End`]: why a socket is closed, for its client and for the metrics, and for no one else.

use slipstream_rpc::Lost;
use tokio_tungstenite::tungstenite::{
    Error as WebSocketError,
    error::{CapacityError, ProtocolError},
    protocol::{CloseFrame, frame::coding::CloseCode},
};

/// Maximum bytes of a reason that fit in a frame.
const REASON_BYTES_MAX: usize = 123;

/// Why a session ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error("the client has closed it")]
    Client,
    /// The connection is gone, or `api::listener` closed it.
    #[error("the connection is gone")]
    Gone,
    #[error("this node stops")]
    Shutdown,
    #[error("other addresses need the place: one address may keep only a part of the places")]
    Displaced,
    #[error("no answer to a ping for too long")]
    Silent,
    #[error("this client reads its messages too slowly")]
    Slow,
    #[error("too many pings: send one every few seconds")]
    Flood,
    #[error("a message is too long: ask for less at once (`api.max_body_bytes`)")]
    TooLong,
    #[error("not a WebSocket message, or not UTF-8")]
    Malformed,
    #[error("{0}")]
    Lost(#[from] Lost),
}

impl End {
    /// The end that corresponds to an error of reading.
    pub(super) fn of_error(error: &WebSocketError) -> End {
        match error {
            WebSocketError::Capacity(CapacityError::MessageTooLong { .. }) => End::TooLong,
            WebSocketError::Protocol(ProtocolError::ResetWithoutClosingHandshake) => End::Gone,
            WebSocketError::Capacity(_) | WebSocketError::Protocol(_) | WebSocketError::Utf8(_) => {
                End::Malformed
            }
            _ => End::Gone,
        }
    }

    /// Its name in the metrics.
    pub(super) fn name(&self) -> &'static str {
        match self {
            End::Client => "client",
            End::Gone => "gone",
            End::Shutdown => "shutdown",
            End::Displaced => "displaced",
            End::Silent => "silent",
            End::Slow => "slow",
            End::Flood => "flood",
            End::TooLong => "too_long",
            End::Malformed => "malformed",
            End::Lost(Lost::Behind(_) | Lost::Arrivals) => "behind",
            End::Lost(Lost::Gap(_)) => "gap",
            End::Lost(Lost::Failed(_)) => "failed",
        }
    }

    /// The close frame that gives the client the reason; `None` if the client is gone.
    pub(super) fn frame(&self) -> Option<CloseFrame> {
        let code = match self {
            End::Client | End::Gone => return None,
            End::Shutdown => CloseCode::Away,
            End::Displaced | End::Lost(Lost::Behind(_) | Lost::Arrivals | Lost::Gap(_)) => CloseCode::Again,
            End::Silent | End::Slow | End::Flood => CloseCode::Policy,
            End::TooLong => CloseCode::Size,
            End::Malformed => CloseCode::Protocol,
            End::Lost(Lost::Failed(_)) => CloseCode::Error,
        };
        let mut reason = self.to_string();
        reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
        Some(CloseFrame { code, reason: reason.into() })
    }
}

#[cfg(test)]
mod tests {
    use slipstream_rpc::fixture::internal_error;
    use slipstream_types::BatchNumber;

    use super::*;

    #[test]
    fn frames_fit_and_say_why() {
        for (end, code) in [
            (End::Shutdown, 1001),
            (End::Displaced, 1013),
            (End::Silent, 1008),
            (End::Flood, 1008),
            (End::Slow, 1008),
            (End::TooLong, 1009),
            (End::Malformed, 1002),
            (End::Lost(Lost::Behind(u64::MAX)), 1013),
            (End::Lost(Lost::Arrivals), 1013),
            (End::Lost(Lost::Gap(BatchNumber::new(u64::MAX))), 1013),
            (End::Lost(Lost::Failed(internal_error(&"é".repeat(200)))), 1011),
        ] {
            let frame = end.frame().unwrap();
            assert_eq!(u16::from(frame.code), code, "{end}");
            assert!((8..=REASON_BYTES_MAX).contains(&frame.reason.len()), "{}", frame.reason.as_str());
        }
        assert!(End::Client.frame().is_none() && End::Gone.frame().is_none());
    }
}
