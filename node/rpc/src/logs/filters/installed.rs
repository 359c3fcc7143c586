//! [`Filters`]: the filters that clients have installed, bounded per address and in total.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::U128;
use parking_lot::Mutex;
use slipstream_fair::Origin;
use slipstream_types::BatchNumber;

use super::super::search::{Criteria, LogPosition};
use crate::errors::RpcError;

/// How long an unpolled filter is kept, as in geth.
const UNPOLLED_MAX: Duration = Duration::from_secs(5 * 60);
/// How long an unpolled filter is kept while the filters are at their limit. A client that uses a filter polls it every
/// few seconds.
const UNPOLLED_CROWDED_MAX: Duration = Duration::from_secs(30);
/// Maximum number of filters at once, and of the bytes of their criteria: bounds the memory.
const FILTERS_MAX: usize = 1_024;
const FILTERS_BYTES_MAX: usize = 16 << 20;
/// The same limits for one address that is not the operator's.
const FILTERS_PER_ADDRESS_MAX: usize = FILTERS_MAX / 4;
const FILTERS_PER_ADDRESS_BYTES_MAX: usize = FILTERS_BYTES_MAX / 4;
/// A filter's weight besides its criteria when the heaviest address is determined: the byte limit divided by the number
/// of filters.
const FILTER_WEIGHT: usize = FILTERS_BYTES_MAX / FILTERS_MAX;

/// The subject of a filter, and the position up to which its changes were reported.
#[derive(Clone)]
pub(super) enum Watch {
    /// Logs, from a position on.
    Logs(Arc<Criteria>, LogPosition),
    /// Batches, from a number on.
    Batches(BatchNumber),
    /// The pool's count of arrivals.
    Arrivals(u64),
}

impl Watch {
    fn bytes(&self) -> usize {
        match self {
            Watch::Logs(criteria, _) => criteria.bytes(),
            Watch::Batches(_) | Watch::Arrivals(_) => 0,
        }
    }
}

struct InstalledFilter {
    owner: Origin,
    watch: Watch,
    bytes: usize,
    polled: Instant,
    /// Whether an answer is being built, so that two answers at once do not report the same changes.
    is_being_polled: bool,
}

/// The memory that the filters of one address, or of all, use.
#[derive(Clone, Copy, Default)]
struct Load {
    filters: usize,
    bytes: usize,
}

impl Load {
    fn of<'a>(filters: impl Iterator<Item = &'a InstalledFilter>) -> Load {
        filters.fold(Load::default(), |load, one| Load {
            filters: load.filters + 1,
            bytes: load.bytes + one.bytes,
        })
    }

    fn weight(self) -> usize {
        self.filters * FILTER_WEIGHT + self.bytes
    }
}

/// All filters of this node. A restart loses them, as in other nodes.
#[derive(Default)]
pub struct Filters(Mutex<HashMap<u128, InstalledFilter>>);

impl Filters {
    /// Installs a filter. If the limits are reached, abandoned filters are evicted first, then one of the heaviest
    /// address.
    ///
    /// # Errors
    /// [`RpcError::TooMuch`] if the address, or all addresses together, have too many.
    pub(super) fn install(&self, owner: Origin, watch: Watch, now: Instant) -> Result<U128, RpcError> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| {
            RpcError::Rejected(format!("cannot draw a random id from the operating system: {error}"))
        })?;
        let id = u128::from_le_bytes(random);
        let bytes = watch.bytes();
        let mut filters = self.0.lock();
        filters.retain(|_, filter| now.saturating_duration_since(filter.polled) < UNPOLLED_MAX);
        let own = Load::of(filters.values().filter(|filter| filter.owner == owner));
        if owner.is_stranger()
            && (own.filters >= FILTERS_PER_ADDRESS_MAX || own.bytes + bytes > FILTERS_PER_ADDRESS_BYTES_MAX)
        {
            return Err(too_many(own.filters, "for your address"));
        }
        if is_full(&filters, bytes) {
            filters.retain(|_, filter| now.saturating_duration_since(filter.polled) < UNPOLLED_CROWDED_MAX);
        }
        while is_full(&filters, bytes) {
            let Some(victim) = least_missed(&filters, owner) else {
                return Err(too_many(filters.len(), "on this node"));
            };
            filters.remove(&victim);
        }
        filters.insert(id, InstalledFilter { owner, watch, bytes, polled: now, is_being_polled: false });
        Ok(U128::from(id))
    }

    /// The subject of a filter. Counts as a poll.
    pub(super) fn find(&self, id: Option<u128>, now: Instant) -> Result<Watch, RpcError> {
        let mut filters = self.0.lock();
        Ok(polled(&mut filters, id, now)?.watch.clone())
    }

    /// Starts to answer a poll.
    ///
    /// # Errors
    /// [`RpcError::FilterBusy`] while another poll is being answered: waiting for it would occupy a thread that others
    /// need.
    pub(super) fn poll(self: &Arc<Self>, id: Option<u128>, now: Instant) -> Result<PendingPoll, RpcError> {
        let mut filters = self.0.lock();
        let found = polled(&mut filters, id, now)?;
        if std::mem::replace(&mut found.is_being_polled, true) {
            return Err(RpcError::FilterBusy);
        }
        let id = id.unwrap_or_default();
        Ok(PendingPoll { filters: self.clone(), id, watch: found.watch.clone() })
    }

    pub(super) fn uninstall(&self, id: Option<u128>) -> bool {
        id.is_some_and(|id| self.0.lock().remove(&id).is_some())
    }
}

