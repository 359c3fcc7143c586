//! [`SessionEnd`]: why a socket is closed. Only its client and the metrics learn the reason.

use slipstream_rpc::SubscriptionError;
use tokio_tungstenite::tungstenite::{
    Error as WebSocketError,
    error::{CapacityError, ProtocolError},
    protocol::{CloseFrame, frame::coding::CloseCode},
};

/// Maximum bytes of a reason that fit in a frame.
const REASON_BYTES_MAX: usize = 123;

/// Why a session ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionEnd {
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
    Lost(#[from] SubscriptionError),
}

impl SessionEnd {
    /// The end that corresponds to an error of reading.
    pub(super) fn of_error(error: &WebSocketError) -> SessionEnd {
        match error {
            WebSocketError::Capacity(CapacityError::MessageTooLong { .. }) => SessionEnd::TooLong,
            WebSocketError::Protocol(ProtocolError::ResetWithoutClosingHandshake) => SessionEnd::Gone,
            WebSocketError::Capacity(_) | WebSocketError::Protocol(_) | WebSocketError::Utf8(_) => {
                SessionEnd::Malformed
            }
            _ => SessionEnd::Gone,
        }
    }

    /// Its name in the metrics.
    pub(super) fn name(&self) -> &'static str {
        match self {
            SessionEnd::Client => "client",
            SessionEnd::Gone => "gone",
            SessionEnd::Shutdown => "shutdown",
            SessionEnd::Displaced => "displaced",
            SessionEnd::Silent => "silent",
            SessionEnd::Slow => "slow",
            SessionEnd::Flood => "flood",
            SessionEnd::TooLong => "too_long",
            SessionEnd::Malformed => "malformed",
            SessionEnd::Lost(SubscriptionError::Behind(_) | SubscriptionError::Arrivals) => "behind",
            SessionEnd::Lost(SubscriptionError::Gap(_)) => "gap",
            SessionEnd::Lost(SubscriptionError::Failed(_)) => "failed",
        }
    }

    /// The close frame that gives the client the reason; `None` if the client is gone.
    pub(super) fn frame(&self) -> Option<CloseFrame> {
        let code = match self {
            SessionEnd::Client | SessionEnd::Gone => return None,
            SessionEnd::Shutdown => CloseCode::Away,
            SessionEnd::Displaced
            | SessionEnd::Lost(
                SubscriptionError::Behind(_) | SubscriptionError::Arrivals | SubscriptionError::Gap(_),
            ) => CloseCode::Again,
            SessionEnd::Silent | SessionEnd::Slow | SessionEnd::Flood => CloseCode::Policy,
            SessionEnd::TooLong => CloseCode::Size,
            SessionEnd::Malformed => CloseCode::Protocol,
            SessionEnd::Lost(SubscriptionError::Failed(_)) => CloseCode::Error,
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
            (SessionEnd::Shutdown, 1001),
            (SessionEnd::Displaced, 1013),
            (SessionEnd::Silent, 1008),
            (SessionEnd::Flood, 1008),
            (SessionEnd::Slow, 1008),
            (SessionEnd::TooLong, 1009),
            (SessionEnd::Malformed, 1002),
            (SessionEnd::Lost(SubscriptionError::Behind(u64::MAX)), 1013),
            (SessionEnd::Lost(SubscriptionError::Arrivals), 1013),
            (SessionEnd::Lost(SubscriptionError::Gap(BatchNumber::new(u64::MAX))), 1013),
            (SessionEnd::Lost(SubscriptionError::Failed(internal_error(&"é".repeat(200)))), 1011),
        ] {
            let frame = end.frame().unwrap();
            assert_eq!(u16::from(frame.code), code, "{end}");
            assert!((8..=REASON_BYTES_MAX).contains(&frame.reason.len()), "{}", frame.reason.as_str());
        }
        assert!(SessionEnd::Client.frame().is_none() && SessionEnd::Gone.frame().is_none());
    }
}
