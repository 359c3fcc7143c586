//! `GET /v1/consensus/settled`: a validator's statement that its head includes everything it ever voted for. Reads that
//! need the answers of a quorum (`slipstream read`) use these statements.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{ConnectInfo, Query, State},
    http::{StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use slipstream_storage::StorageError;
use slipstream_types::{BatchNumber, Bytes, Epoch, PublicKey, codec};
use tokio::time::timeout;

use super::{Api, listener::Seat};

/// How long a batch with votes may take to be committed: enough for a view change without a further failure.
const WAIT_MAX: Duration = Duration::from_secs(4);
/// Maximum number of epoch ends in one answer.
pub const EPOCH_ENDS_MAX: usize = 64;

/// The query's parameters.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SettledQuery {
    /// A batch that the head must also have reached.
    #[serde(default)]
    after: u64,
    /// The last epoch whose validators the caller knows.
    #[serde(default)]
    epoch: u64,
}

/// The answer.
#[derive(Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Settled {
    /// The validator that makes the statement.
    pub validator: PublicKey,
    /// The newest certificate, in BCS. The head is at its batch or later.
    #[schemars(with = "String")]
    pub certificate: Bytes,
    /// The certificates in BCS that end the epochs from the caller's on, at most [`EPOCH_ENDS_MAX`].
    #[schemars(with = "Vec<String>")]
    pub epoch_ends: Vec<Bytes>,
}

pub(crate) async fn settled(
    State(api): State<Arc<Api>>,
    ConnectInfo(seat): ConnectInfo<Seat>,
    Query(SettledQuery { after, epoch }): Query<SettledQuery>,
) -> Response {
    let Some(validator) = api.status.validator() else {
        return (StatusCode::NOT_FOUND, "this node is not a validator\n").into_response();
    };
    let Some(voted) = validator.status().voted else {
        return later("this validator does not know yet what it voted on");
    };
    let number = voted.max(BatchNumber::new(after));
    let mut head = api.status.store.watch_head();
    let reached =
        timeout(WAIT_MAX, head.wait_for(|head| *head >= number)).await.is_ok_and(|head| head.is_ok());
    if !reached {
        return later(&format!("batch {number} is not decided yet"));
    }
    let key = validator.key();
    match api.read(seat.origin(), move |api| api.settled(key, number, Epoch(epoch))).await {
        Ok(Some(settled)) => Json(settled).into_response(),
        Ok(None) => later(&format!("this validator does not have the certificate of batch {number} yet")),
        Err(failure) => failure,
    }
}

/// Worded as `slipstream` reads it: the node at URL is …
fn later(reason: &str) -> Response {
    let text = format!("not settled: {reason}\n");
    (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")], text).into_response()
}

impl Api {
    fn settled(
        &self,
        validator: PublicKey,
        number: BatchNumber,
        epoch: Epoch,
    ) -> Result<Option<Settled>, SettledError> {
        let store = &self.status.store;
        let newest = store.latest_certificate()?;
        let Some(certificate) = newest.filter(|newest| newest.info.number >= number) else {
            return Ok(None);
        };
        let ends = store.epoch_ends(epoch, EPOCH_ENDS_MAX)?;
        let encode = |certificate| codec::encode("certificate", certificate).map(Bytes::from);
        let epoch_ends = ends.iter().map(encode).collect::<Result<_, _>>()?;
        Ok(Some(Settled { validator, certificate: encode(&certificate)?, epoch_ends }))
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum SettledError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Codec(#[from] slipstream_types::CodecError),
}