fn too_many(filters: usize, whose: &str) -> RpcError {
    let text = format!(
        "too many filters {whose}: {filters} are installed; uninstall unused ones, or poll eth_getLogs instead"
    );
    RpcError::TooMuch(text)
}

fn is_full(filters: &HashMap<u128, InstalledFilter>, more_bytes: usize) -> bool {
    let all = Load::of(filters.values());
    all.filters >= FILTERS_MAX || all.bytes + more_bytes > FILTERS_BYTES_MAX
}

/// The filter to evict for a new one: the least recently polled of the heaviest address. `None` if the newcomer is the
/// heaviest.
fn least_missed(filters: &HashMap<u128, InstalledFilter>, newcomer: Origin) -> Option<u128> {
    let mut loads = HashMap::<Origin, usize>::new();
    for filter in filters.values() {
        *loads.entry(filter.owner).or_default() += Load::of(std::iter::once(filter)).weight();
    }
    let own = if newcomer.is_stranger() { loads.get(&newcomer).copied().unwrap_or(0) } else { 0 };
    let strangers =
        loads.iter().filter(|(owner, weight)| owner.is_stranger() && **weight > own + FILTER_WEIGHT);
    let (heaviest, _) = strangers.max_by_key(|(owner, weight)| (**weight, **owner))?;
    let theirs = filters.iter().filter(|(_, filter)| filter.owner == *heaviest);
    theirs.min_by_key(|(id, filter)| (filter.polled, **id)).map(|(id, _)| *id)
}

/// Returns the filter, and marks it as polled now.
fn polled(
    filters: &mut HashMap<u128, InstalledFilter>,
    id: Option<u128>,
    now: Instant,
) -> Result<&mut InstalledFilter, RpcError> {
    let found = id.and_then(|id| filters.get_mut(&id)).ok_or(RpcError::FilterNotFound)?;
    if now.saturating_duration_since(found.polled) >= UNPOLLED_MAX {
        return Err(RpcError::FilterNotFound);
    }
    found.polled = now;
    Ok(found)
}

/// A poll that is being answered. Until it is [`told`](PendingPoll::told), the filter keeps its position.
pub struct PendingPoll {
    filters: Arc<Filters>,
    id: u128,
    /// The filter's position after this answer.
    pub(super) watch: Watch,
}

impl PendingPoll {
    /// Advances the filter. Call when the answer is on its way; the next poll reports the changes after it.
    pub(crate) fn told(self) {
        if let Some(installed) = self.filters.0.lock().get_mut(&self.id) {
            installed.watch = self.watch.clone();
        }
    }
}

