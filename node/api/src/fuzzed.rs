//! [`JsonRpcDoor`]: JSON-RPC at the level of HTTP bodies, without HTTP and without a node, for fuzz targets.

use std::{sync::Arc, time::Duration};

use slipstream_fair::Origin;
use slipstream_rpc::{RpcContext, TraceLimits, fixture};
use slipstream_storage::Store;
use slipstream_types::Genesis;

use super::jsonrpc::JsonRpc;
use slipstream_status::metrics::Metrics;

/// How long a call may run: an endless loop must not block a fuzzer.
const CALL_TIME_MAX: Duration = Duration::from_millis(50);

/// See the module.
pub struct JsonRpcDoor(JsonRpc);

impl JsonRpcDoor {
    /// All methods over a store that has this genesis. Call within a runtime.
    ///
    /// # Panics
    /// If the store has another genesis.
    pub fn over(genesis: &Genesis, store: Store) -> JsonRpcDoor {
        let context = RpcContext {
            call_time_max: CALL_TIME_MAX,
            send_sync_time_max: CALL_TIME_MAX,
            trace_limits: TraceLimits { time_max: CALL_TIME_MAX, bytes_max: 1 << 20 },
            ..fixture::over(genesis, store)
        };
        JsonRpcDoor(JsonRpc::new(context, Arc::new(Metrics::new().expect("no metric is there twice"))))
    }

    /// The names of the methods.
    pub fn methods(&self) -> impl Iterator<Item = &'static str> {
        self.0.table().names()
    }

    /// Answers a body as if it came from one of the operator's own hosts. Returns `None` if it holds only notifications.
    pub async fn answer(&self, body: &[u8]) -> Option<Vec<u8>> {
        self.0.handle(Origin::Trusted, || {}, body).await.map(Vec::from)
    }
}
