//! Divides the files that the process may open. The store and the process itself have their shares; callers get the
//! rest. So callers can exhaust only their own share, and never bring the node down.

use std::num::NonZeroUsize;

use slipstream_api::SPARE_CONNECTIONS;
use slipstream_base::NodeError;
use slipstream_config::ApiConfig;
use slipstream_storage::OpenFilesShare;

/// A lower limit would leave a handful of connections, and a store that reopens its files for each read.
const LIMIT_MIN: u64 = 192;
/// The process's own files: ports, lock, journal, logs, files of threads, archives and name lookups.
const PROCESS_FILES: u64 = 48;

/// Returns the API's configuration, with its connections reduced to the files available.
///
/// # Errors
/// [`NodeError::FewFiles`].
pub(crate) fn fit(config: &ApiConfig, limit: Option<u64>) -> Result<ApiConfig, NodeError> {
    let mut config = config.clone();
    let Some(limit) = limit else { return Ok(config) };
    if limit < LIMIT_MIN {
        return Err(NodeError::FewFiles { limit, min: LIMIT_MIN });
    }
    let free = limit.saturating_sub(OpenFilesShare::of(limit).total() + PROCESS_FILES);
    // Newcomers that wait for a seat take half as many again.
    let seats = usize::try_from(free / 3 * 2).unwrap_or(usize::MAX);
    let most = NonZeroUsize::new(seats.saturating_sub(SPARE_CONNECTIONS)).unwrap_or(NonZeroUsize::MIN);
    let wanted = config.max_connections;
    if most < wanted {
        let needed = needed(wanted);
        tracing::warn!(
            limit,
            needed,
            max_connections = most.get(),
            "the limit on open files leaves fewer connections than api.max_connections ({wanted}): raise it (`ulimit -n`, LimitNOFILE of systemd)"
        );
        config.max_connections = most;
        config.max_connections_per_address = config.max_connections_per_address.min(most);
    }
    Ok(config)
}

/// The limit on open files that `connections` need.
fn needed(connections: NonZeroUsize) -> u64 {
    let seats = (connections.get() + SPARE_CONNECTIONS) as u64;
    let api = seats + seats.div_ceil(2) + 2;
    let fits = |limit: u64| limit.saturating_sub(OpenFilesShare::of(limit).total() + PROCESS_FILES) >= api;
    (0..64).map(|power| LIMIT_MIN << power.min(40)).find(|limit| fits(*limit)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: under any limit, store, process and connections together stay below it; a usual limit does not reduce the
    /// default.
    #[test]
    fn callers_have_what_the_others_leave() {
        let config = ApiConfig::default();
        assert!(matches!(fit(&config, Some(LIMIT_MIN - 1)), Err(NodeError::FewFiles { .. })));
        assert_eq!(fit(&config, None).unwrap().max_connections, config.max_connections);
        assert_eq!(fit(&config, Some(1_024)).unwrap().max_connections, config.max_connections);
        for limit in [LIMIT_MIN, 256, 300, 512, 700, 1_023] {
            let connections = fit(&config, Some(limit)).unwrap().max_connections.get();
            let seats = (connections + SPARE_CONNECTIONS) as u64;
            let all = OpenFilesShare::of(limit).total() + PROCESS_FILES + seats + seats / 2;
            assert!(all <= limit && connections > 1, "{limit}: {all}, {connections} connections");
        }
        let many = NonZeroUsize::new(10_000).unwrap();
        let fitted = fit(&ApiConfig { max_connections: many, ..config }, Some(needed(many))).unwrap();
        assert_eq!(fitted.max_connections, many);
    }
}