impl Drop for PendingPoll {
    fn drop(&mut self) {
        if let Some(installed) = self.filters.0.lock().get_mut(&self.id) {
            installed.is_being_polled = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use alloy_rpc_types_eth::Filter;

    use super::*;

    const BATCHES: Watch = Watch::Batches(BatchNumber::new(1));

    fn host(number: u8) -> Origin {
        Origin::V4(Ipv4Addr::new(192, 0, 2, number))
    }

    fn many(filters: &Filters, owner: Origin, count: usize, now: Instant) -> Vec<Option<u128>> {
        (0..count).map(|_| Some(filters.install(owner, BATCHES, now).unwrap().to())).collect()
    }

    /// Goal: an unpolled filter expires, sooner when others need its place; a polled one stays.
    #[test]
    fn filters_are_bounded_and_expire() {
        let (filters, start) = (Filters::default(), Instant::now());
        let ids = many(&filters, Origin::Trusted, FILTERS_MAX, start);
        let refused = filters.install(Origin::Trusted, BATCHES, start).unwrap_err().to_string();
        assert!(refused.starts_with("too many filters on this node: 1024 are installed"), "{refused}");

        let end = start + UNPOLLED_MAX;
        filters.find(ids[0], start + UNPOLLED_MAX / 2).unwrap();
        assert!(matches!(filters.find(ids[1], end), Err(RpcError::FilterNotFound)));
        filters.find(ids[0], end).unwrap();

        filters.install(Origin::Trusted, BATCHES, start + UNPOLLED_CROWDED_MAX).unwrap();
        assert_eq!(filters.0.lock().len(), 2, "the one that was polled, and the new one");
    }

    /// Goal: one address cannot take all filters. When the limits are reached, the heaviest address loses filters;
    /// those of the newcomer and the operator stay.
    #[test]
    fn addresses_share_the_filters() {
        let (filters, now) = (Filters::default(), Instant::now());
        let own = many(&filters, Origin::Trusted, FILTERS_MAX - 2 * FILTERS_PER_ADDRESS_MAX, now);
        let first = many(&filters, host(1), FILTERS_PER_ADDRESS_MAX, now);
        let refused = filters.install(host(1), BATCHES, now).unwrap_err().to_string();
        assert!(refused.starts_with("too many filters for your address: 256 are installed"), "{refused}");
        many(&filters, host(2), FILTERS_PER_ADDRESS_MAX - 8, now);
        many(&filters, host(3), 8, now);
        assert_eq!(filters.0.lock().len(), FILTERS_MAX);

        filters.poll_all(&first[1..], now + Duration::from_secs(1));
        filters.install(host(4), BATCHES, now + Duration::from_secs(2)).unwrap();
        assert!(filters.find(first[0], now).is_err(), "the least polled of the heaviest");
        for _ in 0..2 * FILTERS_PER_ADDRESS_MAX {
            let _ = filters.install(host(5), BATCHES, now);
        }
        let held = |owner| Load::of(filters.0.lock().values().filter(|filter| filter.owner == owner)).filters;
        assert_eq!((held(host(3)), held(host(4))), (8, 1), "who has little keeps it");
        assert_eq!(held(Origin::Trusted), own.len());
        assert!(held(host(1)).abs_diff(held(host(5))) <= 2);
        assert_eq!(filters.0.lock().len(), FILTERS_MAX);
    }

    impl Filters {
        fn poll_all(&self, ids: &[Option<u128>], now: Instant) {
            ids.iter().for_each(|id| drop(self.find(*id, now).unwrap()));
        }
    }

    #[test]
    fn criteria_are_bounded_together_and_by_address() {
        let (filters, now) = (Filters::default(), Instant::now());
        let addresses: Vec<_> = (0..1_000)
            .map(|number| alloy_primitives::Address::left_padding_from(&u32::to_be_bytes(number)))
            .collect();
        let criteria = Arc::new(Criteria::new(Filter::new().address(addresses)));
        let watch = || Watch::Logs(criteria.clone(), LogPosition::before(BatchNumber::new(1)));
        let installed =
            |owner| (0..FILTERS_MAX).take_while(|_| filters.install(owner, watch(), now).is_ok()).count();
        assert_eq!(installed(host(1)), FILTERS_PER_ADDRESS_BYTES_MAX / criteria.bytes());
        assert_eq!(
            installed(Origin::Trusted),
            FILTERS_BYTES_MAX / criteria.bytes(),
            "the operator comes first"
        );
    }

    /// Goal: a poll whose answer was lost is answered again. A second concurrent poll is refused at once.
    #[test]
    fn a_poll_moves_on_when_it_is_told() {
        let (filters, now) = (Arc::new(Filters::default()), Instant::now());
        let id = many(&filters, host(1), 1, now)[0];
        let next = || match filters.find(id, now).unwrap() {
            Watch::Batches(next) => next.get(),
            _ => panic!("it watches batches"),
        };
        let mut lost = filters.poll(id, now).unwrap();
        lost.watch = Watch::Batches(BatchNumber::new(5));
        assert!(matches!(filters.poll(id, now), Err(RpcError::FilterBusy)));
        drop(lost);
        assert_eq!(next(), 1);
        let mut told = filters.poll(id, now).unwrap();
        told.watch = Watch::Batches(BatchNumber::new(5));
        told.told();
        assert_eq!(next(), 5);
        let late = filters.poll(id, now).unwrap();
        assert!(filters.uninstall(id));
        late.told();
        assert!(filters.find(id, now).is_err());
    }
}
