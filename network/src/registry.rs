//! [`Registry`]: state that connections of one origin share.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use parking_lot::Mutex;

/// Maximum number of remembered origins that have no connection.
const FORMER_MAX: usize = 4_096;

/// Values by origin. A value stays while a connection uses it, and afterwards while it differs from a new one.
pub(crate) struct Registry<T> {
    things: Mutex<BTreeMap<IpAddr, Arc<T>>>,
}

impl<T> Default for Registry<T> {
    fn default() -> Self {
        Registry { things: Mutex::default() }
    }
}

impl<T> Registry<T> {
    /// Returns the value of an origin, or makes it. Drops unused values that are not worth remembering, and all unused
    /// ones if there are too many.
    pub(crate) fn of(
        &self,
        origin: IpAddr,
        make: impl FnOnce() -> T,
        is_remembered: impl Fn(&T) -> bool,
    ) -> Arc<T> {
        let mut things = self.things.lock();
        things.retain(|_, thing| Arc::strong_count(thing) > 1 || is_remembered(thing));
        if things.len() >= FORMER_MAX {
            things.retain(|_, thing| Arc::strong_count(thing) > 1);
        }
        things.entry(origin).or_insert_with(|| Arc::new(make())).clone()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.things.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_shared_while_they_are_used_and_remembered_while_they_matter() {
        let (registry, ip) = (Registry::default(), |n: u32| IpAddr::from(n.to_be_bytes()));
        let of = |n, value: u32| registry.of(ip(n), || value, |value| *value > 9);
        let first = of(1, 1);
        assert!(Arc::ptr_eq(&first, &of(1, 2)));
        drop((first, of(2, 10)));
        assert_eq!((*of(2, 3), *of(1, 4)), (10, 4), "one is remembered, the other is not");
        for n in 0..10_000 {
            of(n, 10);
        }
        assert!(registry.len() <= FORMER_MAX);
    }
}
